"""Handing progress over to Parallel Consumer and taking it back, decision by decision, for any done sets."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import (
    ForeignCommitError,
    GroupHandedOverError,
    OffsetMapDecodeError,
    OffsetMapTooLargeError,
    OpenClaimError,
    UnknownWindowError,
    WindowGroupError,
)
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.cluster.cluster_facts import (
    CommittedOffset,
    CommittedOffsets,
    TopicFacts,
)
from kafka_ordered_ops.core.cluster.membership import check_not_of_windows
from kafka_ordered_ops.core.group.checks import (
    check_foreign,
    check_not_handed_over,
    moved_by_others,
)
from kafka_ordered_ops.core.group.decisions import migrating, resetting
from kafka_ordered_ops.core.group.decisions.adoption import LogNow
from kafka_ordered_ops.core.group.decisions.migrating import Migration
from kafka_ordered_ops.core.group.group_state import (
    GroupDefinition,
    GroupState,
    GroupView,
    PartitionState,
    TopicState,
)
from kafka_ordered_ops.core.group.ledger_rules import (
    are_of_one_moment,
    commits_of_others,
    offsets_to_commit,
)
from kafka_ordered_ops.core.group.others import OthersCommit, others_commit
from kafka_ordered_ops.core.group.shared_commits import shared_commits
from kafka_ordered_ops.core.offset_map.parallel_consumer import (
    decode_parallel_consumer_map,
    encode_parallel_consumer_map,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.strict_json import JsonError, JsonVersionError
from kafka_ordered_ops.core.types import Isolation, Mode, ProgressFormat, TopicPartition
from tests.support.strategies import offset_sets

#: Longer than any set of the strategies.
END = 100
LEDGER_ID = "A" * 22
TOPIC = TopicFacts("orders", "B" * 22, (0, 1))
PRESENT = {"orders": TOPIC}
TPS = (TopicPartition("orders", 0), TopicPartition("orders", 1))
SHARED = (ProgressFormat.DUAL, ProgressFormat.PARALLEL_CONSUMER)

pairs = st.tuples(offset_sets, offset_sets)


class Group:
    """A group, its commits in Kafka, and Parallel Consumer beside it."""

    def __init__(self, *done: OffsetSet, format: ProgressFormat = ProgressFormat.LEDGER) -> None:
        partitions = {
            number: PartitionState(0, one, committed=one.first_missing(0))
            for number, one in enumerate(done)
        }
        state = GroupState(
            "g",
            1,
            GroupDefinition(Mode.CATCH_UP, Isolation.READ_COMMITTED, ("orders",), ()),
            (),
            {"orders": TopicState(TOPIC.topic_id, settled=True, partitions=partitions)},
            (),
        )
        self.view = GroupView("g", state)
        self.commits: dict[TopicPartition, CommittedOffset | None] = dict.fromkeys(TPS[: len(done)])
        self.end = END
        if format is not ProgressFormat.LEDGER:
            self.migrate(format)

    @property
    def state(self) -> GroupState:
        """As the ledger has it."""
        assert self.view.state is not None
        return self.view.state

    @property
    def done(self) -> list[OffsetSet]:
        """Of each partition."""
        return [one.done for _, one in self.state]

    @property
    def others(self) -> dict[TopicPartition, OthersCommit]:
        """What the commits say that are not the package's own."""
        return commits_of_others(self.commits, self.state, dict.fromkeys(TPS, self.end))

    @property
    def logs(self) -> dict[TopicPartition, LogNow]:
        """All of them from their beginning."""
        return {tp: LogNow(TOPIC.topic_id, 0, self.end) for tp in self.commits}

    def migrate(self, to: ProgressFormat, *, adopts: bool = False) -> Migration:
        """Migrates, and writes what comes of it: through JSON and back."""
        change, migration = migrating.migrate(
            self.view, self.commits, self.others, self.logs, PRESENT, to, adopts=adopts
        )
        assert (change is not None) is migration.changed
        if change is not None:
            state = GroupState.from_json(_through_json(change.state))
            assert state == change.state
            assert state.format is to
            self.commits |= offsets_to_commit(change, ledger_id=LEDGER_ID)
            self.view = change.applied_to(self.view)
        return migration

    def play(self, *done: OffsetSet) -> None:
        """Parallel Consumer has done these as well, and commits."""
        for tp, more in zip(self.commits, done, strict=True):
            found = self.commits[tp]
            assert found is not None
            told = decode_parallel_consumer_map(found.metadata, found.offset).done
            self.commits[tp] = _commit(OffsetSet.of((0, found.offset)) | told | more)


def _commit(done: OffsetSet) -> CommittedOffset:
    base = done.first_missing(0)
    metadata = encode_parallel_consumer_map(base, done - OffsetSet.of((0, base)))
    return CommittedOffset(base, metadata)


def _through_json(state: GroupState) -> Any:
    text = strict_json.dumps(state.to_json())
    return strict_json.loads(text, limit_bytes=10**8)


# --- there and back -----------------------------------------------------------------------------------


@given(pairs, st.sampled_from(SHARED))
def test_what_is_handed_over_is_what_is_done(
    done: tuple[OffsetSet, OffsetSet], to: ProgressFormat
) -> None:
    """Base and map of each commit decode to exactly the done set; nothing of it is foreign."""
    group = Group(*done)
    migration = group.migrate(to)
    for one, wanted in zip(migration.partitions, done, strict=True):
        found = group.commits[one.tp]
        assert found is not None
        assert OffsetSet.of((0, found.offset)) | others_commit(found, where="here").done == wanted
        assert (one.base, one.done) == (found.offset, wanted - OffsetSet.of((0, found.offset)))
        assert (one.size_bytes, one.gained) == (len(found.metadata), EMPTY_SET)
    assert group.done == list(done)
    assert moved_by_others(group.state, group.others) == {}
    assert not group.migrate(to).changed


@given(pairs, pairs, st.sampled_from(SHARED))
def test_what_is_taken_back_is_what_both_have_done(
    done: tuple[OffsetSet, OffsetSet], more: tuple[OffsetSet, OffsetSet], to: ProgressFormat
) -> None:
    """The union, whatever Parallel Consumer did; and without it the very state there was."""
    group = Group(*done)
    before = group.state
    group.migrate(to)
    group.play(*more)
    migration = group.migrate(ProgressFormat.LEDGER)
    assert group.done == [one | two for one, two in zip(done, more, strict=True)]
    assert [one.gained for one in migration.partitions] == [
        two - one for one, two in zip(done, more, strict=True)
    ]
    assert moved_by_others(group.state, group.others) == {}
    if not any(two - one for one, two in zip(done, more, strict=True)):
        topics = group.state.topics
        assert replace(group.state, sequence=1, offsets_sequence=None) == before
        assert topics == before.topics


@given(pairs, st.lists(st.tuples(st.sampled_from([*ProgressFormat]), pairs), max_size=6))
def test_any_way_between_the_formats_loses_nothing(
    done: tuple[OffsetSet, OffsetSet],
    steps: list[tuple[ProgressFormat, tuple[OffsetSet, OffsetSet]]],
) -> None:
    """Progress is all that anybody has done so far, as soon as the ledger is asked again."""
    group, so_far = Group(*done), list(done)
    for to, more in steps:
        group.migrate(to)
        if group.state.format.is_shared:
            group.play(*more)
            so_far = [one | two for one, two in zip(so_far, more, strict=True)]
    group.migrate(ProgressFormat.LEDGER)
    assert group.done == so_far


@given(offset_sets, offset_sets)
def test_an_offset_that_was_set_back_is_nobodys_progress(done: OffsetSet, other: OffsetSet) -> None:
    """Refused unless adopted; then progress is exactly what the commit says."""
    group = Group(done, format=ProgressFormat.PARALLEL_CONSUMER)
    group.commits[TPS[0]] = _commit(other)
    base = other.first_missing(0)
    if base >= done.first_missing(0):
        group.migrate(ProgressFormat.LEDGER)
        assert group.done == [done | other]
        return
    with pytest.raises(ForeignCommitError) as caught:
        group.migrate(ProgressFormat.LEDGER)
    assert not caught.value.by_parallel_consumer
    group.migrate(ProgressFormat.LEDGER, adopts=True)
    assert group.done == [(done & OffsetSet.of((0, base))) | other]


@given(offset_sets, st.integers(0, END))
def test_a_reset_is_exact(done: OffsetSet, offset: int) -> None:
    """Everything below is done, and nothing at or above; the counts are those of the log."""
    group = Group(done)
    change, told = resetting.reset(group.view, {TPS[0]: offset}, group.others, group.logs, PRESENT)
    wanted = OffsetSet.of((0, offset))
    if change is not None:
        [(_, partition)] = change.state
        assert (partition.done, partition.committed) == (wanted, offset)
    assert (change is None) is (done == wanted)
    [one] = told.partitions
    assert (one.skipped, one.repeated) == ((wanted - done).count, (done - wanted).count)


def test_deleted_offsets_are_not_repeated() -> None:
    """Nobody reads again what retention has removed."""
    done = OffsetSet.of((0, 2), (3, 4), (7, 9))
    one = resetting.ResetPartition.of(TPS[0], before=2, after=2, done=done, log=(5, 10))
    assert (one.skipped, one.repeated) == (0, 2)


# --- what is refused ---------------------------------------------------------------------------------------


def test_a_map_past_the_end_is_of_another_log() -> None:
    """One offset more than the log has, and nothing of it is believed."""
    group = Group(OffsetSet.of((0, 1)), format=ProgressFormat.DUAL)
    group.play(OffsetSet.of((END - 1, END)))
    group.migrate(ProgressFormat.DUAL)
    group.play(OffsetSet.of((END, END + 1)))
    with pytest.raises(OffsetMapDecodeError, match=r"group g, orders\[0\]: .*offsets reset"):
        group.migrate(ProgressFormat.LEDGER)


def test_every_partition_that_does_not_fit_is_named() -> None:
    """Of both partitions, with the sizes; of a fitting group none."""
    random = Random(1)
    odd = OffsetSet.from_ranges(
        (start, start + random.randint(1, 9)) for start in range(1, 100_000, 10)
    )
    group = Group(odd, odd)
    group.end = 10**6
    with pytest.raises(OffsetMapTooLargeError) as caught:
        group.migrate(ProgressFormat.PARALLEL_CONSUMER)
    assert all(f"{tp} (" in str(caught.value) for tp in TPS)
    assert caught.value.size > caught.value.limit == 4_096
    assert len(shared_commits(Group(OffsetSet.of((3, 4))).state, PRESENT)) == 1


def test_a_group_with_open_windows_or_without_progress_is_not_migrated() -> None:
    """Nor reset: open windows hold offsets that are neither done nor free."""
    group = Group(OffsetSet.of((0, 1)))
    group.view = GroupView("g", replace(group.state, open=tuple(f"w{n}" for n in range(10))))
    with pytest.raises(OpenClaimError, match=r"w0, .*w7 and 2 more"):
        group.migrate(ProgressFormat.DUAL)
    with pytest.raises(OpenClaimError, match="reset"):
        resetting.reset(group.view, {TPS[0]: 0}, {}, group.logs, PRESENT)
    for state in (None, replace(group.state, topics={}, open=())):
        group.view = GroupView("g", state)
        with pytest.raises(UnknownWindowError, match="no state"):
            migrating.migrate(group.view, {}, {}, {}, {}, ProgressFormat.DUAL, adopts=False)


def test_only_a_group_that_was_handed_over_refuses_plans() -> None:
    """A shared one, and one in the ledger, plan."""
    for to in ProgressFormat:
        state = replace(Group(EMPTY_SET).state, format=to)
        if to is ProgressFormat.PARALLEL_CONSUMER:
            with pytest.raises(GroupHandedOverError, match="migrate --to ledger"):
                check_not_handed_over(state)
        else:
            check_not_handed_over(state)
    check_not_handed_over(None)


def test_a_plain_consumer_in_a_shared_group_is_foreign() -> None:
    """Its text is no offset map: a person decides."""
    group = Group(OffsetSet.of((0, 1)), format=ProgressFormat.DUAL)
    for metadata, is_partner in ((b"host-1:pid", False), (b"", True)):
        commits = {TPS[0]: CommittedOffset(5, metadata)}
        with pytest.raises(ForeignCommitError) as caught:
            check_foreign(group.state, commits_of_others(commits, group.state))
        assert caught.value.by_parallel_consumer is is_partner


def test_a_live_reader_destroys_no_map() -> None:
    """A group whose commits have a map is refused, whoever wrote it; any other is not."""
    check_not_of_windows("g", {TPS[0]: CommittedOffset(1, b"host-1:pid"), TPS[1]: None})
    group = Group(OffsetSet.of((3, 4)))
    for to, whom in (
        (ProgressFormat.DUAL, "Parallel Consumer"),
        (ProgressFormat.LEDGER, "windows"),
    ):
        group.migrate(to)
        with pytest.raises(WindowGroupError, match=f"group of {whom}"):
            check_not_of_windows("g", group.commits)


# --- records of the ledger ------------------------------------------------------------------------------------


def test_state_records_of_other_versions_are_refused() -> None:
    """One of another version asks for an upgrade; one without its format is damaged."""
    told = Group(OffsetSet.of((0, 3)), format=ProgressFormat.DUAL).state.to_json()
    for fields, error in (
        ({**told, "version": 2}, JsonVersionError),
        ({**told, "format": "other"}, JsonError),
        ({name: one for name, one in told.items() if name != "format"}, JsonError),
    ):
        with pytest.raises(error):
            GroupState.from_json(fields)


def test_offsets_are_compared_with_a_state_of_their_moment() -> None:
    """Where they differ from it, another process may have committed between the two reads."""
    group = Group(OffsetSet.of((0, 3)), format=ProgressFormat.DUAL)
    before, now = group.state, replace(group.state, offsets_sequence=9)
    same: CommittedOffsets = group.commits
    older: CommittedOffsets = {TPS[0]: CommittedOffset(1)}
    assert are_of_one_moment(None, now, same)
    assert are_of_one_moment(None, None, older)
    assert not are_of_one_moment(None, now, older)
    assert not are_of_one_moment(before, now, older)
    assert are_of_one_moment(now, now, older)
