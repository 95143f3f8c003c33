"""A short story of the demo, its flights, and its output without Kafka and Spark."""

from __future__ import annotations

import zlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import Window, WindowPlan
from kafka_ordered_ops.cli.demo.data import Flights, departed, read_source
from kafka_ordered_ops.cli.demo.output import Published, window_folder
from kafka_ordered_ops.cli.demo.story import PARTITIONS, TOPIC, Story, story
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.time_ranges import NO_STEPS, TimeRange
from kafka_ordered_ops.core.types import INT64_MIN
from kafka_ordered_ops.core.window.plan import PartitionPlan
from tests.support.spark_support import part_of, plan_of

#: A story of a few weeks has every kind of window and record.
SHORT = story(datetime(2013, 2, 13, tzinfo=UTC))
T0 = datetime(2013, 1, 1, tzinfo=UTC)
MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def source() -> pa.Table:
    """The year as the source has it."""
    return read_source()


@pytest.fixture(scope="module")
def flights(source: pa.Table) -> Flights:
    """The departures of the short story."""
    return SHORT.reached(departed(source))


@pytest.fixture(scope="module")
def perfect(flights: Flights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a demo without a fault, made without Kafka and Spark."""
    root = tmp_path_factory.mktemp("perfect") / "flights"
    publish(flights, SHORT, root)
    return root


def publish(flights: Flights, told: Story, root: Path) -> None:
    """Writes each window in order into two files, as the demo's job would."""
    tails = flights.table["tailnum"].to_pylist()
    partition = np.array([zlib.crc32(str(tail).encode()) % PARTITIONS for tail in tails])
    offset = np.zeros(len(flights), dtype=np.int64)
    for number in range(PARTITIONS):
        mine = partition == number
        offset[mine] = np.arange(mine.sum())
    table = flights.table.select(
        ["id", "carrier", "flight", "tailnum", "origin", "dest", "delay_min"]
    )
    stamps = pa.array(flights.scheduled_ms).cast(pa.timestamp("ms", tz="UTC"))
    table = table.append_column("timestamp", stamps.cast(pa.timestamp("us", tz="UTC")))
    table = table.append_column("partition", pa.array(partition.astype(np.int32)))
    table = table.append_column("offset", pa.array(offset))
    table = table.append_column("late", pa.array(told.late_of(flights)))
    windows = told.window_of(flights)
    order = np.lexsort((offset, partition, flights.scheduled_ms))
    for place, step in enumerate(told.steps):
        rows = table.take(order[windows[order] == place])
        folder = window_folder(root, step)
        folder.mkdir(parents=True)
        half = rows.num_rows // 2
        pq.write_table(rows.slice(0, half), folder / "part-00000-x.parquet")
        pq.write_table(rows.slice(half), folder / "part-00001-x.parquet")


def flights_of(*minutes: tuple[int, int]) -> Flights:
    """Flights by (scheduled minute after T0, minutes of delay), in order of departure."""
    start_ms = int(T0.timestamp() * 1000)
    rows = sorted(minutes, key=sum)
    return Flights(
        pa.table(
            {
                "id": pa.array(range(len(rows)), pa.int64()),
                "scheduled_ms": pa.array([start_ms + s * MINUTE_MS for s, _ in rows], pa.int64()),
                "departed_ms": pa.array(
                    [start_ms + (s + d) * MINUTE_MS for s, d in rows], pa.int64()
                ),
            }
        )
    )


def plans_of(published: Published, told: Story) -> list[WindowPlan]:
    """Plans of the windows whose records are published."""
    columns = (published.int64(name) for name in ("partition", "offset", "timestamp", "window"))
    partition, offset, stamp_ms, window = columns
    departed_ms = stamp_ms + published.int64("delay_min") * MINUTE_MS
    found: list[list[PartitionPlan]] = [[] for _ in told.steps]
    for number in range(PARTITIONS):
        late, here = NO_STEPS, partition == number
        for place, step in enumerate(told.steps):
            ends = offset[here & (departed_ms < step.planned_at_ms)]
            past = offset[here & (departed_ms < step.planned_at_ms) & (stamp_ms >= step.cutoff_ms)]
            end = int(ends.max(initial=-1)) + 1
            taken = OffsetSet.from_offsets(offset[here & (window == place)])
            part = part_of(TOPIC, number, taken, head_end=int(past.min(initial=end)), late=late)
            found[place].append(replace(part, decided_end=end))
            late = late.with_step(end, TimeRange(INT64_MIN, step.cutoff_ms))
    return [
        replace(
            plan_of(parts, window_id=step.window_id), window=Window([TOPIC], cutoff=step.cutoff)
        )
        for step, parts in zip(told.steps, found, strict=True)
    ]
