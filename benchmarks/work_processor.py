"""Per-record processing of the package, at work for the comparison ``processing``."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from benchmarks.backlog import DAY, DAY_START, topic_of
from benchmarks.usage import peak_memory_bytes
from benchmarks.values import Outcome, Place, Work
from benchmarks.work_records import CONCURRENCY, WorkTopic
from kafka_ordered_ops import Earliest, OrderedWindows, Window, WindowPlan
from kafka_ordered_ops.core.processing.record import Record
from kafka_ordered_ops.core.processing.scheduling import Ordering
from kafka_ordered_ops.processing.processor import Processor

#: Some 5 ms of them.
_HASHES: Final = 5_000


class Way(StrEnum):
    """What kind of function works on the records."""

    PLAIN = "plain function"
    ASYNC = "async function"


@dataclass(frozen=True)
class Sleeping:
    """Works on each record for as long as its value says."""

    topic: WorkTopic
    ordering: Ordering
    way: Way

    def start(self, place: Place) -> Work:
        """Makes the plan: to decide about offsets is not what is measured."""
        plan = _plan(place, self.topic.name)
        processor = Processor(place.bootstrap, ordering=self.ordering, max_concurrency=CONCURRENCY)

        def run(_: int) -> Outcome:
            began, ended = [0] * self.topic.records, [0] * self.topic.records

            def work(record: Record) -> None:
                began[record.offset] = time.perf_counter_ns()
                time.sleep(_seconds(record))
                ended[record.offset] = time.perf_counter_ns()

            async def work_async(record: Record) -> None:
                began[record.offset] = time.perf_counter_ns()
                await asyncio.sleep(_seconds(record))
                ended[record.offset] = time.perf_counter_ns()

            _exhaust(processor, plan, work if self.way is Way.PLAIN else work_async)
            return self.topic.outcome(self.ordering, began, ended)

        return Work(run)


@dataclass(frozen=True)
class DoingNothing:
    """Runs a backlog through an empty function, by key. Its seconds are of the whole run, connecting included."""

    records: int
    way: Way

    def start(self, place: Place) -> Work:
        """Makes the plan."""
        plan = _plan(place, topic_of(self.records))
        processor = Processor(place.bootstrap, max_concurrency=CONCURRENCY)

        def run(_: int) -> Outcome:
            started = time.perf_counter()
            records = _exhaust(processor, plan, _EMPTY[self.way])
            return Outcome(
                seconds=time.perf_counter() - started,
                records=records,
                memory_bytes=peak_memory_bytes(),
            )

        return Work(run)


@dataclass(frozen=True)
class Computing:
    """Runs records through a function that computes, in processes. Its seconds are of the whole run, their start included."""

    topic: WorkTopic
    processes: int

    def start(self, place: Place) -> Work:
        """Makes the plan."""
        plan = _plan(place, self.topic.name)
        processor = Processor(
            place.bootstrap,
            ordering=Ordering.UNORDERED,
            workers="processes",
            max_concurrency=self.processes,
        )

        def run(_: int) -> Outcome:
            started = time.perf_counter()
            records = _exhaust(processor, plan, compute)
            return Outcome(seconds=time.perf_counter() - started, records=records)

        return Work(run)


def compute(record: Record) -> int:
    """Hash a record's value again and again, for some milliseconds of CPU that a process keeps to itself."""
    digest = record.value or b""
    for _ in range(_HASHES):
        digest = hashlib.sha256(digest).digest()
    return digest[0]


def _nothing(record: Record) -> None:
    """Do nothing."""


async def _nothing_async(record: Record) -> None:
    """Do nothing."""


_EMPTY: Final[dict[Way, Callable[[Record], Any]]] = {
    Way.PLAIN: _nothing,
    Way.ASYNC: _nothing_async,
}


def _seconds(record: Record) -> float:
    return int(record.value or b"0") / 1_000


def _plan(place: Place, topic: str) -> WindowPlan:
    with OrderedWindows(place.bootstrap, f"bench-{topic}") as windows:
        return windows.preview(Window([topic], cutoff=DAY_START + DAY, starting_offsets=Earliest()))


def _exhaust(processor: Processor, plan: WindowPlan, function: Callable[[Record], Any]) -> int:
    """Takes all results, and returns how many there were."""
    last = deque(enumerate(processor.run(plan, function), start=1), maxlen=1)
    return last[0][0] if last else 0
