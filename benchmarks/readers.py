"""The native reader beside librdkafka, in one run: plain reads, scans, ordered reads, windows to Parquet, and a day of hours.

Beside both, what others do with the same log: Kafka's own measure of a Java consumer, and Spark's connector.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from typing import Final

from benchmarks.backlog import DAY, DAY_START, VALUE_BYTES, make_backlog, topic_of
from benchmarks.hourly import HourlyLocal, HourlyWindows, Streaming
from benchmarks.jvm_reading import JvmRead
from benchmarks.one_window import WAKE_RECORDS, Connector, day_window, wake_workers
from benchmarks.sessions import spark_session
from benchmarks.usage import peak_memory_bytes
from benchmarks.values import Comparison, Contender, Job, Outcome, Place, Work
from kafka_ordered_ops import ClientSettings, Earliest, OrderedReader, OrderedWindows, Window
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.settings import ReaderKind
from kafka_ordered_ops.output.writing.stage import stage_window
from kafka_ordered_ops.spark import read_window, write_window

READERS: Final = "readers"
#: The 24 windows of a day in one pass, and records of 1 KB: comparisons of their own, as all processes of one
#: comparison live at the same time, and those with a Spark take a gigabyte each.
READERS_DAY: Final = "readers-day"
READERS_KILOBYTES: Final = "readers-1kb"
JAVA: Final = "ConsumerPerformance"
CONNECTOR: Final = "connector: window to Parquet"
CONNECTOR_ORDERED: Final = "connector: window in order"
STREAMING: Final = "connector: 24 hours in one streaming query"

#: Of plain reads: what reading alone took.
CPU_A_MILLION: Final = "CPU s for a million records"
#: Records of 1 KB: as many bytes as of 100 B, times two.
KILOBYTE: Final = 1_000
_KILOBYTE_ONE_OF: Final = 5


class Task(StrEnum):
    """What is done by either reader."""

    #: All columns, of all partitions, in no order.
    READ = "to Arrow"
    READ_KILOBYTES = "to Arrow, 1 KB"
    #: Offsets and timestamps, as planning reads them.
    SCAN = "scan"
    ORDERED = "ordered read"
    LOCAL = "window to Parquet, local"
    LOCAL_ORDERED = "window in order, local"
    PYTHON = "window to Parquet, python"
    PYTHON_ORDERED = "window in order, python"
    #: The 24 windows of a day in one pass.
    HOURS_LOCAL = "24 hours, local"
    HOURS_PYTHON = "24 hours, python"


def name_of(task: Task, reader: ReaderKind) -> str:
    """Return a contender's name."""
    return f"{reader}: {task}"


def readers_comparisons(records: int) -> Iterator[Comparison]:
    """Each task by both readers, where the native one is installed, and what others do."""
    day, kilobytes = (Task.HOURS_LOCAL, Task.HOURS_PYTHON), (Task.READ_KILOBYTES,)
    prepare = partial(_prepare, records)
    contenders = [
        *_by_each_reader([task for task in Task if task not in (*day, *kilobytes)], records),
        Contender(JAVA, records, ReadByJava(records)),
        Contender(CONNECTOR, records, Connector(records)),
        Contender(CONNECTOR_ORDERED, records, Connector(records, ordered=True)),
    ]
    yield Comparison(READERS, tuple(contenders), prepare)
    streaming = Contender(STREAMING, records, Streaming(records, one_query=True))
    yield Comparison(READERS_DAY, (*_by_each_reader(day, records), streaming), prepare)
    yield Comparison(READERS_KILOBYTES, tuple(_by_each_reader(kilobytes, records)), prepare)


def _by_each_reader(tasks: Iterable[Task], records: int) -> list[Contender]:
    kinds = [ReaderKind.LIBRDKAFKA]
    if find_spec("kafka_ordered_ops_native") is not None:
        kinds.append(ReaderKind.NATIVE)
    return [_contender(task, kind, records) for task in tasks for kind in kinds]


def _contender(task: Task, kind: ReaderKind, records: int) -> Contender:
    job: Job
    match task:
        case Task.HOURS_LOCAL:
            job = HourlyLocal(records, kind)
        case Task.HOURS_PYTHON:
            job = HourlyWindows(records, one_pass=True, reader=kind)
        case Task.READ_KILOBYTES:
            records //= _KILOBYTE_ONE_OF
            job = ReadBy(records, task, kind, KILOBYTE)
        case _:
            job = ReadBy(records, task, kind)
    return Contender(name_of(task, kind), records, job)


@dataclass(frozen=True)
class ReadBy:
    """Does a task by one of the readers."""

    records: int
    task: Task
    kind: ReaderKind
    value_bytes: int = VALUE_BYTES

    def start(self, place: Place) -> Work:
        """Starts Spark where it is used."""
        settings = ClientSettings.of({"bootstrap.servers": place.bootstrap, "reader": self.kind})
        match self.task:
            case Task.READ | Task.READ_KILOBYTES | Task.SCAN:
                return Work(lambda _: self._read(settings))
            case Task.ORDERED:
                return Work(lambda _: self._in_order(settings))
            case Task.PYTHON | Task.PYTHON_ORDERED:
                spark = spark_session(f"readers-{self.kind}")
                return Work(
                    lambda round_: self._window(settings, place, round_, python=True),
                    partial(wake_workers, spark, place),
                )
            case _:
                return Work(lambda round_: self._window(settings, place, round_))

    def _read(self, settings: ClientSettings) -> Outcome:
        with OrderedWindows(settings, "bench-readers") as windows:
            topic = topic_of(self.records, self.value_bytes)
            day = Window([topic], cutoff=DAY_START + DAY, starting_offsets=Earliest())
            plan = windows.preview(day, "day")
        started, cpu_started = time.perf_counter(), time.process_time()
        with open_reader(settings, plan.group_id, plan.isolation, plan.taken) as reader:
            if self.task is Task.SCAN:
                rows = sum(batch.offsets.size for batch in reader.timestamps())
            else:
                rows = sum(batch.num_rows for batch in reader.batches())
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
        figures = {CPU_A_MILLION: cpu_s * 1_000_000 / rows}
        return Outcome(seconds, rows, figures=figures, memory_bytes=peak_memory_bytes())

    def _in_order(self, settings: ClientSettings) -> Outcome:
        started = time.perf_counter()
        with OrderedReader(settings, topic_of(self.records), until=DAY_START + DAY) as batches:
            rows = sum(batch.num_rows for batch in batches)
        return Outcome(time.perf_counter() - started, rows, memory_bytes=peak_memory_bytes())

    def _window(
        self, settings: ClientSettings, place: Place, round_: int, *, python: bool = False
    ) -> Outcome:
        out = place.folder / f"round-{round_}"
        ordered = self.task in (Task.LOCAL_ORDERED, Task.PYTHON_ORDERED)
        with OrderedWindows(settings, f"bench-{uuid.uuid4().hex[:12]}") as windows:
            plan = windows.plan(day_window(self.records), "day")
            started = time.perf_counter()
            if python:
                spark = spark_session(f"readers-{self.kind}")
                frame = read_window(spark, plan, windows.settings, ordered=ordered, engine="python")
                write_window(frame, out, plan, ordered=ordered)
            else:
                stage_window(plan, windows.settings, out, ordered=ordered)
            seconds = time.perf_counter() - started
            windows.abandon(plan)
        shutil.rmtree(out)
        return Outcome(seconds, plan.offsets, memory_bytes=peak_memory_bytes())


@dataclass(frozen=True)
class ReadByJava:
    """Runs Kafka's tool, which may count some records more than it is asked for: their share of the time is taken off."""

    records: int

    def start(self, place: Place) -> Work:
        """Finds Java and the jars."""
        work = JvmRead(topic_of(self.records), self.records, tuned=True).start(place)

        def run(round_: int) -> Outcome:
            outcome = work.run(round_)
            share = self.records / outcome.records
            return replace(outcome, seconds=share * outcome.seconds, records=self.records)

        return Work(run)


def _prepare(records: int, place: Place) -> None:
    for size in {WAKE_RECORDS, records}:
        make_backlog(place.bootstrap, size)
    make_backlog(place.bootstrap, records // _KILOBYTE_ONE_OF, value_bytes=KILOBYTE)
