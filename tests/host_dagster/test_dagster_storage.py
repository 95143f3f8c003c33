"""Outputs in an object store with credentials by text, variable, resource and YAML, which Dagster never shows."""

# Annotations are values here: Dagster reads them of a component.

import json
import logging
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.events import AssetKey

from kafka_ordered_ops import ConfigError, Folder, OrderedWindows, Window
from kafka_ordered_ops.dagster import (
    KafkaResource,
    build_ordered_window_asset,
    build_ordered_window_op,
)
from kafka_ordered_ops.dagster.storage import resolved_options
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.dagster_yaml import READS_YAML
from tests.support.dagster_yaml import sandbox as sandbox
from tests.support.hosts_support import GROUP, executed
from tests.support.hosts_support import kafka as kafka
from tests.support.objects_support import named_rows, staged_names
from tests.support.objects_support import server as server

pytestmark = READS_YAML

CANARY = "canary-s3cret"


class S3Resource(dg.ConfigurableResource[Any]):
    """The fields that dagster-aws's resource has."""

    use_unsigned_session: bool = False
    region_name: str | None = None
    endpoint_url: str | None = None
    max_attempts: int = 5
    profile_name: str | None = None
    use_ssl: bool = True
    verify: bool | None = None
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = None
    aws_session_token: str | None = None


def made(build: Any, root: str, options: Any) -> Any:
    """An asset or op that copies the topic."""
    name = {"key": "orders"} if build is build_ordered_window_asset else {"name": "orders"}
    return build(
        window=Window(["t"], starting_offsets="earliest"),
        group_id=GROUP,
        output=Folder(root, storage_options=options),
        on_not_live="ignore",
        **name,
    )


def options_of(kind: str, server: dict[str, str]) -> Any:
    """The same credentials, as people have them."""
    secret = dg.EnvVar("LAKE_SECRET")
    if kind == "variables":
        return {**server, "aws_secret_access_key": secret}
    return S3Resource(
        region_name="us-east-1",
        endpoint_url=server["aws_endpoint"],
        aws_access_key_id=server["aws_access_key_id"],
        aws_secret_access_key=secret,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["variables", "resource"])
@pytest.mark.parametrize("build", [build_ordered_window_asset, build_ordered_window_op])
def test_credentials_reach_the_store_and_dagster_shows_none(
    kafka: InMemoryKafka,
    server: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    build: Any,
    kind: str,
) -> None:
    """Neither events, metadata, logs nor the ledger; a variable is resolved by the step."""
    monkeypatch.delenv("LAKE_SECRET", raising=False)
    root = f"s3://bucket/dagster/{kind}-{build.__name__}"
    orders = made(build, root, options_of(kind, server))
    monkeypatch.setenv("LAKE_SECRET", CANARY)
    caplog.set_level(logging.DEBUG)
    result = executed(orders, kafka)
    assert result.success
    assert sorted(named_rows(root, server)) == sorted([*range(5)] * 2)
    assert staged_names(root, server) == []
    with OrderedWindows(kafka.settings, GROUP) as windows:
        ledger = repr([(one.plan.to_text(), one.result) for one in windows.list()])
    if build is build_ordered_window_asset:
        [event] = result.asset_materializations_for_node("orders")
        assert "dagster/column_schema" in event.metadata
    shown = capfd.readouterr()
    for text in (repr(result.all_events), ledger, caplog.text, shown.out, shown.err):
        assert CANARY not in text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_yaml_file_has_the_options(
    kafka: InMemoryKafka,
    server: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    sandbox: Any,
) -> None:
    """A variable alone is not resolved when the file is loaded."""
    root = "s3://bucket/dagster/yaml"
    attributes = {
        "key": "orders",
        "window": {"topics": ["t"], "starting_offsets": {"t": "earliest"}},
        "group_id": GROUP,
        "on_not_live": "ignore",
        "output": {
            "path": root,
            "storage_options": {**server, "aws_secret_access_key": "{{ env.LAKE_SECRET }}"},
        },
    }
    kind = "kafka_ordered_ops.dagster.OrderedWindowComponent"
    folder: Path = sandbox.defs_folder_path / "orders"
    folder.mkdir(exist_ok=True)
    (folder / "defs.yaml").write_text(json.dumps({"type": kind, "attributes": attributes}))
    monkeypatch.delenv("LAKE_SECRET", raising=False)
    with sandbox.build_all_defs() as defs:
        [asset] = [
            one
            for one in defs.assets or []
            if isinstance(one, dg.AssetsDefinition) and one.key == AssetKey("orders")
        ]
        refused = executed(asset, kafka)
        assert not refused.success
        assert "the environment variable LAKE_SECRET" in repr(refused.all_events)
        monkeypatch.setenv("LAKE_SECRET", CANARY)
        result = executed(asset, kafka)
    assert result.success
    assert CANARY not in repr(result.all_events)
    assert len(named_rows(root, server)) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"aws_secret_access_key": dg.EnvVar("NOT_SET_ANYWHERE")}, "NOT_SET_ANYWHERE"),
        ({"aws_secret_acess_key": CANARY}, "is not valid for store"),
    ],
)
def test_wrong_credentials_are_refused_before_the_plan(
    kafka: InMemoryKafka, options: dict[str, Any], told: str
) -> None:
    """By a failure that is not retried, and shows no value."""
    result = executed(made(build_ordered_window_asset, "s3://bucket/dagster/x", options), kafka)
    assert not result.success
    events = repr(result.all_events)
    assert told in events
    assert CANARY not in events
    with OrderedWindows(kafka.settings, GROUP) as windows:
        assert windows.list() == []


@pytest.mark.parametrize(
    ("output", "options", "told"),
    [
        ("s3://bucket/x", CANARY, "is a str"),
        ("s3://bucket/x", {1: CANARY}, "is a dict"),
        ("s3://bucket/x", KafkaResource(config={"sasl.password": CANARY}), "is a KafkaResource"),
    ],
)
def test_wrong_options_are_refused_where_they_are_written(
    output: str, options: Any, told: str
) -> None:
    """When the code location is loaded, without their values."""
    with pytest.raises(ConfigError, match=told) as raised:
        build_ordered_window_asset(
            key="a", topics="t", group_id="g", output=Folder(output, storage_options=options)
        )
    assert CANARY not in str(raised.value)


def test_a_resource_s_profile_needs_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked up where the step runs; what is not set is not passed on."""
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(ConfigError, match="profile_name 'lake'"):
        resolved_options(S3Resource(profile_name="lake"))
    assert resolved_options(S3Resource(use_unsigned_session=True, verify=False)) == {
        "aws_skip_signature": "true",
        "allow_invalid_certificates": "true",
    }
