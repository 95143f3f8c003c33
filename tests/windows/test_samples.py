"""Samples of windows before they are planned: decoded records, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops import ConfigError, Earliest, OrderedWindows, Window
from kafka_ordered_ops.decoding import Json
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.both_worlds import broker as broker
from tests.support.both_worlds import memory as memory
from tests.support.both_worlds import world as world
from tests.support.worlds import World

#: A time of a test: in ms, and in s.
MS, S = 1_700_000_000_000, 1_700_000_000


def test_a_sample_is_decoded_and_nothing_is_written(world: World) -> None:
    """The first and the last records of each partition, in order; bad ones with their reasons, whatever `on_bad` is."""
    world.create("orders", partitions=2)
    world.create("dead")
    good = [(float(n), None, b'{"id": %d}' % n, ()) for n in range(20)]
    world.write_content("orders", 0, good)
    bad = [(0.5, None, b"x", ()), (1.5, None, b"y", ()), (2.5, None, None, ())]
    world.write_content("orders", 1, bad)
    windows = world.windows()
    ways: list[dict[str, Any]] = [{}, {"on_bad": "keep", "flatten": True}]
    for options in ways:
        window = world.window(1_000, starting_offsets=Earliest(), values="json:id int64", **options)
        sample = windows.sample(windows.preview(window), records=8)
        places = list(
            zip(
                sample.records["partition"].to_pylist(),
                sample.records["offset"].to_pylist(),
                strict=True,
            )
        )
        assert places == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2), (0, 18), (0, 19)]
        assert sample.records["value"].to_pylist()[5:] == [{"id": 18}, {"id": 19}]
        assert sample.bad == 2
        [note] = sample.notes
        assert f"2 of 7 sampled records, the first at {world.tp('orders', 1)} offset 0" in note
        assert "the value cannot be decoded: " in note
    assert list(windows.summaries().windows) == []


def test_times_in_the_wrong_unit_are_named() -> None:
    """Of records and of decoded columns, at any depth; a right column, and one without a unit, are not."""
    times = pa.struct([("at", pa.timestamp("ms", "UTC")), ("right", pa.timestamp("s"))])
    values = Json(pa.schema([("meta", times), ("createdMs", pa.int64()), ("n", pa.int64())]))
    value = f'{{"meta": {{"at": {S}, "right": {S}}}, "createdMs": {MS * 1000}, "n": {S}}}'
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", 3, {"message.timestamp.after.max.ms": str(2**63 - 1)})
        for number in range(9):
            stamp = S if number % 3 else MS
            kafka.produce("orders", partition=number % 3, timestamp_ms=stamp, value=value.encode())
        kafka.produce("orders", partition=0, timestamp_ms=MS * 1000, value=b"{}")
        windows = OrderedWindows(kafka.settings, group_id="g")
        window = Window("orders", "2026-01-01T00:00Z", "earliest", values=values)
        notes = windows.sample(windows.preview(window)).notes
    said = "\n".join(notes)
    assert [note.partition(", ")[0] for note in notes] == [
        "orders[0]: of the greatest timestamps of the logs",
        "orders[1] and 1 more partitions: of the sampled timestamps",
        "orders[0] and 2 more partitions: of the sampled value.meta.at",
        "orders[0] and 2 more partitions: of the sampled value.createdMs",
    ]
    assert "1 of 1 are microseconds" in said
    assert "6 of 6 are seconds, and milliseconds are expected: 1,700,000,000 is 1970-01-20" in said
    assert "9 of 9 are microseconds" in said


def test_records_that_retention_has_removed_are_no_error(world: World) -> None:
    """A preview of a window that exists shows what is left."""
    world.create("orders")
    world.write("orders", 0, *range(10))
    windows = world.windows()
    window = world.window(1_000, starting_offsets=Earliest())
    windows.commit(windows.plan(window, "w"))
    world.delete_before("orders", 0, 7)
    sample = windows.sample(windows.preview(window, "w"))
    assert sample.records["offset"].to_pylist() == [7, 8, 9]


def test_what_is_sampled_is_bounded() -> None:
    """By number, with more partitions than records too; an empty window has an empty sample."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=7)
        windows = OrderedWindows(kafka.settings, group_id="g")
        window = Window("orders", "2026-01-01T00:00Z", "earliest")
        empty = windows.sample(windows.preview(window))
        assert (empty.records.num_rows, empty.bad, empty.notes) == (0, 0, ())
        for number in range(70):
            kafka.produce("orders", partition=number % 7, timestamp_ms=MS, value=b"x")
        plan: Any = windows.preview(window)
        for records in (1, 3, 7, 20, 1_000):
            assert 0 < windows.sample(plan, records=records).records.num_rows <= min(records, 70)
        with pytest.raises(ConfigError, match="records is 0"):
            windows.sample(plan, records=0)
