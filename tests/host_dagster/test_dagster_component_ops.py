"""What a YAML file says of an asset's op, of automation and of lineage, as Dagster's own components have it."""

# Annotations are values here: Dagster reads them of a component.

import json
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg
import pytest
from dagster.components.testing.utils import DefsFolderSandbox

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.dagster import OrderedWindowComponent, catch_up_condition
from kafka_ordered_ops.dagster.assets.registry import window_asset
from tests.support.dagster_yaml import READS_YAML
from tests.support.dagster_yaml import sandbox as sandbox

pytestmark = READS_YAML

TYPE: Final = "kafka_ordered_ops.dagster.OrderedWindowComponent"
GIVEN: Final = {
    "key": "lake/orders",
    "topics": ["orders", "^payments-.*"],
    "group_id": "lake",
    "output": "/lake",
    "partitions": {"type": "hourly", "start_date": "2026-01-05-00:00"},
}


def asset_of(**more: Any) -> dg.AssetsDefinition:
    """The asset of a component from YAML."""
    made = OrderedWindowComponent.resolve_from_yaml(json.dumps({**GIVEN, **more}))
    [asset] = dg.component_defs(component=made).assets or []
    assert isinstance(asset, dg.AssetsDefinition)
    return asset


def loaded(sandbox: DefsFolderSandbox, kind: str = TYPE, **body: Any) -> dg.AssetsDefinition:
    """The asset of a whole file."""
    folder = sandbox.defs_folder_path / "orders"
    folder.mkdir(exist_ok=True)
    (folder / "defs.yaml").write_text(json.dumps({"type": kind, **body}))
    with sandbox.build_all_defs() as defs:
        [asset] = defs.assets or []
    assert isinstance(asset, dg.AssetsDefinition)
    return asset


def test_an_op_as_dagsters_own_components_have_it() -> None:
    """Tags for what launches it, tries after a failure, a pool, and how a backfill is cut."""
    asset = asset_of(
        op={
            "tags": {"dagster-k8s/config": {"container_config": {}}},
            "retry_policy": {
                "max_retries": 3,
                "delay": "PT30S",
                "backoff": "exponential",
                "jitter": "full",
            },
            "pool": "kafka",
            "backfill_policy": {"type": "multi_run", "max_partitions_per_run": 24},
        }
    )
    assert asset.op.tags == {"dagster-k8s/config": '{"container_config": {}}'}
    assert asset.op.retry_policy == dg.RetryPolicy(
        max_retries=3, delay=30, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.FULL
    )
    assert asset.op.pool == "kafka"
    assert asset.backfill_policy == dg.BackfillPolicy.multi_run(24)
    assert window_asset(asset).run_partitions_max == 24
    plain = asset_of()
    assert (plain.op.tags, plain.op.retry_policy, plain.op.pool) == ({}, None, None)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"pool": "a"}, "pool"),
        ({"backfill_policy": {"type": "single_run"}}, "backfill_policy"),
        ({"op": {"retries": 3}}, "retries"),
        ({"op": {"retry_policy": {"backoff": "slow"}}}, "slow|linear"),
        ({"op": {"retry_policy": {"delay": "30"}}}, "delay is 30: give .*PT15M"),
        ({"automation_condition": "eager"}, "'eager' is not an automation condition"),
    ],
)
def test_what_cannot_be_of_an_op(wrong: dict[str, Any], told: str) -> None:
    """Is named when the file is loaded."""
    with pytest.raises(Exception, match=rf"(?s){told}"):
        asset_of(**wrong)


@dataclass(kw_only=True)
class Own(OrderedWindowComponent):
    """A component of somebody's own."""


@pytest.mark.parametrize("kind", [TYPE, f"{Own.__module__}.Own"])
@pytest.mark.parametrize("place", ["attributes", "post_processing"])
def test_catching_up_is_a_name_in_templates(
    kind: str, place: str, sandbox: DefsFolderSandbox
) -> None:
    """As a field of the asset, or where Dagster has it for all assets; in components derived from it, too."""
    told = {"automation_condition": "{{ catch_up_condition() }}"}
    if place == "attributes":
        asset = loaded(sandbox, kind, attributes={**GIVEN, **told})
    else:
        post = {"assets": [{"attributes": told}]}
        asset = loaded(sandbox, kind, attributes=GIVEN, post_processing=post)
    assert asset.get_asset_spec().automation_condition == catch_up_condition()


def test_lineage_to_topics_of_more_than_one_cluster(sandbox: DefsFolderSandbox) -> None:
    """What stands before topics' names is told; what a pattern will mean is told by hand."""

    def upstream(asset: dg.AssetsDefinition) -> list[str]:
        deps = asset.get_asset_spec().deps
        return [dep.asset_key.to_user_string() for dep in deps]

    assert upstream(asset_of()) == ["kafka/orders"]
    assert upstream(asset_of(topic_key_prefix="eu/kafka")) == ["eu/kafka/orders"]
    assert upstream(asset_of(topic_key_prefix="")) == ["orders"]
    deps = ["kafka/orders", "kafka/payments-eu"]
    post = {"assets": [{"attributes": {"deps": deps}}]}
    assert upstream(loaded(sandbox, attributes=GIVEN, post_processing=post)) == deps


@pytest.mark.parametrize("field", ["kafka", "sensor", "check"])
def test_a_text_where_fields_belong_is_named(field: str) -> None:
    """As ``kafka: localhost:9092``: Dagster itself takes a text for a template."""
    with pytest.raises(Exception, match=rf"(?s){field} is a mapping of fields.*localhost:9092"):
        asset_of(**{field: "localhost:9092"})


def test_a_check_from_the_same_file() -> None:
    """Of the asset's topics, by the asset's cluster; one without partitions is told how far behind it may be."""
    kafka = {"config": {"bootstrap.servers": "localhost:9092"}}
    plain: dict[str, Any] = {"check": {}}
    for more in (plain, {"partitions": None, "check": {"lag": "PT1H", "blocking": False}}):
        given = {**GIVEN, "kafka": kafka, **more}
        made = OrderedWindowComponent.resolve_from_yaml(json.dumps(given))
        defs = dg.component_defs(component=made)
        [check] = defs.asset_checks or []
        assert isinstance(check, dg.AssetChecksDefinition)
        [spec] = check.check_specs
        assert (spec.asset_key.to_user_string(), spec.name) == ("lake/orders", "topics_live")
        assert spec.blocking is ("partitions" not in more)
        assert set(defs.resources or {}) <= check.required_resource_keys
    with pytest.raises(ConfigError, match="lag="):
        asset_of(partitions=None, check={})


def test_a_sensor_can_be_told_all() -> None:
    """How many partitions a run takes at most, and what its runs are tagged with."""
    given = {**GIVEN, "sensor": {"partitions_max": 6, "tags": {"team": "lake"}, "lookback": "P7D"}}
    made = OrderedWindowComponent.resolve_from_yaml(json.dumps(given))
    assert made.sensor is not None
    assert (made.sensor["partitions_max"], made.sensor["tags"]) == (6, {"team": "lake"})
    [sensor] = dg.component_defs(component=made).sensors or []
    assert isinstance(sensor, dg.SensorDefinition)
