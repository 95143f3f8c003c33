"""Leaders of other epochs while a log is read (KIP-320): followed where the log is the same, refused where it was cut."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import ClientSettings, RecordsLostError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_lookup, open_reader
from tests.support.logs import cut_file
from tests.support.readers import READERS
from tests.support.windows_support import BASE_MS, TIMEOUT_S
from tests.support.wire import write_batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RECORDS, CUT = 200, 24
#: Many fetches, and few records that wait.
SMALL = {
    "fetch.message.max.bytes": "1000",
    "queued.max.messages.kbytes": "1",
    "queued.min.messages": "1",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    """A broker that tests kill: after each start its leaders have other epochs."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture
def tp(broker: EmbeddedKafka) -> TopicPartition:
    """A partition with batches of one record each."""
    tp = TopicPartition(f"epochs-{uuid.uuid4().hex[:8]}", 0)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(tp.topic, 1, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[tp.topic].result(TIMEOUT_S)
    write(broker, tp, RECORDS)
    return tp


def write(broker: EmbeddedKafka, tp: TopicPartition, count: int) -> None:
    """So many batches of one record each."""
    for number in range(count):
        write_batch(broker.bootstrap, tp.topic, [BASE_MS + number])


def reader_of(broker: EmbeddedKafka, tp: TopicPartition, kind: str, end: int) -> ReaderDoor:
    """Of a partition up to an offset."""
    settings = ClientSettings.of({"bootstrap.servers": broker.bootstrap, "reader": kind, **SMALL})
    wanted = {tp: OffsetSet.of((0, end))}
    return open_reader(settings, "g", Isolation.READ_COMMITTED, wanted, batch_records=5)


def epoch_of(broker: EmbeddedKafka, tp: TopicPartition) -> int:
    """Of the leader."""
    with open_lookup(ClientSettings.of(broker.bootstrap)) as lookup:
        return lookup.log_ends([tp])[tp].leader_epoch or 0


def turn(reader: ReaderDoor) -> list[int]:
    """Offsets that one turn brings."""
    columns: list[Any] = [one.records["offset"] for one in reader.turn() if one.records is not None]
    return [offset for column in columns for offset in column.to_pylist()]


def more(reader: ReaderDoor) -> list[int]:
    """Offsets that come before the time is over."""
    offsets, deadline = list[int](), time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        offsets += turn(reader)
    return offsets


@pytest.mark.parametrize("reader", READERS)
def test_a_leader_of_another_epoch_is_followed(
    broker: EmbeddedKafka, tp: TopicPartition, reader: str
) -> None:
    """The broker refuses the old epoch: the new one is looked up, and every record comes once."""
    epoch, offsets = epoch_of(broker, tp), list[int]()
    with reader_of(broker, tp, reader, RECORDS) as opened:
        for batch in opened.batches():
            column: Any = batch["offset"]
            if not offsets:
                broker.kill()
                broker.restart()
            offsets += column.to_pylist()
    assert offsets == list(range(RECORDS))
    assert epoch_of(broker, tp) > epoch


@pytest.mark.parametrize("reader", READERS)
def test_a_log_that_was_cut_while_it_was_read_is_refused(
    broker: EmbeddedKafka, tp: TopicPartition, reader: str
) -> None:
    """It holds other records below the position, and is longer than before: only the epoch tells."""
    offsets: list[int] = []
    with reader_of(broker, tp, reader, INT64_MAX) as opened:
        while len(offsets) < RECORDS:
            offsets += turn(opened)
        broker.kill()
        cut_file(broker.data_dir, tp.topic, CUT)
        (broker.data_dir / "recovery-point-offset-checkpoint").unlink()
        broker.restart()
        write(broker, tp, 2 * RECORDS)
        with pytest.raises(RecordsLostError, match=rf"{tp.topic}\[0\]: the log was truncated"):
            offsets += more(opened)
    assert offsets == list(range(RECORDS))
