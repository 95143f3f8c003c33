"""Ordered reads in the tests' time, and what comes of them."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafka_ordered_ops import Member, OrderedReader, Ordering, ReadLimits
from kafka_ordered_ops.core.release.ordered_release import Order
from kafka_ordered_ops.core.types import TopicPartition
from tests.support.windows_support import BASE_MS, TIMEOUT_S
from tests.support.worlds import World

#: Nothing passes by itself within a test.
NEVER: Final = "PT1000H"


class Row(NamedTuple):
    """One record, in the order of `timestamp`."""

    #: ms since the tests' time began.
    time: int
    topic: str
    partition: int
    offset: int


def rows_of(batch: pa.RecordBatch | pa.Table) -> list[Row]:
    """The records of a batch."""
    columns: list[list[Any]] = [
        [one - BASE_MS for one in batch.column("timestamp").cast(pa.int64()).to_pylist()],  # type: ignore[operator]
        *(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")),
    ]
    return [Row(*row) for row in zip(*columns, strict=True)]


def all_rows(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """The records of batches."""
    return [row for batch in batches for row in rows_of(batch)]


def ms_rows(tp: TopicPartition, times_ms: Iterable[int], *, at: int = 0) -> list[Row]:
    """What records written one after another are read as; times in ms since the tests' time began."""
    return [Row(time_ms, tp.topic, tp.partition, at + n) for n, time_ms in enumerate(times_ms)]


def rows(tp: TopicPartition, *seconds: float, at: int = 0) -> list[Row]:
    """What records written one after another are read as."""
    return ms_rows(tp, (round(second * 1000) for second in seconds), at=at)


def keyed(one_partition: list[Row]) -> list[tuple[int, Row]]:
    """The records of one partition with the greatest timestamp so far."""
    keys = np.maximum.accumulate([row.time for row in one_partition]).tolist()
    return list(zip(keys, one_partition, strict=True))


class Clock:
    """A clock that stands still, in seconds of the tests' time."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return BASE_MS / 1000 + self.now


_ORDERING: Final = frozenset({"max_out_of_orderness", "grace"})
_LIMITS: Final = frozenset(inspect.signature(ReadLimits).parameters)
_OF_MEMBER: Final = frozenset(inspect.signature(Member).parameters) - {"group_id"}


def grouped(options: dict[str, Any]) -> dict[str, Any]:
    """Options with those of orders, limits and members in their values."""
    options = dict(options)
    ordering = {name: options.pop(name) for name in _ORDERING & options.keys()}
    limits = {name: options.pop(name) for name in _LIMITS & options.keys()}
    of_member = {name: options.pop(name) for name in _OF_MEMBER & options.keys()}
    if ordering:
        options["order"] = Ordering(options.get("order", Order.TIMESTAMP), **ordering)
    if limits:
        options["limits"] = ReadLimits(**limits)
    if of_member:
        options["group_id"] = Member(options["group_id"], **of_member)
    return options


def opened_at(
    clock: Callable[[], float], settings: Any, topics: Any, **options: Any
) -> OrderedReader:
    """A reader whose time is a clock's."""

    class Reader(OrderedReader):
        _clock = staticmethod(clock)

    return Reader(settings, topics, **grouped(options))


class Tail:
    """A live tail in the tests' time, and what came of it so far."""

    def __init__(self, world: World, *topics: str, now: float = 0.0, **options: Any) -> None:
        self.clock = Clock(now)
        options = {"follow": True, "timeout_s": 20.0, **options}
        if group_id := options.get("group_id"):
            options["group_id"] = world.named(group_id)
        names = [name if name.startswith("^") else world.named(name) for name in topics]
        self.reader = opened_at(self.clock, world.settings, names, **options)
        self.rows: list[Row] = []
        self.late: list[Row] = []

    def __enter__(self) -> Tail:
        self.reader.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.reader.__exit__(kind, error, traceback)

    def poll(self, timeout_s: float = 0) -> pa.RecordBatch | None:
        """One poll."""
        batch = self.reader.poll(timeout_s)
        if batch is not None:
            found = rows_of(batch)
            self.rows += found
            late: list[Any] = batch.column("late").to_pylist()
            self.late += [row for row, is_late in zip(found, late, strict=True) if is_late]
        return batch

    def until(self, holds: Callable[[], bool]) -> None:
        """Polls until something holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, (len(self.rows), self.rows[-4:])
            self.poll()

    def until_rows(self, *expected: Row) -> None:
        """Polls until exactly these records have come, in this order."""
        self.until(lambda: len(self.rows) >= len(expected))
        assert self.rows == list(expected)

    def until_at(self, tp: TopicPartition, position: int) -> None:
        """Polls until a partition has been read up to an offset."""
        self.until(lambda: self.state(tp).get("position", -1) >= position)

    def until_live(self) -> None:
        """Polls until everything that was there has been read."""
        self.until(lambda: self.reader.is_live)

    def state(self, tp: TopicPartition) -> dict[str, Any]:
        """The state of a partition; empty for one that is not read."""
        for row in self.reader.state().to_pylist():
            if TopicPartition(row["topic"], row["partition"]) == tp:
                return row
        return {}
