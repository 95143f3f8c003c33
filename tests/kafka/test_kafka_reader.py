from __future__ import annotations

import pickle
import random
import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import (
    BrokerUnreachableError,
    ClientSettings,
    ConfigError,
    CorruptRecordError,
    ReadTimeoutError,
    RecordsLostError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.record_schema import CREATE_TIME, LOG_APPEND_TIME, RECORD_SCHEMA
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.read.reader import JUMP_OFFSETS_MIN
from kafka_ordered_ops.kafka.settings import ReaderKind
from tests.conftest import MakeTopic
from tests.support.logs import read_ranges
from tests.support.readers import READERS
from tests.support.wire import write_batch

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
Wanted = dict[TopicPartition, OffsetSet]


@pytest.fixture(params=READERS)
def settings(bootstrap: str, request: pytest.FixtureRequest) -> ClientSettings:
    """The broker's address, and what reads."""
    return ClientSettings.from_mapping({"bootstrap.servers": bootstrap, "reader": request.param})


def write(settings: ClientSettings, tp: TopicPartition, values: Iterable[object]) -> None:
    """Plain records, one for each value, stamped 1,000 ms and on."""
    producer = Producer(settings.producer(queue_buffering_max_messages=1_000_000))
    for stamp, value in enumerate(values, start=1_000):
        producer.produce(tp.topic, str(value), partition=tp.partition, timestamp=stamp)
    assert producer.flush(30) == 0


def transact(
    settings: ClientSettings, tp: TopicPartition, values: Iterable[object], *, commit: bool
) -> None:
    """One transaction: its records take one offset each, and its marker one more."""
    producer = Producer(settings.producer(transactional_id=f"koo.{tp.topic}.{tp.partition}"))
    producer.init_transactions(10)
    producer.begin_transaction()
    for value in values:
        producer.produce(tp.topic, str(value), partition=tp.partition)
    producer.flush(10)
    if commit:
        producer.commit_transaction(10)
    else:
        producer.abort_transaction(10)


def offsets_of(batch: pa.RecordBatch) -> list[int]:
    """The batch's offsets as plain numbers."""
    offsets: list[int] = batch["offset"].to_numpy(zero_copy_only=False).tolist()
    return offsets


def read(
    settings: ClientSettings, wanted: Wanted, isolation: Isolation = COMMITTED, **options: Any
) -> dict[TopicPartition, list[int]]:
    """The offsets that came, by partition and in the order in which they came; both ways agree."""
    came: dict[TopicPartition, list[int]] = {}
    for batch in read_ranges(settings, "g", isolation, wanted, stall_timeout_s=20, **options):
        row = batch.slice(0, 1).to_pylist()[0]
        tp = TopicPartition(row["topic"], row["partition"])
        assert set(batch["partition"].to_pylist()) == {tp.partition}
        came.setdefault(tp, []).extend(offsets_of(batch))
    scanned: dict[TopicPartition, list[int]] = {}
    with open_reader(settings, "g", isolation, wanted, stall_timeout_s=20, **options) as reader:
        for part in reader.timestamps():
            assert len(part.offsets) == len(part.timestamps_ms)
            if len(part.offsets):
                assert part.offsets[-1] < part.position <= wanted[part.tp].end
                scanned.setdefault(part.tp, []).extend(part.offsets.tolist())
        assert reader.positions == {tp: offsets.end for tp, offsets in wanted.items() if offsets}
    assert scanned == came
    return came


@pytest.mark.slow
def test_a_record_comes_back_as_it_was_written(settings: ClientSettings, topic: MakeTopic) -> None:
    """Null and empty differ, header keys repeat in order, header values may be null."""
    name = topic()
    headers: list[tuple[str, str | bytes | None]] = [
        ("a", b"1"),
        ("b", None),
        ("a", b""),
        ("é", b"\xff"),
    ]
    producer = Producer(settings.producer())
    producer.produce(name, b"value", b"key", timestamp=5, headers=headers)
    producer.produce(name, None, None, timestamp=6)
    producer.produce(name, b"", b"", timestamp=7, headers=[])
    producer.flush(10)
    wanted = {TopicPartition(name, 0): OffsetSet.of((0, 3))}
    table = pa.Table.from_batches(read_ranges(settings, "g", COMMITTED, wanted))
    assert table.schema == RECORD_SCHEMA
    table.validate(full=True)
    first, second, third = table.to_pylist()
    assert (first["key"], first["value"], first["timestamp_type"]) == (
        b"key",
        b"value",
        CREATE_TIME,
    )
    assert [(one["key"], one["value"]) for one in first["headers"]] == headers
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)
    assert (third["key"], third["value"], third["headers"]) == (b"", b"", None)
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [5, 6, 7]


def test_a_header_that_is_no_text(
    settings: ClientSettings, bootstrap: str, topic: MakeTopic
) -> None:
    """The error names its record, the first of several, and the records around it can be read."""
    name = topic()
    tp = TopicPartition(name, 0)
    write(settings, tp, range(3))
    for _ in range(2):
        write_batch(bootstrap, name, [1], header=b"\xff\xfe")
    write(settings, tp, range(3))
    with pytest.raises(CorruptRecordError, match=rf"{name}\[0]@3 is not UTF-8"):
        list(read_ranges(settings, "g", COMMITTED, {tp: OffsetSet.of((0, 8))}))
    around = {tp: OffsetSet.of((0, 3), (5, 8))}
    table = pa.Table.from_batches(read_ranges(settings, "g", COMMITTED, around))
    assert table["offset"].to_pylist() == [0, 1, 2, 5, 6, 7]


@pytest.mark.parametrize("name_of_header", [b"nul\0l", b"\0", b"end\0"])
def test_a_header_whose_name_the_client_cuts(
    settings: ClientSettings, bootstrap: str, topic: MakeTopic, name_of_header: bytes
) -> None:
    """It is never handed out under another name: librdkafka's reader finds and names it, and the native one has it whole."""
    name = topic()
    tp = TopicPartition(name, 0)
    write(settings, tp, range(3))
    write_batch(bootstrap, name, [1], header=b"whole")
    write_batch(bootstrap, name, [1], header=name_of_header)
    if settings.reader is ReaderKind.NATIVE:
        whole = pa.Table.from_batches(
            read_ranges(settings, "g", COMMITTED, {tp: OffsetSet.of((0, 5))})
        )
        [header] = whole.to_pylist()[4]["headers"]
        assert header["key"] == name_of_header.decode()
        return
    with pytest.raises(CorruptRecordError, match=rf"{name}\[0]@4 has a NUL") as caught:
        list(read_ranges(settings, "g", COMMITTED, {tp: OffsetSet.of((0, 5))}))
    assert caught.value.unreadable == {str(tp): [(4, 5)]}
    without = read_ranges(settings, "g", COMMITTED, {tp: OffsetSet.of((0, 5))}, columns=["offset"])
    assert pa.Table.from_batches(without).num_rows == 5


def test_headers_of_every_size_are_whole(settings: ClientSettings, topic: MakeTopic) -> None:
    """No sound record is taken for one with a name that was cut, whatever its lengths."""
    name = topic()
    sizes = [0, 1, 63, 64, 65, 8_191, 8_192, 20_000]
    texts = [
        (letter * size)[:size] for size in sizes[1:] for letter in ("x", "\u00e9", "\U0001f600")
    ]
    headers: list[list[tuple[str, str | bytes | None]]] = [
        [(text, None), (text, b""), *((text, b"v" * size) for size in sizes), ("", b"v")]
        for text in texts
    ]
    producer = Producer(settings.producer())
    for one in headers:
        producer.produce(name, b"v", headers=one)
    producer.produce(name, b"v")
    assert producer.flush(30) == 0
    wanted = {TopicPartition(name, 0): OffsetSet.of((0, len(headers) + 1))}
    table = pa.Table.from_batches(read_ranges(settings, "g", COMMITTED, wanted))
    found = [
        [(pair["key"], pair["value"]) for pair in one or ()] for one in table["headers"].to_pylist()
    ]
    assert found == [*headers, []]


def test_odd_timestamps_are_data(settings: ClientSettings, topic: MakeTopic) -> None:
    """Zero, -1, negative and far future stamps come back as they are, in both readings."""
    name = topic(config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    stamps = [0, -1, -5, -62_135_596_800_000, 253_402_300_799_000, 7]
    producer = Producer(settings.producer())
    for stamp in stamps:
        producer.produce(name, b"v", timestamp=stamp)
    producer.flush(10)
    # For a stamp of zero the client puts its own clock: only the others can be compared.
    wanted = {TopicPartition(name, 0): OffsetSet.of((0, len(stamps)))}
    table = pa.Table.from_batches(read_ranges(settings, "g", COMMITTED, wanted))
    assert table["timestamp"].cast(pa.int64()).to_pylist()[1:] == stamps[1:]
    with open_reader(settings, "g", COMMITTED, wanted) as reader:
        scanned = np.concatenate([part.timestamps_ms for part in reader.timestamps()])
    assert scanned.tolist()[1:] == stamps[1:]


def test_append_time_is_told_from_create_time(settings: ClientSettings, topic: MakeTopic) -> None:
    """The type is each record's own: the topic's setting may have changed."""
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    write(settings, TopicPartition(name, 0), range(2))
    wanted = {TopicPartition(name, 0): OffsetSet.of((0, 2))}
    table = pa.Table.from_batches(read_ranges(settings, "g", COMMITTED, wanted))
    assert table["timestamp_type"].to_pylist() == [LOG_APPEND_TIME] * 2


@pytest.mark.slow
def test_markers_and_aborted_records_are_passed_wherever_they_lie(
    settings: ClientSettings, topic: MakeTopic
) -> None:
    """Ends on a marker, inside an aborted run, on nothing visible at all: each ends, and soon."""
    tp = TopicPartition(topic(), 0)
    transact(settings, tp, range(3), commit=True)  # 0-2, marker 3
    transact(settings, tp, range(4), commit=False)  # 4-7, marker 8
    write(settings, tp, range(2))  # 9-10
    transact(settings, tp, range(2), commit=False)  # 11-12, marker 13
    visible = [0, 1, 2, 9, 10]
    for start, end in [
        (0, 14),
        (0, 4),
        (0, 6),
        (3, 4),
        (4, 9),
        (5, 7),
        (8, 11),
        (11, 14),
        (13, 14),
    ]:
        expected = [offset for offset in visible if start <= offset < end]
        came = read(settings, {tp: OffsetSet.of((start, end))})
        assert came.get(tp, []) == expected, (start, end)
    uncommitted = read(settings, {tp: OffsetSet.of((0, 14))}, UNCOMMITTED)
    assert uncommitted == {tp: [0, 1, 2, 4, 5, 6, 7, 9, 10, 11, 12]}


@pytest.mark.slow
def test_any_set_of_offsets_is_read_exactly(settings: ClientSettings, topic: MakeTopic) -> None:
    """Random sets over several partitions and topics: each wanted record once, in order, no other."""
    rng = random.Random(3)
    names = [topic(partitions=2), topic(partitions=3)]
    partitions = [TopicPartition(names[0], n) for n in range(2)]
    partitions += [TopicPartition(names[1], n) for n in range(3)]
    for tp in partitions:
        write(settings, tp, range(3_000))
    for batch_records in (1, 7, 2_000):
        wanted = {}
        for tp in partitions:
            cuts = sorted(rng.sample(range(3_001), 2 * rng.randrange(0, 20)))
            wanted[tp] = OffsetSet.of(*zip(cuts[::2], cuts[1::2], strict=True))
        came = read(settings, wanted, batch_records=batch_records)
        expected = {
            tp: [offset for start, end in offsets for offset in range(start, end)]
            for tp, offsets in wanted.items()
            if offsets
        }
        assert came == expected


def test_large_holes_are_jumped_and_nothing_comes_twice(
    settings: ClientSettings, topic: MakeTopic
) -> None:
    """A jump while later records are already under way neither repeats nor drops any."""
    tp = TopicPartition(topic(), 0)
    write(settings, tp, range(60_000))
    ends = [(0, 100), (100 + JUMP_OFFSETS_MIN, 30_000), (45_000, 45_001), (59_990, 60_000)]
    came = read(settings, {tp: OffsetSet.of(*ends)})
    assert came == {tp: [offset for start, end in ends for offset in range(start, end)]}


@pytest.mark.slow
def test_compacted_offsets_are_passed_at_both_edges(
    settings: ClientSettings, topic: MakeTopic
) -> None:
    """Wanted offsets that compaction removed are neither waited for nor lost."""
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "100",
        "segment.ms": "100",
    }
    tp = TopicPartition(topic(config=config), 0)
    producer = Producer(settings.producer())
    deadline = time.monotonic() + 60
    size = 0
    came: list[int] = []
    # The cleaner works when it likes, and only on closed segments.
    while time.monotonic() < deadline:
        for number in range(10):
            producer.produce(tp.topic, b"v", b"key-%d" % (number % 2))
        producer.flush(10)
        size += 10
        time.sleep(1)
        # Read once: between two readings, the cleaner may come.
        wanted = {tp: OffsetSet.of((0, size - 5))}
        batches = read_ranges(settings, "g", COMMITTED, wanted, stall_timeout_s=20)
        came = [offset for batch in batches for offset in offsets_of(batch)]
        if len(came) < size - 15:
            break
    else:
        pytest.skip("the log cleaner did not run in time")
    assert came == sorted(set(came))
    hole = [offset for offset in range(size - 10) if offset not in came]
    assert read(settings, {tp: OffsetSet.of((hole[0], hole[0] + 1))}) == {}


def test_offsets_below_the_log_start_are_lost_and_named(
    settings: ClientSettings, topic: MakeTopic
) -> None:
    """Retention past the start is an error with the ranges, never a silent skip; the rest can be read."""
    tp = TopicPartition(topic(), 0)
    write(settings, tp, range(100))
    admin = AdminClient({**settings.admin()})
    target = ClientTopicPartition(tp.topic, tp.partition, 40)
    admin.delete_records([target])[target].result(10)
    with pytest.raises(RecordsLostError, match=r"\[10, 20\), \[30, 40\)") as caught:
        read(settings, {tp: OffsetSet.of((10, 20), (30, 50))})
    assert caught.value.lost == {str(tp): [(10, 20), (30, 40)]}
    assert read(settings, {tp: OffsetSet.of((40, 100))}) == {tp: list(range(40, 100))}


def test_offsets_beyond_the_log_are_lost_too(settings: ClientSettings, topic: MakeTopic) -> None:
    """A start past the end of the log: it was truncated, or is another topic."""
    tp = TopicPartition(topic(), 0)
    write(settings, tp, range(5))
    with pytest.raises(RecordsLostError, match=r"\[50, 60\)"):
        read(settings, {tp: OffsetSet.of((50, 60))})


def test_retention_inside_a_hole_loses_nothing(settings: ClientSettings, topic: MakeTopic) -> None:
    """The log start may pass the position where nothing is wanted: reading goes on behind it."""
    tp = TopicPartition(topic(), 0)
    write(settings, tp, range(3_000))
    admin = AdminClient({**settings.admin()})
    came: list[int] = []
    small = {"message.max.bytes": 1_000, "fetch.max.bytes": 1_000, "queued.min.messages": 1}
    few_at_once = settings.merged({**small, "max.partition.fetch.bytes": 100})
    wanted = {tp: OffsetSet.of((0, 10), (2_900, 3_000))}
    with open_reader(few_at_once, "g", COMMITTED, wanted, batch_records=10) as reader:
        for batch in reader.batches():
            if not came:
                target = ClientTopicPartition(tp.topic, tp.partition, 2_900)
                admin.delete_records([target])[target].result(10)
            came += offsets_of(batch)
    assert came == [*range(10), *range(2_900, 3_000)]


def test_nothing_wanted_reads_nothing() -> None:
    """Empty sets need no broker: there is none at this address."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    assert read(settings, {}) == {}
    assert read(settings, {TopicPartition("t", 0): OffsetSet.of()}) == {}


def test_a_partition_can_be_stopped_early(settings: ClientSettings, topic: MakeTopic) -> None:
    """After a stop nothing more of that partition comes, and the others come whole."""
    name = topic(partitions=2)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    for tp in (first, second):
        write(settings, tp, range(5_000))
    wanted = {first: OffsetSet.of((0, 5_000)), second: OffsetSet.of((0, 5_000))}
    counts = {first: 0, second: 0}
    with open_reader(settings, "g", COMMITTED, wanted, batch_records=100) as reader:
        for part in reader.timestamps():
            counts[part.tp] += len(part.offsets)
            if part.tp == first:
                reader.stop(first)
                reader.stop(first)
        assert reader.positions[first] < 5_000
    assert 0 < counts[first] <= 100
    assert counts[second] == 5_000


def test_only_the_asked_columns_are_read(settings: ClientSettings, topic: MakeTopic) -> None:
    """The schema of every batch is the reader's, in the asked order."""
    tp = TopicPartition(topic(), 0)
    write(settings, tp, range(3))
    wanted = {tp: OffsetSet.of((0, 3))}
    batches = list(read_ranges(settings, "g", COMMITTED, wanted, columns=["value", "offset"]))
    assert [batch.schema.names for batch in batches] == [["value", "offset"]]
    with pytest.raises(ConfigError, match="vlaue"):
        open_reader(settings, "g", COMMITTED, wanted, columns=["vlaue"])


def test_what_a_spark_task_needs_can_be_pickled(settings: ClientSettings, topic: MakeTopic) -> None:
    """The arguments of a read cross a process border and read the same."""
    tp = TopicPartition(topic(), 0)
    write(settings, tp, range(10))
    arguments = (settings, "g", COMMITTED, {tp: OffsetSet.of((2, 5))})
    (batch,) = read_ranges(*pickle.loads(pickle.dumps(arguments)))
    assert batch["value"].to_pylist() == [b"2", b"3", b"4"]


def test_records_that_do_not_come_end_in_a_time_out_with_the_facts(
    settings: ClientSettings, topic: MakeTopic
) -> None:
    """Wanted offsets behind the end of the log: the error names position, end and the log's end."""
    tp = TopicPartition(topic(), 0)
    write(settings, tp, range(5))
    with pytest.raises(ReadTimeoutError, match=r"at 5 of 9 \(the log ends at 5\)") as caught:
        list(read_ranges(settings, "g", COMMITTED, {tp: OffsetSet.of((0, 9))}, stall_timeout_s=1))
    assert caught.value.positions == {str(tp): (5, 9)}
    assert caught.value.retriable


@pytest.mark.slow
def test_records_that_come_late_are_waited_for(settings: ClientSettings, topic: MakeTopic) -> None:
    """An end-of-partition event below the wanted end is stale, not the end."""
    tp = TopicPartition(topic(), 0)
    write(settings, tp, range(5))
    timer = threading.Timer(1.0, write, (settings, tp, range(5)))
    timer.start()
    came = list(read_ranges(settings, "g", COMMITTED, {tp: OffsetSet.of((0, 10))}))
    timer.join()
    assert sum(batch.num_rows for batch in came) == 10


@pytest.mark.slow
def test_a_deleted_topic_is_told_from_a_slow_one(
    settings: ClientSettings, topic: MakeTopic
) -> None:
    """The client itself says nothing about it for minutes."""
    tp = TopicPartition(topic(), 0)
    write(settings, tp, range(5))
    admin = AdminClient({**settings.admin()})
    wanted = {tp: OffsetSet.of((0, 9))}
    reader = read_ranges(settings, "g", COMMITTED, wanted, stall_timeout_s=2)
    assert next(reader).num_rows == 5
    admin.delete_topics([tp.topic])[tp.topic].result(10)
    with pytest.raises(UnknownTopicError):
        next(reader)


def test_a_missing_topic_is_told_long_before_the_stall_time(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quiet reader asks the cluster whether its topics exist."""
    monkeypatch.setattr("kafka_ordered_ops.kafka.read.quiet.QUIET_S", 0.5)
    wanted = {TopicPartition("no-such-topic", 0): OffsetSet.of((0, 1))}
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        list(read_ranges(settings, "g", COMMITTED, wanted))


def test_an_unreachable_broker_is_named_after_the_stall_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error is the broker's, with its reason, and can be retried."""
    monkeypatch.setattr("kafka_ordered_ops.kafka.read.quiet.EXPLAIN_TIMEOUT_S", 1.0)
    settings = ClientSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    wanted = {TopicPartition("t", 0): OffsetSet.of((0, 1))}
    with pytest.raises(BrokerUnreachableError, match="refused") as caught:
        list(read_ranges(settings, "g", COMMITTED, wanted, stall_timeout_s=0.5))
    assert caught.value.retriable
