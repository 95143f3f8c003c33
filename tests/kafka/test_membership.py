"""Members of live groups: the same scenes in the model in memory and on a real broker."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from kafka_ordered_ops import (
    BrokerUnreachableError,
    ClientSettings,
    CommitRefusedError,
    ConfigError,
    Earliest,
    GroupInUseError,
    NotShareableError,
    UnknownTopicError,
    WindowGroupError,
)
from kafka_ordered_ops.core.cluster.membership import Membership, MembershipChange, OnRevoke
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.members.membership import GroupMember
from kafka_ordered_ops.kafka.offsets.committed_offsets import CommittedOffset
from kafka_ordered_ops.kafka.ports import MembershipDoor, open_member
from kafka_ordered_ops.testing.membership import expire_members
from tests.conftest import MakeTopic
from tests.support import wire
from tests.support.both_worlds import world as world
from tests.support.logs import read_ranges
from tests.support.members import until, until_shared
from tests.support.memory_world import MemoryWorld
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

_LEAVE_GROUP = 13
#: The shortest that brokers allow.
_SESSION_TIMEOUT_S = 6.0


def join(
    world: World, *topics: str, group_id: str = "live", on_revoke: OnRevoke | None = None
) -> MembershipDoor:
    """A member of a group of the script."""
    names = [world.named(one) for one in topics or ("orders",)]
    return open_member(world.settings, world.named(group_id), names, on_revoke=on_revoke)


def throw_out(world: World, member: MembershipDoor, group_id: str = "live") -> None:
    """Removes a member from its group, as the group does with one that is silent."""
    if isinstance(world, MemoryWorld):
        expire_members(world.kafka.name, world.named(group_id))
        return
    assert isinstance(member, GroupMember)
    assert member._consumer is not None
    names = [world.named(group_id).encode(), str(member._consumer.memberid()).encode()]
    body = b"".join(struct.pack(">h", len(name)) + name for name in names)
    answer = wire._call(world.settings.bootstrap_servers, _LEAVE_GROUP, 0, body)
    assert struct.unpack_from(">h", answer, len(answer) - 2) == (0,)


def test_a_member_gets_the_partitions_and_commits_for_them(world: World) -> None:
    """All of a topic's, for the only member; commits are stored when the call returns, and others are refused."""
    world.create("orders", partitions=3)
    world.create("payments")
    partitions = [world.tp("orders", number) for number in range(3)]
    with join(world) as member:
        assert member.assignment == frozenset()
        with pytest.raises(CommitRefusedError, match="not assigned"):
            member.commit({partitions[0]: 1})
        changes = until_shared(member, partitions=3)
        assert changes == [MembershipChange(frozenset(partitions), frozenset())]
        assert member.assignment == frozenset(partitions)
        assert member.committed(partitions) == dict.fromkeys(partitions)
        member.commit({})
        member.commit({partitions[0]: 5, partitions[2]: 0})
        member.commit({partitions[0]: 7})
        expected = {
            partitions[0]: CommittedOffset(7),
            partitions[1]: None,
            partitions[2]: CommittedOffset(0),
        }
        assert member.committed(partitions) == expected
        with pytest.raises(CommitRefusedError, match="payments") as caught:
            member.commit({partitions[1]: 9, world.tp("payments"): 1})
        assert caught.value.retriable
        assert member.committed(partitions) == expected
        assert member.poll() is None


def test_metadata_is_committed_exactly(world: World) -> None:
    """Empty where none is given, and gone with the next commit without any."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    metadata = "m\u00e4p".encode() * 800
    with join(world) as member:
        until_shared(member, partitions=2)
        member.commit({first: CommittedOffset(3, metadata), second: 4})
        expected = {first: CommittedOffset(3, metadata), second: CommittedOffset(4)}
        assert member.committed([first, second]) == expected
        member.commit({first: 3})
        assert member.committed([first]) == {first: CommittedOffset(3)}


def test_only_a_member_that_keeps_maps_joins_a_group_of_parallel_consumer(world: World) -> None:
    """Others would destroy its progress beyond the committed offset."""
    world.create("orders")
    world.foreign_commit(
        "live", "orders", {0: 2}, encode_parallel_consumer_map(2, OffsetSet.of((4, 5)))
    )
    with pytest.raises(WindowGroupError, match="Parallel Consumer"), join(world):
        pass
    names = [world.named("orders")]
    with open_member(world.settings, world.named("live"), names, keeps_maps=True) as member:
        until_shared(member, partitions=1)


def test_two_members_share_and_hand_over(world: World) -> None:
    """What moves is committed by its old owner, before its new owner gains it; what stays is not touched."""
    world.create("orders", partitions=4)
    partitions = frozenset(world.tp("orders", number) for number in range(4))
    given_up: list[frozenset[TopicPartition]] = []

    def on_revoke(revoked: frozenset[TopicPartition]) -> None:
        given_up.append(revoked)
        assert revoked <= first.assignment
        first.commit({tp: 40 + tp.partition for tp in revoked})

    with join(world, on_revoke=on_revoke) as first:
        until_shared(first, partitions=4)
        with join(world) as second:
            changes = until_shared(first, second, partitions=4)
            [moved] = given_up
            assert len(moved) == 2
            assert [change.lost for change in changes] == [moved]
            assert second.assignment == moved
            assert first.assignment == partitions - moved
            assert second.committed(sorted(moved)) == {
                tp: CommittedOffset(40 + tp.partition) for tp in moved
            }
            with pytest.raises(CommitRefusedError):
                first.commit(dict.fromkeys(moved, 99))
            second.commit(dict.fromkeys(moved, 50))
        changes = until_shared(first, partitions=4)
        assert [change.gained for change in changes] == [moved]
        assert first.committed(sorted(moved)) == dict.fromkeys(moved, CommittedOffset(50))
    # Closing revokes nothing in order.
    assert given_up == [moved]


def test_members_may_subscribe_to_different_topics(world: World) -> None:
    """A topic's partitions go to those that asked for it."""
    world.create("orders", partitions=2)
    world.create("payments")
    with join(world, "orders", "payments") as both, join(world, "orders") as one:
        until_shared(both, one, partitions=3)
        assert world.tp("payments") in both.assignment
        assert {tp.topic for tp in one.assignment} == {world.named("orders")}


def test_a_member_that_was_replaced_may_not_commit(world: World) -> None:
    """It learns so from the refusal or from its next poll, joins again, and then may; nothing is revoked in order."""
    world.create("orders", partitions=2)
    partitions = [world.tp("orders", number) for number in range(2)]
    given_up: list[frozenset[TopicPartition]] = []
    with join(world, on_revoke=given_up.append) as member:
        until_shared(member, partitions=2)
        member.commit({partitions[0]: 3})
        throw_out(world, member)
        with pytest.raises(CommitRefusedError, match="Nothing was stored") as caught:
            member.commit({partitions[0]: 9})
        assert caught.value.retriable
        assert member.committed(partitions)[partitions[0]] == CommittedOffset(3)
        seen: list[MembershipChange] = []

        def is_back() -> bool:
            if (change := member.poll()) is not None:
                seen.append(change)
            return bool(seen) and member.assignment == frozenset(partitions)

        until(is_back)
        assert frozenset(partitions) == seen[0].lost
        assert frozenset(partitions) == seen[-1].gained
        assert given_up == []
        member.commit({partitions[0]: 9})
        assert member.committed(partitions)[partitions[0]] == CommittedOffset(9)


def test_an_owner_that_fails_loses_the_partitions_all_the_same(world: World) -> None:
    """The error of `on_revoke` is raised by the poll, and the change is reported by the next one."""
    world.create("orders", partitions=2)

    def on_revoke(_: frozenset[TopicPartition]) -> None:
        raise ZeroDivisionError("the sink is broken")

    with join(world, on_revoke=on_revoke) as first:
        until_shared(first, partitions=2)
        with join(world) as second:
            with pytest.raises(ZeroDivisionError, match="the sink is broken"):
                until(lambda: False, first, second)
            changes = until_shared(first, second, partitions=2)
            assert [change.lost for change in changes if change.lost] == [second.assignment]


def test_a_group_of_windows_is_refused(world: World) -> None:
    """Its commits hold the windows' progress; other topics and other groups are free to use."""
    world.create("orders", partitions=2)
    world.create("payments")
    world.write("orders", 0, 1, 2)
    world.run("w", 100.0, starting_offsets=Earliest())
    with (
        pytest.raises(WindowGroupError, match="another group_id") as caught,
        join(world, group_id="g"),
    ):
        pass
    assert isinstance(caught.value, ConfigError)
    assert caught.value.partitions == (str(world.tp("orders", 0)), str(world.tp("orders", 1)))
    with join(world, group_id="live") as member:
        until_shared(member, partitions=2)


def test_windows_refuse_a_live_group(world: World) -> None:
    """While it has members, and whatever their topics."""
    world.create("orders")
    world.write("orders", 0, 1, 2)
    window = world.window(100.0, starting_offsets=Earliest())
    with join(world) as member:
        until_shared(member, partitions=1)
        with pytest.raises(GroupInUseError):
            world.windows("live").plan(window, "w")
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            world.windows("live").plan(window, "w")
        except GroupInUseError:
            assert time.monotonic() < deadline
        else:
            break


def test_topics_are_named_and_exist(world: World) -> None:
    """Before anything is joined."""
    world.create("orders")
    for topics, kind in (([], ConfigError), (["^or.*"], ConfigError)):
        with pytest.raises(kind):
            open_member(world.settings, "live", topics)
    with pytest.raises(UnknownTopicError, match="nothing"), join(world, "orders", "nothing"):
        pass


def test_a_closed_member_is_not_used(world: World) -> None:
    """Nor one that was not opened; closing twice is fine."""
    world.create("orders")
    member = join(world)
    with pytest.raises(AssertionError, match="block"):
        member.poll()
    with member:
        pass
    member.close()
    for use in (member.poll, lambda: member.commit({})):
        with pytest.raises(AssertionError, match="block"):
            use()


# --- on a broker only -----------------------------------------------------------------------------------


@pytest.fixture
def settings(bootstrap: str) -> ClientSettings:
    """Nothing but the broker's address."""
    return ClientSettings.from_mapping({"bootstrap.servers": bootstrap})


_KILLED = """
import sys, time
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.members.membership import GroupMember
from kafka_ordered_ops.kafka.settings import ClientSettings
bootstrap, group, topic, session_timeout_s = sys.argv[1:]
with GroupMember(
    ClientSettings.of(bootstrap), group, [topic], session_timeout_s=float(session_timeout_s)
) as member:
    while len(member.assignment) != 2:
        member.poll()
        time.sleep(0.01)
    member.commit({TopicPartition(topic, 0): 11, TopicPartition(topic, 1): 12})
    print("committed", flush=True)
    while True:
        member.poll()
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_killed_member_is_followed_by_another(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """After its session's time the others get its partitions, with what it committed."""
    name = topic(partitions=2)
    partitions = [TopicPartition(name, number) for number in range(2)]
    arguments = [settings.bootstrap_servers, group_id, name, str(_SESSION_TIMEOUT_S)]
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "committed\n"
        finally:
            os.kill(process.pid, signal.SIGKILL)
    with GroupMember(settings, group_id, [name], session_timeout_s=_SESSION_TIMEOUT_S) as member:
        until_shared(member, partitions=2)
        found = member.committed(partitions)
    assert found == {partitions[0]: CommittedOffset(11), partitions[1]: CommittedOffset(12)}


def test_a_member_without_partitions_leaves_at_once(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """The group would wait for it until its session time is over, and store no commit meanwhile."""
    name = topic()
    with GroupMember(settings, group_id, [name]) as owner, Lookup(settings) as lookup:
        until_shared(owner, partitions=1)
        with GroupMember(settings, group_id, [name]) as idle:
            until(lambda: idle._has_joined, owner, idle)
            assert len(lookup.group_members(group_id)) == 2
        assert len(lookup.group_members(group_id)) == 1
        until_shared(owner, partitions=1)


@pytest.mark.long
def test_a_member_without_partitions_leaves_after_the_rebalance_that_is_under_way(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """While another member keeps the group waiting, the client can send nothing."""
    name = topic()
    with GroupMember(settings, group_id, [name]) as busy, Lookup(settings) as lookup:
        until_shared(busy, partitions=1)
        with GroupMember(settings, group_id, [name]) as idle:
            until(lambda: idle._has_joined, busy, idle)
            with GroupMember(settings, group_id, [name]) as third:
                # The other one is not polled from now on: the rebalance that the end of the third begins waits for it.
                until(lambda: third._has_joined, idle, third)
            heartbeats = time.monotonic() + 2
            until(lambda: time.monotonic() > heartbeats, idle)
            closing = threading.Thread(target=idle.close)
            closing.start()
            time.sleep(2)
            assert closing.is_alive()
            until(lambda: not closing.is_alive(), busy)
        until(lambda: len(lookup.group_members(group_id)) == 1, busy)


@pytest.mark.slow
def test_a_member_fetches_nothing(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """Not even while records are written, and after rebalances; by the client's own count of 600."""
    name = topic(partitions=4)
    watched = ClientSettings.from_mapping(
        {"bootstrap.servers": settings.bootstrap_servers, "statistics.interval.ms": 50},
        extra_allowed=["statistics.interval.ms"],
    )
    counts: list[int] = []
    member = GroupMember(watched, group_id, [name])
    config: dict[str, Any] = member._config
    config["stats_cb"] = lambda text: counts.append(json.loads(text)["rxmsgs"])
    partitions = [TopicPartition(name, number) for number in range(4)]
    with member:
        until_shared(member, partitions=4)
        _write(settings, partitions, 50)
        with GroupMember(settings, group_id, [name]) as other:
            until_shared(member, other, partitions=4)
            _write(settings, partitions, 50)
        until_shared(member, partitions=4)
        _write(settings, partitions, 50)
        # Another reader has all of them by now.
        wanted = {tp: OffsetSet.of((0, 150)) for tp in partitions}
        batches = read_ranges(settings, group_id, Isolation.READ_COMMITTED, wanted)
        assert sum(batch.num_rows for batch in batches) == 600
        enough = len(counts) + 5
        until(lambda: len(counts) >= enough, member)
        # A fetch may leave in the moment between the assignment and its pause: of one partition, once.
        assert max(counts) <= 50
        assert member._consumer is not None
        assert {one.offset for one in member._consumer.position(_client(partitions))} == {-1001}


def _write(settings: ClientSettings, partitions: list[TopicPartition], count: int) -> None:
    for tp in partitions:
        wire.write_batch(
            settings.bootstrap_servers, tp.topic, [1_000] * count, partition=tp.partition
        )


def _client(partitions: list[TopicPartition]) -> list[Any]:
    from confluent_kafka import TopicPartition as ClientTopicPartition

    return [ClientTopicPartition(tp.topic, tp.partition) for tp in partitions]


def test_a_forked_process_uses_no_member_of_its_parent(
    settings: ClientSettings, topic: MakeTopic, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the group nor the connection is the child's; closing it there does nothing."""
    name = topic()
    with GroupMember(settings, group_id, [name]) as member:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: 1)
            with pytest.raises(NotShareableError):
                member.poll()
            with pytest.raises(NotShareableError):
                member.commit({})
            member.close()
        until_shared(member, partitions=1)


def test_an_unreachable_broker_is_named_before_joining() -> None:
    """The group cannot be checked, so it is not joined."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    with (
        pytest.raises(BrokerUnreachableError, match="refused"),
        GroupMember(settings, "g", ["t"], timeout_s=1),
    ):
        pass


def test_a_member_is_seen_by_others(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """As any live member, until it is closed."""
    name = topic()
    with Lookup(settings) as lookup:
        with GroupMember(settings, group_id, [name]) as member:
            until_shared(member, partitions=1)
            assert len(lookup.group_members(group_id)) == 1
        until(lambda: not lookup.group_members(group_id))


# --- changes, without a cluster -------------------------------------------------------------------------

A, B, C = (TopicPartition("t", number) for number in range(3))


def _set(*partitions: TopicPartition) -> frozenset[TopicPartition]:
    return frozenset(partitions)


def test_changes_add_up_until_they_are_taken() -> None:
    """Gone and back is both; what was never reported is not reported as lost."""
    member = Membership()
    assert member.take() is None
    member.gain([A, B])
    assert member.known([A, B]) == _set()
    assert member.take() == MembershipChange(_set(A, B), _set())
    member.lose([A, B])
    member.gain([B, C])
    member.lose([C])
    assert member.known([A, B, C]) == _set(A, C)
    assert member.assignment == _set(B)
    assert member.take() == MembershipChange(_set(B), _set(A, B))
    assert member.take() is None
    assert member.known([B]) == _set(B)
