"""The JVM engine: Spark's own Kafka connector on a real Spark and a real broker, its traps and its errors."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kafka_ordered_ops import (
    AuthorizationError,
    BrokerUnreachableError,
    ClientSettings,
    KafkaOrderedOpsError,
    PartitionSetChangedError,
    ReadError,
    ReadTimeoutError,
    RecordsLostError,
    UnknownTopicError,
    WindowPlan,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.embedded import EmbeddedKafka, Listener, free_port
from kafka_ordered_ops.ordered.records.pieces import pieces_of
from kafka_ordered_ops.spark import read_window
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.spark.read.connector import jvm_frame
from tests.conftest import Produce
from tests.support.spark_support import CUTOFF_MS, part_of, plan_of, settings_of, spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = [
    pytest.mark.spark41,
    pytest.mark.timeout(600),
    # PySpark 4.1 leaves the socket of a `collect` for the garbage collector to close.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

MakeTopic = Callable[..., str]
PASSWORD = 'canary-s3cret"\\ x'
WRONG = "canary-wr0ng"
_STALL_S = 4.0


def read(
    spark: SparkSession,
    plan: WindowPlan,
    settings: ClientSettings,
    *,
    isolation: Isolation = Isolation.READ_COMMITTED,
) -> DataFrame:
    """The plan's records by the JVM engine, with short waits."""
    return jvm_frame(
        spark,
        pieces_of([plan]),
        settings,
        group_id="orders-hourly",
        isolation=isolation,
        stall_timeout_s=_STALL_S,
    )


def failure(frame: DataFrame) -> KafkaOrderedOpsError | None:
    """The named error of a read that must fail."""
    with pytest.raises(Exception, match="kafka") as raised:
        frame.collect()
    return named_error(raised.value)


def whole(topic: str, end: int, *, partition: int = 0) -> WindowPlan:
    """A plan of one partition's offsets below `end`."""
    return plan_of([part_of(topic, partition, OffsetSet.of((0, end)))])


def test_records_deleted_after_the_plan_are_named_lost(
    bootstrap: str, topic: MakeTopic, produce: Produce, spark: SparkSession
) -> None:
    """A log start that has passed the plan's start stops the read: nothing is skipped in silence."""
    name = topic()
    produce((name, 0, None, b"x", CUTOFF_MS - 1, ()) for _ in range(10))
    frame = read(spark, whole(name, 10), settings_of(bootstrap))
    assert frame.count() == 10
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([ck.TopicPartition(name, 0, 5)]).values():
        future.result(30)
    error = failure(frame)
    assert isinstance(error, RecordsLostError)
    assert f"{name}[0] from offset 0 to 10" in str(error)
    rest = plan_of([part_of(name, 0, OffsetSet.of((5, 10)))])
    assert read(spark, rest, settings_of(bootstrap)).count() == 5


def test_a_log_that_ends_below_the_plan_is_named(
    bootstrap: str, topic: MakeTopic, produce: Produce, spark: SparkSession
) -> None:
    """Wanted offsets that are not in the log, or not yet for a transaction's sake, never read as none."""
    name = topic()
    produce((name, 0, None, b"x", CUTOFF_MS - 1, ()) for _ in range(3))
    assert isinstance(
        failure(read(spark, whole(name, 7), settings_of(bootstrap))),
        RecordsLostError | ReadTimeoutError,
    )
    open_ = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"open-{name}"})
    open_.init_transactions(30)
    open_.begin_transaction()
    open_.produce(name, partition=0, value=b"pending")
    open_.flush()
    plan = whole(name, 4)
    pending = failure(read(spark, plan, settings_of(bootstrap)))
    assert isinstance(pending, RecordsLostError | ReadTimeoutError)
    dirty = read(spark, plan, settings_of(bootstrap), isolation=Isolation.READ_UNCOMMITTED)
    assert dirty.count() == 4
    open_.abort_transaction(30)
    assert read(spark, plan, settings_of(bootstrap)).count() == 3


def test_a_topic_or_partition_that_is_gone_is_named(
    bootstrap: str, topic: MakeTopic, spark: SparkSession
) -> None:
    """The connector's own words become this package's errors."""
    settings = settings_of(bootstrap)
    assert isinstance(failure(read(spark, whole("never-made", 5), settings)), UnknownTopicError)
    other = whole(topic(), 5, partition=7)
    assert isinstance(failure(read(spark, other, settings)), PartitionSetChangedError)


def test_a_broker_that_is_away_is_named(spark: SparkSession) -> None:
    """Nobody answers, or the name leads nowhere: retriable, after no more than the stall time."""
    for address in ("127.0.0.1:1", "no-such-host.invalid:9092"):
        error = failure(read(spark, whole("orders", 5), settings_of(address)))
        assert isinstance(error, BrokerUnreachableError)
        assert error.retriable


def test_times_come_over_exactly_or_not_at_all(
    bootstrap: str, topic: MakeTopic, produce: Produce, spark: SparkSession
) -> None:
    """From 1900 on as they are, negative ones too; what the connector would move, and Spark not hold, is an error."""
    any_time = str((1 << 63) - 1)
    bounds = ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms")
    name = topic(config=dict.fromkeys(bounds, any_time))
    times = [-1, -2, CUTOFF_MS, -2_100_000_000_000, 253_402_300_800_000, 9_223_372_036_854_775]
    odd = [-12_219_292_800_001, -62_135_596_800_001, 1 << 60]
    for time_ms in (*times, *odd):
        # One by one: a batch of the client's is refused or taken as a whole.
        produce([(name, 0, None, b"x", time_ms, ())])
    settings = settings_of(bootstrap)
    plan = whole(name, len(times))
    columns = ("offset", "unix_millis(timestamp)", "timestamp_type")
    rows = [tuple(row) for row in read(spark, plan, settings).selectExpr(*columns).collect()]
    assert sorted(rows) == [(offset, time_ms, 0) for offset, time_ms in enumerate(times)]
    python = read_window(spark, plan, settings).selectExpr(*columns).collect()
    assert sorted(map(tuple, python)) == sorted(rows)
    first = len(times)
    for offset in range(first, first + len(odd)):
        wanted = plan_of([part_of(name, 0, OffsetSet.of((offset, offset + 1)))])
        error = failure(read(spark, wanted, settings))
        assert type(error) is ReadError
        assert "stamped b" in str(error)
    around = plan_of([part_of(name, 0, OffsetSet.of((0, first), (first + 1, first + 1)))])
    assert read(spark, around, settings).count() == first
    beside = plan_of([part_of(name, 0, OffsetSet.of((2, 3), (first - 1, first)))])
    assert read(spark, beside, settings).where("not late").count() == 2


@dataclass(frozen=True)
class Guarded:
    """A broker with a password and access rules, where the job may read one topic and nothing else."""

    job: dict[str, str]
    topic: str
    forbidden: str


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """The broker, with ten records in the topic."""
    port = free_port()
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.guarded.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_job="{escaped}";'
        ),
    }
    with EmbeddedKafka(
        properties, listeners=[Listener("GUARDED", port, "SASL_PLAINTEXT")]
    ) as kafka:
        topic, forbidden = (f"{name}-{uuid.uuid4().hex}" for name in ("open", "shut"))
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        new = [NewTopic(name, 1, 1, config={"retention.ms": "-1"}) for name in (topic, forbidden)]
        for made in admin.create_topics(new).values():
            made.result(30)
        rights = [
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                "User:job",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in (AclOperation.READ, AclOperation.DESCRIBE)
        ]
        for given in admin.create_acls(rights).values():
            given.result(30)
        producer = ck.Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
        for _ in range(10):
            producer.produce(topic, b"x", partition=0, timestamp=CUTOFF_MS - 1)
        assert producer.flush(30) == 0
        job = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "job",
            "sasl.password": PASSWORD,
        }
        yield Guarded(job, topic, forbidden)


def test_a_missing_right_is_named_and_the_group_needs_none(
    guarded: Guarded, spark: SparkSession
) -> None:
    """Read and Describe on the topic are enough; without them the error is no retriable one."""
    settings = ClientSettings.from_mapping(guarded.job)
    assert read(spark, whole(guarded.topic, 10), settings).count() == 10
    error = failure(read(spark, whole(guarded.forbidden, 10), settings))
    assert isinstance(error, AuthorizationError | UnknownTopicError)
    assert not error.retriable


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_secrets_are_shown_nowhere(guarded: Guarded, tmp_path: Path, kind: str) -> None:
    """Not by explain, errors, the driver's log or the event log, on which web pages draw; Connect refuses them."""
    plan = whole(guarded.topic, 10)
    arguments = [plan.to_text(), json.dumps(guarded.job), WRONG, str(tmp_path), kind]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.jvm_secrets", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if kind == "classic":
        assert "records: 10\n" in done.stdout
        assert "named: AuthenticationError" in done.stdout
        assert "sasl.jaas.config = [hidden]" in done.stderr, "the log is not what it was taken for"
    else:
        assert (
            "refused: engine 'connector' does not accept sasl.password over Spark Connect"
            in done.stdout
        )
    logs = [path for path in tmp_path.rglob("events_*") if path.is_file()]
    assert logs
    for text in (done.stdout, done.stderr, *(path.read_text() for path in logs)):
        assert "canary" not in text
