"""The relay's doors to a cluster: its own topics, and commits for groups that nobody has joined."""

from __future__ import annotations

import pytest

from kafka_ordered_ops import GroupInUseError
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import (
    open_internal_topics,
    open_lookup,
    open_outside_commits,
    open_writer,
    read_committed_offsets,
)
from kafka_ordered_ops.processing import NewRecord
from tests.support.relay_servers import wait_until
from tests.support.worlds import World


def test_topics_are_created_and_grown_once(world: World) -> None:
    """Creating, growing and cutting may be repeated, and never makes a topic smaller or a log longer."""
    name = world.named("own")
    tp = TopicPartition(name, 1)
    with open_lookup(world.settings) as lookup, open_internal_topics(world.settings) as topics:
        for _ in range(2):
            topics.ensure(name, 2, {"retention.ms": "-1"})
        wait_until(lambda: name in lookup.existing([name]))
        for partitions in (3, 3, 2):
            topics.grow(name, partitions)
        wait_until(lambda: len(lookup.topics([name])[name].partitions) == 3)
        with open_writer(world.settings, doing="writing", batch_records=100, linger_ms=1) as writer:
            stored: list[object] = []
            for number in range(10):
                assert writer.send(
                    NewRecord(name, None, b"%d" % number, partition=1), stored.append
                )
            while writer.waiting:
                writer.poll(0.1)
        assert stored == [None] * 10
        for before in (4, 7, 4):
            topics.delete_before({tp: before})
        assert lookup.log_starts([tp]) == {tp: 7}


def test_commits_for_a_group_without_members(world: World) -> None:
    """Offsets are stored with their metadata; those of a group with members are its own."""
    world.create("orders", 2)
    offsets = {
        world.tp("orders", 0): CommittedOffset(3, b"map"),
        world.tp("orders", 1): CommittedOffset(0),
    }
    group = world.named("g")
    with open_outside_commits(world.settings, group) as commits:
        commits.commit(offsets, timeout_s=20)
        assert read_committed_offsets(world.settings, group, list(offsets)) == offsets
        leave = world.join("g", "somebody")
        try:
            with pytest.raises(GroupInUseError):
                commits.commit(offsets, timeout_s=20)
        finally:
            leave()
