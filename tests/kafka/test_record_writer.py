"""Written records: the same scenes in the model in memory and on a real broker, and what only a broker does."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from kafka_ordered_ops import (
    BrokerUnreachableError,
    ClientSettings,
    KafkaOrderedOpsError,
    RecordTooLargeError,
    UnknownTopicError,
)
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.kafka.ports import WriterDoor, open_lookup, open_writer
from kafka_ordered_ops.processing import NewRecord
from tests.support.both_worlds import world as world
from tests.support.broker_world import BrokerWorld
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

Outcome = KafkaOrderedOpsError | None


def written(writer: WriterDoor, records: Sequence[NewRecord]) -> list[Outcome]:
    """What is reported of each record, once."""
    outcomes: dict[int, Outcome] = {}

    def report(index: int, outcome: Outcome) -> None:
        assert index not in outcomes
        outcomes[index] = outcome

    deadline = time.monotonic() + 2 * TIMEOUT_S
    for index, record in enumerate(records):
        while not writer.send(record, lambda outcome, index=index: report(index, outcome)):  # type: ignore[misc]
            writer.poll(0.01)
            assert time.monotonic() < deadline
    while writer.waiting:
        writer.poll(0.1)
        assert time.monotonic() < deadline, (len(records), outcomes)
    return [outcomes[index] for index in range(len(records))]


def test_records_are_stored_as_they_are(world: World) -> None:
    """Nulls, repeated headers and times survive, in the order in which they were sent."""
    world.create("out")
    name = world.named("out")
    headers = (("a", b"1"), ("a", None), ("b", b"\xff"))
    records = [
        NewRecord(name, None, None),
        NewRecord(name, b"", b"", headers, timestamp_ms=1_700_000_000_000),
        *(NewRecord(name, b"%d" % n, b"x", partition=0) for n in range(500)),
    ]
    with open_writer(world.settings, doing="writing") as writer:
        assert written(writer, records) == [None] * len(records)
    rows = world.stored("out")
    assert [(row["key"], row["value"]) for row in rows] == [(r.key, r.value) for r in records]
    pairs = [(one["key"], one["value"]) for one in rows[1]["headers"]]
    assert tuple(pairs) == headers


def test_a_topic_that_does_not_exist_is_named_and_not_created(world: World) -> None:
    """Others of the same call are stored."""
    world.create("out")
    records = [NewRecord(world.named(name), b"k", b"v") for name in ("out", "absent", "out")]
    with open_writer(world.settings, doing="writing", timeout_s=5) as writer:
        first, second, third = written(writer, records)
    assert (first, third) == (None, None)
    assert isinstance(second, UnknownTopicError)
    assert world.named("absent") in str(second)
    with open_lookup(world.settings) as lookup:
        assert not lookup.existing([world.named("absent")])
    assert len(world.stored("out")) == 2


def test_only_the_record_that_is_too_large_is_refused(world: World) -> None:
    """Its neighbours are stored, though all were sent at once; the error has its key and size."""
    world.create("out", max_message_bytes="2000")
    name = world.named("out")
    sizes = [1_500, 1_500, 2_500, 1_500]
    records = [NewRecord(name, b"key-%d" % n, b"x" * size) for n, size in enumerate(sizes)]
    with open_writer(world.settings, doing="writing") as writer:
        outcomes = written(writer, records)
        assert [one is None for one in outcomes] == [True, True, False, True]
        assert isinstance(outcomes[2], RecordTooLargeError)
        assert "key-2" in str(outcomes[2])
        assert "2505 bytes" in str(outcomes[2])
        [huge] = written(writer, [NewRecord(name, b"huge", b"x" * 3_000_000)])
        assert isinstance(huge, RecordTooLargeError)
        assert written(writer, records[:1]) == [None]
    assert len(world.stored("out")) == 4


@pytest.mark.slow
def test_a_cluster_that_is_away_is_named_in_time() -> None:
    """The deadline of a record holds though no broker ever answers, and a later record is stored."""
    with EmbeddedKafka() as kafka:
        settings = ClientSettings.from_mapping({"bootstrap.servers": kafka.bootstrap})
        world = BrokerWorld(kafka.bootstrap)
        with world, open_writer(settings, doing="writing", timeout_s=3) as writer:
            world.create("out")
            record = NewRecord(world.named("out"), b"k", b"v")
            assert written(writer, [record]) == [None]
            kafka.pause()
            began = time.monotonic()
            [outcome] = written(writer, [record])
            assert isinstance(outcome, BrokerUnreachableError)
            assert time.monotonic() - began < 8
            kafka.resume()
            assert written(writer, [record]) == [None]
