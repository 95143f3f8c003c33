"""Fetch sessions of the native reader (KIP-227): what it asks for, what comes, and sessions that the broker forgets."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.errors import ReadTimeoutError, TopicRecreatedError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.embedded.broker import Listener
from kafka_ordered_ops.embedded.node import HOST, free_ports
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_lookup, open_reader
from tests.support.forwarding import forwarded
from tests.support.readers import needs_native

pytestmark = [needs_native, pytest.mark.native, pytest.mark.slow]

FETCH = 1
BY_NAME = 12
WITH_REPLICA = 14
SESSION_NOT_FOUND, INVALID_EPOCH = 70, 71
FINAL = -1

PARTITIONS = 200
#: Of the partitions with records.
BUSY = (3, 90, 91, 199)
TIMEOUT_S = 60.0


@dataclass
class Wire:
    """What passes between the reader and its broker."""

    #: The address to give to a reader, and one that nobody watches.
    bootstrap: str
    plain: str
    #: Version, session, epoch and size of each fetch.
    fetches: list[tuple[int, int, int, int]] = field(default_factory=list)
    #: Error, session and size of each response to one.
    answers: list[tuple[int, int, int]] = field(default_factory=list)
    _asked: set[tuple[int, bytes]] = field(default_factory=set)

    def watch(self, connection: int, frame: bytes, is_request: bool) -> None:
        """Takes note of fetches."""
        if not is_request:
            if (connection, frame[4:8]) in self._asked:
                # After the correlation no tags, and for how long the client is throttled.
                error, session = struct.unpack_from(">hi", frame, 4 + 4 + 1 + 4)
                self.answers.append((error, session, len(frame)))
            return
        key, version, _, client = struct.unpack_from(">hhih", frame, 4)
        if key == FETCH and b"rdkafka" in frame:
            at = 14 + client + 1 + (4 if version <= WITH_REPLICA else 0) + 3 * 4 + 1
            session, epoch = struct.unpack_from(">ii", frame, at)
            self.fetches.append((version, session, epoch, len(frame)))
            if epoch != FINAL:
                # The answer to the end of a session may come when the next reader has begun.
                self._asked.add((connection, frame[8:12]))

    def send(self, version: int, session: int, epoch: int) -> int:
        """Sends a fetch without partitions over another connection; returns the error."""
        body = struct.pack(">hhih", FETCH, version, 7, 0) + b"\0"
        body += struct.pack(">i", -1) if version <= WITH_REPLICA else b""
        body += struct.pack(">iiibii", 0, 0, 1, 0, session, epoch) + b"\1\1\1\0"
        host, _, port = self.plain.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            answer = connection.recv(size, socket.MSG_WAITALL)
        return int(struct.unpack_from(">h", answer, 4 + 1 + 4)[0])


@contextmanager
def watched_broker(**config: str) -> Iterator[Wire]:
    """A broker that clients reach by an address where each byte is seen."""
    port, advertised = free_ports(2)
    listener = Listener("WATCHED", port, advertised_port=advertised)
    with EmbeddedKafka(config, listeners=(listener,)) as broker:
        wire = Wire(f"{HOST}:{advertised}", broker.bootstrap)
        with forwarded(advertised, f"{HOST}:{port}", watch=wire.watch):
            yield wire


@pytest.fixture(scope="module")
def broker() -> Iterator[Wire]:
    """One with room for eight sessions, each in a cache of its own."""
    with watched_broker(**{"max.incremental.fetch.session.cache.slots": "8"}) as wire:
        yield wire


@pytest.fixture
def wire(broker: Wire) -> Wire:
    """Nothing has passed yet."""
    broker.fetches.clear()
    broker.answers.clear()
    return broker


def make_topic(wire: Wire, partitions: int = PARTITIONS, name: str | None = None) -> str:
    """A topic of the test's own."""
    name = name or f"sessions-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": wire.plain})
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            admin.create_topics([NewTopic(name, partitions)])[name].result(TIMEOUT_S)
            break
        except KafkaException:
            # Its predecessor is being deleted.
            assert time.monotonic() < deadline
    tps = [TopicPartition(name, number) for number in range(partitions)]
    with open_lookup(ClientSettings.of(wire.plain)) as lookup:
        assert set(lookup.end_offsets(tps, Isolation.READ_COMMITTED).values()) == {0}
    return name


def produce(wire: Wire, topic: str, partitions: tuple[int, ...], count: int) -> None:
    """So many records to each of the partitions."""
    producer = Producer({"bootstrap.servers": wire.plain})
    for number in range(count):
        for partition in partitions:
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def reader_of(wire: Wire, topic: str, partitions: int = PARTITIONS) -> ReaderDoor:
    """A reader of all partitions, without an end."""
    settings = ClientSettings.of({"bootstrap.servers": wire.bootstrap, "reader": "native"})
    wanted = {
        TopicPartition(topic, number): OffsetSet.of((0, INT64_MAX)) for number in range(partitions)
    }
    return open_reader(settings, "g", Isolation.READ_COMMITTED, wanted, columns=["offset"])


class Collected:
    """Offsets that a reader has returned, by partition."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = {}

    def until(self, reader: ReaderDoor, is_enough: Callable[[], bool]) -> None:
        """Read on."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_enough():
            assert time.monotonic() < deadline, self.offsets
            for turn in reader.turn():
                if turn.records is not None:
                    column: Any = turn.records["offset"]
                    self.offsets.setdefault(turn.tp.partition, []).extend(column.to_pylist())

    def until_rows(self, reader: ReaderDoor, count: int) -> None:
        """Read on until so many records have come."""
        self.until(reader, lambda: sum(map(len, self.offsets.values())) >= count)

    def until_answers(self, reader: ReaderDoor, wire: Wire, count: int) -> None:
        """Read on until the broker has answered so many fetches."""
        self.until(reader, lambda: len(wire.answers) >= count)


def test_requests_name_what_has_changed(wire: Wire) -> None:
    """Of 200 partitions four have records: after the first request, neither side names the others."""
    topic = make_topic(wire)
    read = Collected()
    with reader_of(wire, topic) as reader:
        read.until_answers(reader, wire, 3)
        for count in range(1, 4):
            produce(wire, topic, BUSY, 10)
            read.until_rows(reader, 40 * count)
        assert reader.positions == {
            TopicPartition(topic, number): 30 if number in BUSY else 0
            for number in range(PARTITIONS)
        }
        ends = reader.log_ends
        assert len(ends) == PARTITIONS
        assert {tp.partition for tp, end in ends.items() if end == 30} == set(BUSY)
    assert read.offsets == {number: list(range(30)) for number in BUSY}
    first, *others = wire.fetches
    assert first[1:3] == (0, 0)
    session = wire.answers[0][1]
    assert session > 0
    assert {fetch[1] for fetch in others} == {session}
    # The last one ends the session.
    assert [fetch[2] for fetch in others] == [*range(1, len(others)), FINAL]
    assert max(fetch[3] for fetch in others) < first[3] / 10
    assert max(answer[2] for answer in wire.answers[1:]) < wire.answers[0][2] / 5
    assert {answer[0] for answer in wire.answers} == {0}


@pytest.mark.parametrize("error", [SESSION_NOT_FOUND, INVALID_EPOCH])
def test_a_session_that_the_broker_forgot_begins_anew(wire: Wire, error: int) -> None:
    """Without a record lost or doubled: it was evicted, or the broker counted another request."""
    topic = make_topic(wire)
    read = Collected()
    with reader_of(wire, topic) as reader:
        for count in range(1, 4):
            produce(wire, topic, BUSY, 10)
            read.until_rows(reader, 40 * count)
            before = len(wire.answers)
            version, session = wire.fetches[-1][0], wire.answers[-1][1]
            if error == SESSION_NOT_FOUND:
                assert wire.send(version, session, FINAL) == 0
            else:
                while wire.send(version, session, wire.fetches[-1][2] + 1):
                    pass
            read.until_answers(reader, wire, before + 5)
            assert error in {answer[0] for answer in wire.answers[before:]}
            assert wire.answers[-1][1] not in (0, session)
    assert read.offsets == {number: list(range(30)) for number in BUSY}


def test_sessions_end_with_their_readers(wire: Wire) -> None:
    """A broker with eight places has one for each of twenty-four readers, one after the other."""
    topic = make_topic(wire, 2)
    for _ in range(24):
        wire.fetches.clear()
        wire.answers.clear()
        with reader_of(wire, topic, 2) as reader:
            Collected().until_answers(reader, wire, 3)
            assert all(session > 0 for _, session, _ in wire.answers)
            began = time.monotonic()
        assert time.monotonic() - began < 0.3
        assert wire.fetches[-1][2] == FINAL


@pytest.mark.long
def test_a_broker_without_room_is_asked_for_all() -> None:
    """With other sessions in all places, each request names all partitions, and asks for a session again."""
    read = Collected()
    with watched_broker(**{"max.incremental.fetch.session.cache.slots": "0"}) as full:
        topic = make_topic(full)
        with reader_of(full, topic) as reader:
            produce(full, topic, BUSY, 10)
            read.until_rows(reader, 40)
        assert {fetch[1:3] for fetch in full.fetches} == {(0, 0)}
        assert {answer[:2] for answer in full.answers} == {(0, 0)}
    assert read.offsets == {number: list(range(10)) for number in BUSY}


def test_partitions_without_news_are_no_progress(wire: Wire) -> None:
    """A log that ends below the wanted end is an error with its position, also beside others that are read."""
    topic = make_topic(wire, 3)
    produce(wire, topic, (0,), 10)
    produce(wire, topic, (1,), 5)
    settings = ClientSettings.of({"bootstrap.servers": wire.bootstrap, "reader": "native"})
    wanted = {TopicPartition(topic, number): OffsetSet.of((0, 10)) for number in range(3)}
    with (
        open_reader(settings, "g", Isolation.READ_COMMITTED, wanted, stall_timeout_s=3) as reader,
        pytest.raises(ReadTimeoutError) as caught,
    ):
        for _ in reader.batches():
            pass
    assert caught.value.positions == {f"{topic}[1]": (5, 10), f"{topic}[2]": (0, 10)}
    assert reader.positions[TopicPartition(topic, 0)] == 10


def test_partitions_come_and_go(wire: Wire) -> None:
    """One that is stopped is forgotten, and one that is taken up again is read from its new start."""
    topic = make_topic(wire, 2)
    read = Collected()
    again = TopicPartition(topic, 1)
    with reader_of(wire, topic, 2) as reader:
        produce(wire, topic, (0, 1), 10)
        read.until_rows(reader, 20)
        reader.stop(again)
        reader.add(again, OffsetSet.of((4, INT64_MAX)))
        produce(wire, topic, (0, 1), 10)
        read.until_rows(reader, 46)
        assert {fetch[2] for fetch in wire.fetches[1:]} != {0}
    assert read.offsets == {0: list(range(20)), 1: [*range(10), *range(4, 20)]}


def test_a_topic_that_is_created_again_is_found(wire: Wire) -> None:
    """Also where the session had no news of it for a while, and its offsets fit."""
    topic = make_topic(wire, 2)
    read = Collected()
    with reader_of(wire, topic, 2) as reader:
        produce(wire, topic, (0, 1), 5)
        read.until_rows(reader, 10)
        read.until_answers(reader, wire, len(wire.answers) + 3)
        admin = AdminClient({"bootstrap.servers": wire.plain})
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        make_topic(wire, 2, topic)
        produce(wire, topic, (0, 1), 10)
        with pytest.raises(TopicRecreatedError, match=topic):
            read.until_rows(reader, 11)
    assert read.offsets == {0: list(range(5)), 1: list(range(5))}
