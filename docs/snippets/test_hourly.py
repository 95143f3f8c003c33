"""A job and its tests, without a broker: python -m pytest test_hourly.py."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import (
    CommitUnknownError,
    OrderedWindows,
    StagedOutput,
    Window,
    stage_window,
)
from kafka_ordered_ops.testing import InMemoryKafka


# [start job]
def load_hour(settings: Mapping[str, str], cutoff: datetime, folder: str) -> str:
    """Run the job as a DAG does; its settings name the cluster."""
    with OrderedWindows(settings, group_id="orders-hourly") as windows:
        window = Window("orders", cutoff=cutoff, starting_offsets="earliest")
        plan = windows.plan(window, window_id=f"{cutoff:%Y-%m-%dT%H}")
        delivery = windows.deliver(
            plan,
            lambda plan: stage_window(plan, windows.settings, folder),
            StagedOutput.found,
        )
    return StagedOutput.of(delivery.plan, folder).final_path


# [start tests]
NOON = datetime(2025, 11, 20, 12, tzinfo=UTC)


def minutes(count: int) -> int:
    """So many minutes after eleven, as Kafka counts time."""
    return int(NOON.timestamp() * 1000) + (count - 60) * 60_000


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A cluster of this test's own."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        for count, partition in ((5, 0), (61, 0), (40, 0), (20, 1)):
            kafka.produce("orders", partition=partition, timestamp_ms=minutes(count))
        yield kafka


def test_the_hour_is_complete_and_in_order(
    kafka: InMemoryKafka, tmp_path: Path
) -> None:
    """Also the record that was written behind one of the next hour."""
    folder = load_hour(kafka.settings, NOON, str(tmp_path))
    times = pq.read_table(folder)["timestamp"].to_pylist()
    assert [time.minute for time in times] == [5, 20, 40]


def test_aborted_records_are_not_loaded(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """A transaction that its producer gave up."""
    with kafka.transaction() as transaction:
        transaction.produce("orders", timestamp_ms=minutes(30))
        transaction.abort()
    folder = load_hour(kafka.settings, NOON, str(tmp_path))
    assert pq.read_table(folder).num_rows == 3


def test_a_retry_after_a_lost_answer_loads_nothing_twice(
    kafka: InMemoryKafka, tmp_path: Path
) -> None:
    """The commit was stored, but its answer was lost."""
    with kafka.lose_answers(read_back=False), pytest.raises(CommitUnknownError):
        load_hour(kafka.settings, NOON, str(tmp_path))
    folder = load_hour(kafka.settings, NOON, str(tmp_path))
    assert pq.read_table(folder).num_rows == 3


# [end tests]
