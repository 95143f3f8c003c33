"""Ops of windows: what an asset of windows does, in a job of ops."""

# Without postponed annotations: Dagster reads the type of an op's context.

from collections.abc import Mapping
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import ConfigError, Window
from kafka_ordered_ops.dagster import (
    AssetWindows,
    KafkaResource,
    build_ordered_window_op,
    ordered_window_op,
    window_id_of,
)
from tests.conftest import Produce
from tests.support.dagster_support import FIRST, HOUR, HOURLY, KEYS, House, expected, failure_of
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house

pytestmark = pytest.mark.timeout(300)


@dg.op
def shown(context: dg.OpExecutionContext, windows: list[Any]) -> None:
    """What an op behind the windows is given."""
    context.add_output_metadata({"given": dg.MetadataValue.json(windows)})


def run(
    house: House,
    delivers: dg.OpDefinition,
    key: str | None,
    *,
    hourly: bool = True,
    fails: bool = False,
) -> dg.ExecuteInProcessResult:
    """A job of two ops: the windows, and what is told of them."""

    @dg.job(partitions_def=HOURLY if hourly else None, resource_defs={"kafka": house.kafka})
    def pipeline() -> None:
        shown(delivers())

    result = pipeline.execute_in_process(
        partition_key=key, instance=house.instance, raise_on_error=False
    )
    assert result.success is not fails, [event.message for event in result.all_events][-5:]
    return result


def given(result: dg.ExecuteInProcessResult) -> list[dict[str, Any]]:
    """What the second op was given."""
    [event] = [
        event
        for event in result.all_events
        if event.is_successful_output and event.step_key == "shown"
    ]
    value: Any = event.step_output_data.metadata["given"].value
    return list(value)


def told(result: dg.ExecuteInProcessResult, step: str) -> Mapping[str, Any]:
    """The metadata of an op's output."""
    [event] = [
        event
        for event in result.all_events
        if event.is_successful_output and event.step_key == step
    ]
    return {name: one.value for name, one in event.step_output_data.metadata.items()}


@pytest.mark.slow
def test_a_partition_of_a_job(house: House, hours: str, group_id: str) -> None:
    """The op delivers the hour of its run, and says where; again, it is the same window."""
    copies = build_ordered_window_op(
        name="orders.by-hour",
        window=Window([hours], starting_offsets="earliest"),
        group_id=group_id,
        partitions_def=HOURLY,
        output=str(house.output),
    )
    assert copies.name == "orders_by_hour"
    for result in [run(house, copies, KEYS[2]) for _ in range(2)]:
        [window] = given(result)
        assert house.offsets(window.pop("output")) == expected(2)
        assert window == {
            "window_id": window_id_of("orders.by-hour", KEYS[2]),
            "since": "2026-01-05T02:00:00Z",
            "cutoff": "2026-01-05T03:00:00Z",
            "records": 4,
            "returned": None,
        }
        metadata = told(result, "orders_by_hour")
        assert metadata["dagster/partition_row_count"] == 4
        assert metadata["kafka_ordered_ops/group"] == group_id


@pytest.mark.slow
def test_a_job_without_partitions(
    house: House, hours: str, group_id: str, produce: Produce
) -> None:
    """Each run takes what is new; what the function returns goes with the window to the ops behind it."""

    @ordered_window_op(
        name="orders", window=Window([hours], starting_offsets="earliest"), group_id=group_id
    )
    def orders(
        context: dg.OpExecutionContext, windows: AssetWindows, kafka: KafkaResource
    ) -> dict[str, int]:
        assert kafka.config == house.kafka.config
        return {"seen": sum(plan.offsets for plan in windows.plans)}

    [first] = given(run(house, orders, None, hourly=False))
    assert first["returned"] == {"seen": 25}
    assert (first["since"], first["records"], first["output"]) == (None, None, None)
    produce([(hours, 0, None, b"x", round((FIRST + HOUR * 7).timestamp() * 1000), ())])
    [second] = given(run(house, orders, None, hourly=False))
    assert second["returned"] == {"seen": 1}
    assert first["window_id"] != second["window_id"]


@pytest.mark.slow
def test_an_op_that_fails_commits_nothing(house: House, hours: str, group_id: str) -> None:
    """The next run of the partition takes the same records, and the ops behind it run only then."""
    broken = [True]

    @ordered_window_op(
        name="orders",
        window=Window([hours], starting_offsets="earliest"),
        group_id=group_id,
        partitions_def=HOURLY,
    )
    def orders(context: dg.OpExecutionContext, windows: AssetWindows) -> list[int]:
        if broken.pop() if broken else False:
            raise OSError("no")
        return [plan.offsets for plan in windows.plans]

    assert "OSError: no" in failure_of(run(house, orders, KEYS[0], fails=True))
    [window] = given(run(house, orders, KEYS[0]))
    assert window["returned"] == [4]


@pytest.mark.parametrize("hourly", [True, False])
def test_partitions_that_the_job_has_not(house: House, hourly: bool) -> None:
    """A run without a partition would take everything, or nothing: it is refused, with what to do."""
    delivers = build_ordered_window_op(
        name="orders",
        topics=["t"],
        group_id="g",
        partitions_def=None if hourly else HOURLY,
        output=str(house.output),
    )
    result = run(house, delivers, KEYS[0] if hourly else None, hourly=hourly, fails=True)
    assert "give the op the partitions_def= of its job" in failure_of(result)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"job": print}, "give a Copy or an Application"),
        ({"topics": []}, "at least one of them"),
        ({"partitions_def": dg.StaticPartitionsDefinition(["a"])}, "partitions by time"),
    ],
)
def test_what_cannot_be_is_named(arguments: dict[str, Any], told: str) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigError, match=told):
        build_ordered_window_op(
            **{"name": "o", "topics": ["t"], "group_id": "g", "output": "/x", **arguments}
        )
