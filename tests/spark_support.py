"""A Spark session, random records on a real broker, and plans by hand."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
import pytest

from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.plan import LateSteps, PartitionPlan, WindowPlan
from kafka_ordered_ops.core.types import Isolation, PlanContent, TopicPartition, WindowStatus
from kafka_ordered_ops.core.window import Window
from kafka_ordered_ops.kafka.settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CUTOFF_MS = 1_790_000_000_000
_TRANSACTION_TIMEOUT_S = 30.0


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One small session for all tests: starting one takes seconds."""
    from kafka_ordered_ops.spark.session import local_session

    session = local_session("tests", cores=2, memory="1g", java_home=_java_home())
    yield session
    session.stop()


def _java_home() -> Path | None:
    if shutil.which("java"):
        return None
    from kafka_ordered_ops.embedded import java_home_for_spark

    return Path(java_home_for_spark())


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
    plain = ck.Producer({"bootstrap.servers": bootstrap})
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
    head_end: int = 0,
    late: LateSteps | None = None,
) -> PartitionPlan:
    """One partition's share of a plan."""
    return PartitionPlan(
        tp=TopicPartition(topic, partition),
        topic_id="",
        taken=taken,
        lost=EMPTY_SET,
        decided_end=taken.end if taken else 0,
        head_end=head_end,
        late=late or LateSteps(),
    )


def plan_of(
    parts: Sequence[PartitionPlan],
    *,
    window_id: str = "2026-09-21T14:00",
    attempt: int = 1,
    content: PlanContent | None = None,
) -> WindowPlan:
    """A plan of these shares."""
    empty = not any(part.taken for part in parts)
    return WindowPlan(
        group="orders-hourly",
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
    """Random records of two topics, a plan that takes some, and what it must deliver, in order."""

    plan: WindowPlan
    rows: list[Row]
    late: set[tuple[str, int, int]]
    stragglers: int


def random_case(bootstrap: str, topics: Mapping[str, int], *, seed: int) -> Case:
    """Fills topics (name -> partitions) and takes a random set of offsets of each partition."""
    rng = random.Random(seed)
    parts, rows, late, stragglers = [], list[Row](), set[tuple[str, int, int]](), 0
    for topic, partitions in topics.items():
        fill(bootstrap, topic, partitions, seed=rng.randrange(1 << 30))
        found, ends = visible(bootstrap, topic, partitions)
        for partition, end in ends.items():
            taken = OffsetSet.from_ranges(
                (start, start + rng.randrange(1, 15))
                for start in range(0, end, rng.randrange(8, 20))
            ).within(0, end)
            step, before_ms = rng.randrange(max(1, end)), CUTOFF_MS - 30
            head_end = rng.randrange(max(1, end))
            steps = LateSteps((step,), (before_ms,))
            parts.append(part_of(topic, partition, taken, head_end=head_end, late=steps))
            mine = [row for row in found if row.partition == partition and row.offset in taken]
            rows += mine
            late |= {
                (topic, partition, row.offset)
                for row in mine
                if row.offset >= step and row.timestamp_ms < before_ms
            }
            stragglers += sum(row.offset >= head_end for row in mine)
    return Case(plan_of(parts), sorted(rows, key=position), late, stragglers)
