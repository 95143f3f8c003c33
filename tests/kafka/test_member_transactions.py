"""Records and a member's offsets in one transaction, in the model in memory and on a real broker."""

from __future__ import annotations

import time

import pytest

from kafka_ordered_ops import CommitRefusedError, RecordTooLargeError, UnknownTopicError
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.kafka.ports import open_lookup, open_member, open_reader, open_transactions
from kafka_ordered_ops.processing import NewRecord
from tests.kafka.test_membership import throw_out
from tests.support.both_worlds import world as world
from tests.support.broker_world import BrokerWorld
from tests.support.members import until_shared
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World


@pytest.fixture(autouse=True)
def _topics(world: World) -> None:
    world.create("orders")
    world.create("out", max_message_bytes="2000")


def visible(world: World) -> list[bytes | None]:
    """What a read_committed reader gets of the output."""
    tp = world.tp("out")
    deadline = time.monotonic() + TIMEOUT_S
    with open_lookup(world.settings) as lookup:
        # A transaction's outcome is decided before its markers are written.
        while (end := lookup.end_offsets([tp], Isolation.READ_COMMITTED)[tp]) != (
            lookup.end_offsets([tp], Isolation.READ_UNCOMMITTED)[tp]
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    if not end:
        return []
    with open_reader(
        world.settings, "reads", Isolation.READ_COMMITTED, {tp: OffsetSet.of((0, end))}
    ) as reader:
        return [value for batch in reader.batches() for value in batch.column("value").to_pylist()]


def out(world: World, value: bytes) -> NewRecord:
    """A record of the output."""
    return NewRecord(world.named("out"), b"k", value)


def test_records_and_offsets_are_stored_together_or_not_at_all(world: World) -> None:
    """Metadata to the byte; after a refused record the same member goes on."""
    tp = world.tp("orders")
    names = [tp.topic]
    with open_member(world.settings, world.named("live"), names) as member:
        until_shared(member, partitions=1)
        with open_transactions(world.settings, member) as transactions:
            first = {tp: CommittedOffset(1, b"map")}
            transactions.commit([out(world, b"1")], first, timeout_s=TIMEOUT_S)
            assert (visible(world), member.committed([tp])) == ([b"1"], first)
            second = {tp: CommittedOffset(2)}
            refused = {
                RecordTooLargeError: out(world, b"x" * 3_000),
                UnknownTopicError: NewRecord(world.named("absent"), b"k", b"v"),
            }
            for error, record in refused.items():
                with pytest.raises(error):
                    transactions.commit([out(world, b"2"), record], second, timeout_s=TIMEOUT_S)
                assert (visible(world), member.committed([tp])) == ([b"1"], first)
                assert not transactions.is_stored(second, timeout_s=TIMEOUT_S)
            transactions.commit([out(world, b"2")], second, timeout_s=TIMEOUT_S)
            assert transactions.is_stored(second, timeout_s=TIMEOUT_S)
            assert (visible(world), member.committed([tp])) == ([b"1", b"2"], second)


def test_a_member_that_was_replaced_writes_nothing(world: World) -> None:
    """Its generation is over, whether it knows that or not."""
    tp = world.tp("orders")
    names = [tp.topic]
    with (
        open_member(world.settings, world.named("live"), names) as zombie,
        open_transactions(world.settings, zombie) as old,
    ):
        # Alone: of two members, either may get the one partition.
        until_shared(zombie, partitions=1)
        # Before the other one joins, and the generation with it is the next one.
        old.commit([out(world, b"old")], {tp: CommittedOffset(1)}, timeout_s=TIMEOUT_S)
        with (
            open_member(world.settings, world.named("live"), names) as heir,
            open_transactions(world.settings, heir) as new,
        ):
            throw_out(world, zombie)
            if isinstance(world, BrokerWorld):
                until_shared(heir, partitions=1)
            with pytest.raises(CommitRefusedError):
                old.commit([out(world, b"zombie")], {tp: CommittedOffset(9)}, timeout_s=TIMEOUT_S)
            until_shared(heir, partitions=1)
            new.commit([out(world, b"new")], {tp: CommittedOffset(2)}, timeout_s=TIMEOUT_S)
            assert heir.committed([tp]) == {tp: CommittedOffset(2)}
    assert visible(world) == [b"old", b"new"]
