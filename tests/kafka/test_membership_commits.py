"""Commits of live members on a real broker: what is stored, refused, unknown."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import (
    ClientSettings,
    CommitRefusedError,
    CommitUnknownError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.members import membership as membership_module
from kafka_ordered_ops.kafka.members.membership import GroupMember
from kafka_ordered_ops.kafka.offsets.committed_offsets import CommittedOffset, commit_as_member
from kafka_ordered_ops.kafka.ports import MembershipDoor, read_committed_offsets
from tests.conftest import MakeTopic
from tests.support import wire
from tests.support.members import until, until_shared
from tests.support.windows_support import TIMEOUT_S, wait_until_gone


@pytest.fixture
def settings(bootstrap: str) -> ClientSettings:
    """Nothing but the broker's address."""
    return ClientSettings.from_mapping({"bootstrap.servers": bootstrap})


def test_what_other_programs_committed_is_read_exactly(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """Metadata of others may have any length, and hides no commit."""
    name = topic()
    tp = TopicPartition(name, 0)
    wire.commit_offsets(settings.bootstrap_servers, group_id, name, {0: (5, b"m" * 300)})
    with GroupMember(settings, group_id, [name]) as member:
        assert member.committed([tp]) == {tp: CommittedOffset(5, b"m" * 300)}
        until_shared(member, partitions=1)
        member.commit({tp: 6})
        assert member.committed([tp]) == {tp: CommittedOffset(6)}


@pytest.mark.parametrize("stored", [True, False])
def test_a_commit_without_an_answer_is_read_back(
    settings: ClientSettings,
    topic: MakeTopic,
    group_id: str,
    monkeypatch: pytest.MonkeyPatch,
    stored: bool,
) -> None:
    """Found, it is done; not found, it is made again."""
    tries: list[Mapping[TopicPartition, CommittedOffset]] = []

    def lose_the_first(
        consumer: Any, offsets: Mapping[TopicPartition, CommittedOffset], *, timeout_s: float
    ) -> KafkaError | None:
        tries.append(offsets)
        if stored or len(tries) > 1:
            assert commit_as_member(consumer, offsets, timeout_s=timeout_s) is None
        return KafkaError(KafkaError._TIMED_OUT) if len(tries) == 1 else None

    monkeypatch.setattr(membership_module, "commit_as_member", lose_the_first)
    tp = TopicPartition(topic(), 0)
    with GroupMember(settings, group_id, [tp.topic]) as member:
        until_shared(member, partitions=1)
        member.commit({tp: 4})
        assert len(tries) == (1 if stored else 2)
        assert member.committed([tp]) == {tp: CommittedOffset(4)}


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["at once", "not in time"])
def test_another_thread_commits_while_partitions_are_given_up(
    settings: ClientSettings,
    topic: MakeTopic,
    group_id: str,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
) -> None:
    """The client lets one thread at a time in, and the one that polls waits here for the other."""
    if answer == "not in time":

        def commit_late(consumer: Any, offsets: Any, *, timeout_s: float) -> KafkaError | None:
            error = commit_as_member(consumer, offsets, timeout_s=timeout_s)
            return error or KafkaError(KafkaError._TIMED_OUT)

        monkeypatch.setattr(membership_module, "commit_as_member", commit_late)
    name = topic(partitions=2)
    revoked: set[TopicPartition] = set()

    def on_revoke(partitions: frozenset[TopicPartition]) -> None:
        other.submit(first.commit, dict.fromkeys(partitions, 3)).result(TIMEOUT_S)
        revoked.update(partitions)

    with (
        ThreadPoolExecutor(1) as other,
        GroupMember(settings, group_id, [name], on_revoke=on_revoke) as first,
    ):
        until_shared(first, partitions=2)
        with GroupMember(settings, group_id, [name]) as second:
            until_shared(first, second, partitions=2)
            [moved] = revoked
            assert second.committed([moved]) == {moved: CommittedOffset(3)}


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
    ],
)
def test_every_refusal_of_a_generation_is_named(
    settings: ClientSettings,
    topic: MakeTopic,
    group_id: str,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    """At once: what resolves it is the owner's next poll."""
    monkeypatch.setattr(membership_module, "commit_as_member", lambda *_, **__: KafkaError(code))
    tp = TopicPartition(topic(), 0)
    with GroupMember(settings, group_id, [tp.topic]) as member:
        until_shared(member, partitions=1)
        with pytest.raises(CommitRefusedError, match="Nothing was stored") as caught:
            member.commit({tp: 4})
        assert caught.value.facts == {"group_id": group_id}


@pytest.mark.slow
def test_a_commit_that_nobody_knows_of_says_so(
    settings: ClientSettings, topic: MakeTopic, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither stored nor answered in all of its time: it can be made again."""

    def lose(_: Any, offsets: Mapping[TopicPartition, int], *, timeout_s: float) -> KafkaError:
        time.sleep(min(timeout_s, 0.1))
        return KafkaError(KafkaError._TIMED_OUT)

    monkeypatch.setattr(membership_module, "commit_as_member", lose)
    tp = TopicPartition(topic(), 0)
    with GroupMember(settings, group_id, [tp.topic], timeout_s=2) as member:
        until_shared(member, partitions=1)
        with pytest.raises(CommitUnknownError, match="not stored so far") as caught:
            member.commit({tp: 4})
        assert caught.value.retriable


@pytest.mark.slow
def test_a_commit_does_not_wait_for_a_busy_member(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """A rebalance ends when all have polled, and a broker answers nothing else before: the caller says how long to wait."""
    name = topic(partitions=8)
    with (
        GroupMember(settings, group_id, [name]) as member,
        GroupMember(settings, group_id, [name]) as busy,
    ):
        until_shared(member, busy, partitions=8)
        with GroupMember(settings, group_id, [name]) as third:
            until(lambda: len(member.assignment) < 4, member, third)
            kept = dict.fromkeys(member.assignment, 1)
            with pytest.raises(CommitUnknownError, match="may be rebalancing"):
                _commit_for_ever(member, kept, timeout_s=0.3)
            until_shared(member, busy, third, partitions=8)
            until(lambda: _is_committed(member, dict.fromkeys(kept, 2)), member, busy, third)
            found = member.committed(sorted(kept))
            assert found == dict.fromkeys(kept, CommittedOffset(2))


def _commit_for_ever(
    member: MembershipDoor, offsets: Mapping[TopicPartition, int], *, timeout_s: float
) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        # Stored or refused, until the member has polled often enough to send its join.
        member.poll()
        with suppress(CommitRefusedError):
            began = time.monotonic()
            try:
                member.commit(offsets, timeout_s=timeout_s)
            finally:
                assert time.monotonic() - began < timeout_s + 10


def _is_committed(member: MembershipDoor, offsets: Mapping[TopicPartition, int]) -> bool:
    try:
        member.commit(offsets)
    except CommitRefusedError:
        return False
    return True


def test_a_commit_ends_with_its_time(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """Without a coordinator the client would wait for the session's time. A later commit is not disturbed."""
    tp = TopicPartition(topic(), 0)
    with GroupMember(settings, group_id, [tp.topic]) as member:
        until_shared(member, partitions=1)
        assert member._consumer is not None
        # No time at all: too short for any answer.
        error = commit_as_member(member._consumer, {tp: CommittedOffset(4)}, timeout_s=0)
        assert error is not None
        assert error.code() == KafkaError._TIMED_OUT
        member.commit({tp: 5})
        assert read_committed_offsets(settings, group_id, [tp]) == {tp: CommittedOffset(5)}


def test_a_commit_names_the_topics_that_were_deleted(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """The client does not, and returns one error for all; what can be stored is stored."""
    kept, gone = TopicPartition(topic(), 0), TopicPartition(topic(), 0)
    with GroupMember(settings, group_id, [kept.topic, gone.topic]) as member:
        until_shared(member, partitions=2)
        admin = AdminClient({**settings.admin()})
        admin.delete_topics([gone.topic])[gone.topic].result(TIMEOUT_S)
        wait_until_gone(settings.bootstrap_servers, gone.topic)
        with pytest.raises(UnknownTopicError) as caught:
            member.commit({kept: 5, gone: 1})
        assert list(caught.value.topics) == [gone.topic]
        assert member.committed([kept]) == {kept: CommittedOffset(5)}
