"""What Dagster knows of each partition of a step: its checks, its numbers, and what its function returned."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer

from kafka_ordered_ops import Application, ConfigError
from kafka_ordered_ops.dagster import (
    KafkaResource,
    build_ordered_window_asset,
    ordered_window_asset,
)
from tests.conftest import MakeTopic, Produce
from tests.support.dagster_support import (
    FIRST,
    HOUR,
    HOURLY,
    KEYS,
    House,
    copied,
    failure_of,
    windows_of,
)
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house

pytestmark = pytest.mark.timeout(300)

#: One hour more than the topic has reached.
LATE = "2026-01-05-06:00"


def checks_of(house: House, name: str) -> dict[str | None, str]:
    """The newest state of a check for each partition, as Dagster's pages have it."""
    key = dg.AssetCheckKey(dg.AssetKey("orders"), name)
    found: dict[str | None, str] = {}
    for one in house.instance.event_log_storage.get_asset_check_execution_history(key, limit=100):
        found.setdefault(one.partition, one.status.value)
    return found


@pytest.mark.slow
def test_a_check_is_about_its_partition(house: House, hours: str, group_id: str) -> None:
    """An old hour that passes does not hide a newer one that failed; in a range each partition has its own result."""
    asset = copied(house, hours, group_id)
    assert all(one.partitions_def == HOURLY for one in asset.check_specs)
    house.materialize(asset, (KEYS[4], LATE))
    house.materialize(asset, KEYS[0])
    assert checks_of(house, "partitions_live") == {
        KEYS[0]: "SUCCEEDED",
        KEYS[4]: "SUCCEEDED",
        KEYS[5]: "SUCCEEDED",
        LATE: "FAILED",
    }
    assert set(checks_of(house, "windows_complete").values()) == {"SUCCEEDED"}


@pytest.mark.slow
def test_a_covered_partition_fails_its_own_check(house: House, hours: str, group_id: str) -> None:
    """The other partitions of the step pass."""
    house.materialize(copied(house, hours, group_id), KEYS[1])
    other = copied(house, hours, group_id, key="orders", redefine=True)
    renamed = copied(house, hours, group_id, key="renamed", redefine=True)
    house.materialize(renamed, KEYS[2])
    house.materialize(other, (KEYS[1], KEYS[3]))
    assert checks_of(house, "windows_complete") == {
        KEYS[1]: "SUCCEEDED",
        KEYS[2]: "FAILED",
        KEYS[3]: "SUCCEEDED",
    }


@pytest.mark.slow
def test_a_function_returns_a_value_for_each_partition(
    house: House, hours: str, group_id: str
) -> None:
    """By partition, or by window; any other value is that of all windows of the step."""
    given = {**windows_of(house, hours, group_id), "output": None}

    @ordered_window_asset(**given)
    def orders(context: dg.AssetExecutionContext, windows: Any) -> Any:
        keys = list(windows.partition_keys.values())
        by_window = {plan.window_id: {"rows": n} for n, plan in enumerate(windows.plans)}
        if KEYS[0] in keys:
            return {key: {"rows": n + 7} for n, key in enumerate(keys)}
        return by_window if KEYS[2] in keys else {"rows": 99}

    house.materialize(orders, (KEYS[0], KEYS[1]))
    house.materialize(orders, (KEYS[2], KEYS[3]))
    house.materialize(orders, KEYS[4])
    told = house.told("orders")
    rows = {key: one["kafka_ordered_ops/returned"]["rows"] for key, one in told.items()}
    assert rows == {KEYS[0]: 7, KEYS[1]: 8, KEYS[2]: 0, KEYS[3]: 1, KEYS[4]: 99}


@pytest.mark.slow
def test_a_partitions_page_begins_with_its_own_numbers(
    house: House, hours: str, group_id: str
) -> None:
    """Those of the whole step are the last."""
    house.materialize(copied(house, hours, group_id), (KEYS[0], KEYS[1]))
    for one in house.told("orders").values():
        assert next(iter(one)) == "dagster/partition_row_count"
        assert one["dagster/partition_row_count"] == 4
        assert one["kafka_ordered_ops/records_in_all"] == 8
        names = list(one)
        assert names.index("kafka_ordered_ops/ranges") < names.index("kafka_ordered_ops/windows")


def test_a_run_without_a_partition_is_told_so(house: House, hours: str, group_id: str) -> None:
    """In our words, with what to do."""
    result = house.materialize(copied(house, hours, group_id), fails=True)
    assert "orders has partitions, but this run names no partition" in failure_of(result)


def test_a_relative_path_is_refused(house: House, hours: str, group_id: str) -> None:
    """When definitions are loaded; that of a certificate when the cluster is used."""
    for more in (
        {"output": "lake"},
        {"job": Application("job.py")},
        {"job": Application("/job.py", submit={"files": ["a.txt"]})},
    ):
        with pytest.raises(ConfigError, match="is the relative path"):
            build_ordered_window_asset(**{**windows_of(house, hours, group_id), **more})
    settings = {"bootstrap.servers": "b:1", "ssl.ca.location": "ca.pem"}
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location is the relative path"):
        KafkaResource(config=settings).client_settings()


@pytest.mark.slow
def test_the_newest_is_a_record_and_not_a_marker(
    house: House, topic: MakeTopic, produce: Produce, group_id: str, bootstrap: str
) -> None:
    """A transaction that ended now left its marker, and its record is of the hour."""
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{group_id}"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"x", timestamp=round((FIRST + HOUR / 2).timestamp() * 1000))
    producer.commit_transaction()
    result = house.materialize(copied(house, name, group_id), KEYS[0])
    [check] = [
        one for one in result.get_asset_check_evaluations() if one.check_name == "partitions_live"
    ]
    [row] = check.metadata["partitions"].value.records  # type: ignore[union-attr]
    assert "the newest is stamped 2026-01-05T00:30:00Z" in str(row.data["why"])
