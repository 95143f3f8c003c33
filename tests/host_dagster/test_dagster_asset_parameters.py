"""What every asset in Dagster has, as ordinary parameters of assets of windows; and mistakes in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import AtTime, ConfigError, SettingNotAllowedError, Window
from kafka_ordered_ops.dagster import (
    AssetWindows,
    KafkaResource,
    WindowOp,
    build_kafka_topic_assets,
    build_ordered_window_asset,
    build_ordered_window_op,
    build_partitions_live_sensor,
    catch_up_condition,
    ordered_window_asset,
)
from kafka_ordered_ops.dagster.assets.registry import window_asset
from tests.support.dagster_support import HOURLY
from tests.support.host_words import words

DAILY = dg.DailyPartitionsDefinition("2026-01-05")
GIVEN: dict[str, Any] = {"key": "orders", "topics": "orders", "group_id": "g", "output": "/lake"}


@pytest.mark.parametrize("is_built", [True, False])
def test_an_asset_has_what_dagsters_own_assets_have(*, is_built: bool) -> None:
    """Built or decorated; its topics stay among what it depends on."""
    spec = dg.AssetSpec(
        "orders",
        deps=["customers", dg.AssetKey(["lake", "prices"])],
        description="Orders by the hour.",
        group_name="lake",
        owners=["team:data"],
        tags={"tier": "gold"},
        kinds={"parquet"},
        metadata={"sla": "1 h"},
        code_version="7",
        automation_condition=catch_up_condition(),
        partitions_def=HOURLY,
    )
    retries = dg.RetryPolicy(max_retries=2)
    more: dict[str, Any] = {"key": spec, "op": WindowOp(retry_policy=retries, pool="kafka")}
    if is_built:
        asset = build_ordered_window_asset(**{**GIVEN, **more})
    else:

        @ordered_window_asset(**{**GIVEN, **more})
        def asset(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
            windows.copy()

    [found] = asset.specs
    assert {dep.asset_key.to_user_string() for dep in found.deps} == {
        "kafka/orders",
        "customers",
        "lake/prices",
    }
    assert (found.description, found.group_name) == ("Orders by the hour.", "lake")
    assert (list(found.owners), found.tags["tier"]) == (["team:data"], "gold")
    assert (found.kinds, found.code_version) == ({"kafka", "parquet"}, "7")
    assert (found.metadata["sla"], found.metadata["kafka_ordered_ops/group"]) == ("1 h", "g")
    assert found.automation_condition == catch_up_condition()
    assert found.partitions_def == asset.partitions_def == HOURLY
    assert (asset.op.retry_policy, asset.op.pool) == (retries, "kafka")


def test_a_spec_may_have_its_own_io_manager() -> None:
    """Then the package loads nothing for downstream assets."""
    own = dg.AssetSpec("orders").with_io_manager_key("lake")
    [spec] = build_ordered_window_asset(**{**GIVEN, "key": own}).specs
    assert spec.metadata["dagster/io_manager_key"] == "lake"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"op": dg.RetryPolicy()}, "give a WindowOp"),
        (
            {"key": dg.AssetSpec("a", partitions_def=HOURLY), "partitions_def": DAILY},
            "a has other partitions in its spec",
        ),
        ({"owners": ["a"]}, r"give key=AssetSpec\(\.\.\., owners="),
        ({"retry_policy": dg.RetryPolicy()}, r"give op=WindowOp\(\.\.\., retry_policy="),
    ],
)
def test_what_a_spec_or_an_op_cannot_be(given: dict[str, Any], told: str) -> None:
    """With the value that has the word."""
    with pytest.raises(ConfigError, match=told):
        build_ordered_window_asset(**{**GIVEN, **given})


def test_values_may_be_texts_as_everywhere() -> None:
    """A topic or several, times, spans."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    asset = build_ordered_window_asset(
        **words(**GIVEN, starting_offsets=moment, max_out_of_orderness="PT5M", grace="PT1H")
    )
    settings = window_asset(asset).settings
    start = AtTime(int(moment.timestamp() * 1000))
    assert settings.window == Window(
        ["orders"], starting_offsets=start, max_out_of_orderness=timedelta(minutes=5)
    )
    assert settings.grace == timedelta(hours=1)


@pytest.mark.parametrize(
    ("make", "given", "told"),
    [
        (build_ordered_window_asset, {**GIVEN, "starting_offset": "x"}, "starting_offsets="),
        (
            build_ordered_window_op,
            {"name": "a", "topics": "t", "group_id": "g", "outptu": "x"},
            "'output'",
        ),
        (build_kafka_topic_assets, {"topics": ["a"], "group": "b"}, "'group_name'"),
        (build_partitions_live_sensor, {"assets": [], "look_back": 1}, "'lookback'"),
    ],
)
def test_an_unknown_parameter_names_the_one_that_was_meant(
    make: Any, given: dict[str, Any], told: str
) -> None:
    """And the function by its public name."""
    with pytest.raises(ConfigError, match=f"{make.__name__} has no parameter '.*{told}"):
        make(**given)


def test_the_cure_is_the_resources_own_field() -> None:
    """A setting that is refused may be allowed by `settings_allowed`."""
    kafka = KafkaResource(config={"bootstrap.servers": "b:1", "plugin.library.paths": "x"})
    with pytest.raises(SettingNotAllowedError, match="name it in settings_allowed"):
        kafka.client_settings()


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_the_time_zone_of_partitions_is_shown(zone: str | None) -> None:
    """Without one Dagster takes UTC: the asset's page says so, whoever translates its spec."""
    more: dict[str, Any] = {} if zone is None else {"timezone": zone}
    hours = dg.HourlyPartitionsDefinition("2026-01-05-00:00", **more)
    asset = build_ordered_window_asset(**GIVEN, partitions_def=hours)
    [spec] = asset.specs
    assert spec.metadata["kafka_ordered_ops/time_zone"] == (zone or "UTC")
    assert "kafka_ordered_ops/group" in spec.metadata
    [spec] = build_ordered_window_asset(**GIVEN).specs
    assert "kafka_ordered_ops/time_zone" not in spec.metadata


class Naive(dg.TimeWindowPartitionsDefinition):
    """Partitions of somebody's own, whose times name no moment."""

    def time_window_for_partition_key(  # type: ignore[override]  # not cached as there
        self, partition_key: str
    ) -> dg.TimeWindow:
        times = super().time_window_for_partition_key(partition_key)
        return dg.TimeWindow(times.start.replace(tzinfo=None), times.end.replace(tzinfo=None))


@pytest.mark.slow
def test_a_partition_without_a_time_zone_is_refused_by_name(tmp_path: Path) -> None:
    """And not taken as UTC, nor as the machine's time; nothing is asked of Kafka."""
    days = Naive(start="2026-01-05", fmt="%Y-%m-%d", cron_schedule="0 0 * * *")
    given = words(**{**GIVEN, "output": str(tmp_path)}, starting_offsets="earliest")
    asset = build_ordered_window_asset(**given, partitions_def=days)
    kafka = KafkaResource(config={"bootstrap.servers": "localhost:1"})
    with pytest.raises(dg.Failure, match=r"ConfigError: partition 2026-01-05: .* has no time zone"):
        dg.materialize([asset], partition_key="2026-01-05", resources={"kafka": kafka})
    with dg.instance_for_test() as instance:
        context = dg.build_sensor_context(instance, resources={"kafka": kafka})
        with pytest.raises(ConfigError, match=r"partition 2026-01-05: .* has no time zone"):
            build_partitions_live_sensor(asset).evaluate_tick(context)
