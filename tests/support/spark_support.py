"""A Spark session, random records on a real broker, and plans by hand."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
import pytest

from kafka_ordered_ops import ClientSettings, Window, WindowPlan
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.time_ranges import NO_STEPS, LateSteps, TimeRange
from kafka_ordered_ops.core.types import (
    INT64_MIN,
    Isolation,
    PlanContent,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window.plan import PartitionPlan
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.roots import locking
from kafka_ordered_ops.spark.read.engines import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The newest Spark for which the Kafka connector, Delta and Iceberg have all been released.
_SPARK41 = "4.1.3"

CUTOFF_MS = 1_790_000_000_000
_TRANSACTION_TIMEOUT_S = 30.0


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small session for all tests: starting one takes seconds."""
    from kafka_ordered_ops.spark.session import local_session

    conf = spark41_conf() if on_spark41() else {}
    # Else below the folder in which the tests are run.
    conf["spark.sql.warehouse.dir"] = str(tmp_path_factory.mktemp("warehouse"))
    session = local_session("tests", cores=2, memory="1g", java_home=_java_home(), conf=conf)
    yield session
    session.stop()


def on_spark41() -> bool:
    """Whether this is the environment of ``make test-spark41``."""
    return version("pyspark") == _SPARK41


#: The engines that this environment has.
ENGINES = [engine for engine in Engine if engine is not Engine.CONNECTOR or on_spark41()]


def spark41_jars() -> list[Path]:
    """The Kafka connector, Delta and Iceberg for Spark 4.1: a class path."""
    from kafka_ordered_ops.embedded.jars import listed_jars

    return listed_jars(Path(__file__).with_name("spark41.sha256"), f"spark-{_SPARK41}")


def spark41_conf() -> dict[str, str]:
    """A session's settings that have these jars, and Delta and Iceberg at work."""
    return {
        "spark.jars": ",".join(map(str, spark41_jars())),
        "spark.sql.extensions": (
            "io.delta.sql.DeltaSparkSessionExtension,"
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def _java_home() -> Path | None:
    return None if shutil.which("java") else Path(java_home())


def java_home() -> str:
    """The Java of sessions in other processes."""
    from kafka_ordered_ops.embedded import java_home_for_spark

    return os.environ.get("JAVA_HOME") or str(java_home_for_spark())


@dataclass(frozen=True, order=True)
class Row:
    """One record, in the total order; what it holds takes no part in the order."""

    timestamp_ms: int
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Row:
        """A row from Arrow's or Spark's fields, with the time as ``timestamp_ms``."""
        headers = fields["headers"]
        return cls(
            timestamp_ms=fields["timestamp_ms"],
            topic=fields["topic"],
            partition=fields["partition"],
            offset=fields["offset"],
            key=_bytes(fields["key"]),
            value=_bytes(fields["value"]),
            headers=(
                None
                if headers is None
                else tuple((header["key"], _bytes(header["value"])) for header in headers)
            ),
        )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def settings_of(bootstrap: str, **extra: str) -> ClientSettings:
    """Client settings for the test broker."""
    return ClientSettings.from_mapping({"bootstrap.servers": bootstrap, **extra})


def fill(bootstrap: str, topic: str, partitions: int, *, seed: int, rounds: int = 12) -> None:
    """Random records: few distinct times, in no order; keys, values and headers of every kind; aborts."""
    rng = random.Random(seed)
    headers: list[Any] = [[], [("a", b"1"), ("a", None), ("b", b"")], [("é", b"\x00")]]
    plain = ck.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    transactional = ck.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"fill-{topic}"}
    )
    transactional.init_transactions(_TRANSACTION_TIMEOUT_S)
    for _ in range(rounds):
        kind = rng.choice(["plain", "commit", "abort"])
        producer = plain if kind == "plain" else transactional
        if kind != "plain":
            producer.begin_transaction()
        for _ in range(rng.randrange(1, 40)):
            producer.produce(
                topic,
                partition=rng.randrange(partitions),
                timestamp=CUTOFF_MS - rng.randrange(1, 60),
                key=rng.choice([None, b"", rng.randbytes(4)]),
                value=rng.choice([None, b"", rng.randbytes(30)]),
                headers=rng.choice(headers),
            )
        producer.flush()
        if kind == "commit":
            transactional.commit_transaction(_TRANSACTION_TIMEOUT_S)
        elif kind == "abort":
            transactional.abort_transaction(_TRANSACTION_TIMEOUT_S)


def visible(bootstrap: str, topic: str, partitions: int) -> tuple[list[Row], dict[int, int]]:
    """All committed records as a plain client reads them, in total order, and the ends of the log."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"visible-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([ck.TopicPartition(topic, n, 0) for n in range(partitions)])
    rows, ends = [], dict[int, int]()
    while len(ends) < partitions:
        for message in consumer.consume(500, 0.2):
            partition, offset = message.partition() or 0, message.offset() or 0
            if (error := message.error()) is not None:
                assert error.code() == ck.KafkaError._PARTITION_EOF
                ends[partition] = offset
                continue
            headers: Any = message.headers()
            rows.append(
                Row(
                    timestamp_ms=message.timestamp()[1],
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    key=message.key(),
                    value=message.value(),
                    headers=tuple(headers) if headers else None,
                )
            )
    consumer.close()
    return sorted(rows, key=position), ends


def position(row: Row) -> tuple[int, str, int, int]:
    """A row's place in the total order."""
    return row.timestamp_ms, row.topic, row.partition, row.offset


def part_of(
    topic: str,
    partition: int,
    taken: OffsetSet,
    *,
    head_end: int | None = 0,
    late: LateSteps = NO_STEPS,
) -> PartitionPlan:
    """One partition's share of a plan."""
    return PartitionPlan(
        tp=TopicPartition(topic, partition),
        topic_id="",
        taken=taken,
        lost=EMPTY_SET,
        decided_end=taken.end if taken else 0,
        head_end=head_end,
        late=late,
    )


def plan_of(
    parts: Sequence[PartitionPlan],
    *,
    window_id: str = "2026-09-21T14-00",
    attempt: int = 1,
    content: PlanContent | None = None,
) -> WindowPlan:
    """A plan of these shares."""
    empty = not any(part.taken for part in parts)
    return WindowPlan(
        group_id="orders-hourly",
        window_id=window_id,
        window=Window(
            sorted({part.tp.topic for part in parts}) or ["orders"],
            cutoff=datetime.fromtimestamp(CUTOFF_MS / 1000, UTC),
            isolation=Isolation.READ_COMMITTED,
        ),
        claim_id="claim1",
        attempt=attempt,
        status=WindowStatus.PLANNED,
        content=content or (PlanContent.EMPTY if empty else PlanContent.RECORDS),
        planned_at_ms=CUTOFF_MS,
        partitions=tuple(parts),
    )


@dataclass(frozen=True)
class Case:
    """A plan that takes some random records, and what it must deliver, in order."""

    plan: WindowPlan
    rows: list[Row]
    late: set[tuple[str, int, int]]
    #: None: the plan does not know of each record whether it is one.
    out_of_order: int | None


@dataclass(frozen=True)
class Log:
    """Topics with random records: what a plain client sees of them."""

    #: Not shown: some hundred of them would hide why an example fails.
    rows: list[Row] = field(repr=False)
    ends: dict[TopicPartition, int]

    @classmethod
    def fill(cls, bootstrap: str, topics: Mapping[str, int], rng: random.Random) -> Log:
        """Fills topics (name -> partitions) with records of every kind."""
        rows, all_ends = list[Row](), dict[TopicPartition, int]()
        for topic, partitions in topics.items():
            fill(bootstrap, topic, partitions, seed=rng.randrange(1 << 30))
            found, ends = visible(bootstrap, topic, partitions)
            rows += found
            all_ends |= {TopicPartition(topic, n): end for n, end in ends.items()}
        return cls(sorted(rows, key=position), all_ends)

    def cases(self, rng: random.Random, windows: int) -> list[Case]:
        """Windows that take random offsets, in runs beside and between one another; some may take nothing."""
        parts: list[list[PartitionPlan]] = [[] for _ in range(windows)]
        for tp, end in self.ends.items():
            for mine, taken in zip(parts, _dealt(end, rng, windows), strict=True):
                step, before_ms = rng.randrange(max(1, end)), CUTOFF_MS - rng.randrange(60)
                late = NO_STEPS.with_step(step, TimeRange(INT64_MIN, before_ms))
                head_end = rng.choice([*[rng.randrange(max(1, end))] * 9, None])
                mine.append(part_of(tp.topic, tp.partition, taken, head_end=head_end, late=late))
        plans = [plan_of(mine, window_id=f"2026-09-{n:02d}@e") for n, mine in enumerate(parts, 1)]
        return [self.case(plan) for plan in plans]

    def case(self, plan: WindowPlan) -> Case:
        """What a plan must deliver, record by record."""
        parts = {part.tp: part for part in plan}
        rows, late, out_of_order = list[Row](), set[tuple[str, int, int]](), 0
        for row in self.rows:
            part = parts.get(TopicPartition(row.topic, row.partition))
            if part is None or row.offset not in part.taken:
                continue
            rows.append(row)
            out_of_order += part.head_end is not None and row.offset >= part.head_end
            if any(
                row.offset >= offset and times.since_ms <= row.timestamp_ms < times.before_ms
                for times, offset in part.late.pieces
            ):
                late.add((row.topic, row.partition, row.offset))
        return Case(plan, rows, late, out_of_order if plan.tells_out_of_order else None)


def _dealt(end: int, rng: random.Random, windows: int) -> list[OffsetSet]:
    """The offsets below `end`, run by run to some window or to none."""
    runs: list[list[tuple[int, int]]] = [[] for _ in range(windows)]
    start = 0
    while start < end:
        stop = min(end, start + rng.randrange(1, 15))
        owner = rng.randrange(-1, windows)
        if owner >= 0:
            runs[owner].append((start, stop))
        start = stop
    return [OffsetSet.from_ranges(mine) for mine in runs]


def random_case(bootstrap: str, topics: Mapping[str, int], *, seed: int) -> Case:
    """Fills topics (name -> partitions) and takes a random set of offsets of each partition."""
    rng = random.Random(seed)
    (case,) = Log.fill(bootstrap, topics, rng).cases(rng, windows=1)
    return case


class Crash(Exception):
    """The process is gone."""


class CrashingFiles(LocalFiles):
    """A file system on which the process dies just before, or just after, its n-th change.

    Where that is the removal of a folder, "before" is in the midst of it: the data is gone, the marker is not.
    """

    def __init__(self, at: int, *, after: bool) -> None:
        super().__init__()
        self.left, self.after = at, after

    def _step(self, change: Callable[..., None], *arguments: Any) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crash
        change(*arguments)
        if self.left == 0:
            raise Crash

    def write(self, path: str, content: bytes, *, durable: bool = True) -> None:
        self._step(partial(super().write, durable=durable), path, content)

    def make_folder(self, path: str, *, durable: bool = True) -> None:
        self._step(partial(super().make_folder, durable=durable), path)

    def rename(self, source: str, target: str) -> None:
        self._step(super().rename, source, target)

    def exchange(self, one: str, other: str) -> bool:
        exchanged = list[bool]()
        self._step(lambda: exchanged.append(super(CrashingFiles, self).exchange(one, other)))
        return exchanged[0]

    def move(self, source: str, target: str) -> None:
        self._step(super().move, source, target)

    def remove(self, path: str) -> None:
        if self.left == 1 and not self.after:
            for data in Path(path).glob("part-*.*"):
                data.unlink()
        self._step(super().remove, path)

    def remove_if_empty(self, folder: str) -> None:
        self._step(super().remove_if_empty, folder)

    def settle(self, folder: str, *, names: bool = True) -> None:
        self._step(partial(super().settle, names=names), folder)


@contextmanager
def crash_at(at: int, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> Iterator[list[Crash]]:
    """The block dies at its n-th change to the file system, if it has so many; gives the crash once it came."""
    crashed: list[Crash] = []
    with monkeypatch.context() as patch:
        patch.setattr(locking, "files_for", lambda *_: CrashingFiles(at, after=after))
        try:
            yield crashed
        except Crash as crash:
            crashed.append(crash)


def crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, after: bool, least: int
) -> Iterator[tuple[Path, AbstractContextManager[None]]]:
    """A fresh folder, and a block that dies at its n-th change: for every n, until a block comes through."""
    came_through = False

    @contextmanager
    def block(at: int) -> Iterator[None]:
        nonlocal came_through
        with crash_at(at, monkeypatch, after=after) as crashed:
            yield
        came_through = not crashed

    for at in itertools.count(1):
        yield tmp_path / str(at), block(at)
        if came_through:
            assert at > least, f"only {at - 1} changes"
            return
