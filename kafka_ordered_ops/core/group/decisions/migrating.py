"""Hand a group over to Confluent's Parallel Consumer, share it, and take it back.

The offsets to commit and their maps are made from one state, in the transaction that writes this state. On the way
back, commits of Parallel Consumer join the group's progress by the rules of adoption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffsets, TopicFacts
from kafka_ordered_ops.core.errors import RecordsLostError
from kafka_ordered_ops.core.group.checks import (
    check_none_open,
    check_only_forward,
    check_topic_id,
    known_state,
    no_state,
)
from kafka_ordered_ops.core.group.decisions.adoption import (
    Cause,
    LogNow,
    Moved,
    find_moved,
    with_moved,
)
from kafka_ordered_ops.core.group.decisions.newcomers import begun, covered_before
from kafka_ordered_ops.core.group.decisions.truncation import check_not_cut, known_logs
from kafka_ordered_ops.core.group.group_state import (
    Change,
    Changes,
    GroupState,
    GroupView,
    TopicState,
    next_state,
)
from kafka_ordered_ops.core.group.ledger_rules import offsets_to_commit
from kafka_ordered_ops.core.group.others import (
    OthersCommit,
    OthersCommits,
    check_usable,
)
from kafka_ordered_ops.core.group.shared_commits import shared_commits
from kafka_ordered_ops.core.group.transitions import with_committed_bases
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import ProgressFormat, TopicPartition

#: The id of a topic: a commit has the same size with any.
_ANY_ID: Final = "A" * 22


@dataclass(frozen=True, slots=True)
class MigratedPartition:
    """One partition of a migrated group."""

    tp: TopicPartition
    #: The committed offset in Kafka before; None: there was none.
    base_before: int | None
    #: The committed offset after it.
    base: int
    #: Done offsets above it.
    done: OffsetSet
    #: Offsets that Parallel Consumer has done and the ledger did not know.
    gained: OffsetSet
    #: Size of the commit's metadata.
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Migration:
    """The change that a migration makes, or has made."""

    group_id: str
    before: ProgressFormat
    after: ProgressFormat
    #: Whether anything is written; False: the group was there already.
    changed: bool
    partitions: tuple[MigratedPartition, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "group": self.group_id,
            "before": self.before.value,
            "after": self.after.value,
            "changed": self.changed,
            "partitions": [
                {
                    "topic": partition.tp.topic,
                    "partition": partition.tp.partition,
                    "base_before": partition.base_before,
                    "base": partition.base,
                    "done_ranges": len(partition.done),
                    "done_offsets": partition.done.count,
                    "gained_offsets": partition.gained.count,
                    "size_bytes": partition.size_bytes,
                }
                for partition in self.partitions
            ],
        }


def migrate(
    view: GroupView,
    committed: CommittedOffsets,
    others: OthersCommits,
    logs: Mapping[TopicPartition, LogNow],
    present: Mapping[str, TopicFacts],
    to: ProgressFormat,
    *,
    adopts: bool,
) -> tuple[Change | None, Migration]:
    """Change the format in which a group's progress is kept; `view` holds every window.

    A group that shares its progress first takes over what Parallel Consumer has done: only forward, unless `adopts`
    accepts any change of other programs.

    Args:
        view: the group.
        committed: its committed offsets, of which `others` are those that other programs wrote.
        others: see `adoption.find_moved`.
        logs: the partitions that still exist.
        present: the group's topics that still exist.
        to: the format from now on.
        adopts: whether offsets that were moved back, recreated topics and truncated logs are adopted.

    Raises:
        UnknownWindowError: the ledger has no progress of the group.
        OpenClaimError: windows are open.
        ForeignCommitError, TopicRecreatedError, LogTruncatedError: another program changed the group, or its logs.
        RecordsLostError: retention removed offsets that are not done: Parallel Consumer would skip them unnoticed.
        OffsetMapDecodeError: a map of Parallel Consumer cannot be used.
        OffsetMapTooLargeError: done offsets do not fit into Parallel Consumer's maps.
    """
    state = _known_progress(view)
    check_none_open(state, "migrated")
    if state.format is to is ProgressFormat.PARALLEL_CONSUMER:
        # Its commits are the progress now, and stay as they are.
        return None, _unchanged(state, committed, others)
    changes = Changes(view)
    moved = find_moved(state, others, logs)
    if moved:
        if not adopts:
            _check_only_taken_over(view, moved, others, logs, present)
        changes.add(with_moved(view, moved, logs, present)[0])
    after = _with_begun(known_state(changes.view), others, logs)
    if state.format is not to or after is not changes.view.state:
        after = _in_format(after, to)
        changes.add(Change(state=after, records=(), commits_to=present))
    if to.is_shared:
        _check_nothing_lost(after, logs)
        shared_commits(after, present)
    change = changes.joined()
    final = after if change is None else change.state
    summary = _summary(state, final, committed, present, changed=change is not None)
    return change, summary


def _known_progress(view: GroupView) -> GroupState:
    state = known_state(view)
    if not state.topics:
        raise no_state(view.group_id)
    return state


def _check_only_taken_over(
    view: GroupView,
    moved: tuple[Moved, ...],
    others: OthersCommits,
    logs: Mapping[TopicPartition, LogNow],
    present: Mapping[str, TopicFacts],
) -> None:
    """Raise unless Parallel Consumer moved the group forward, and it shares the group's progress."""
    state = _known_progress(view)
    for move in moved:
        if move.cause is Cause.RECREATED:
            name = move.tp.topic
            check_topic_id(view.group_id, present[name], state.topics[name].topic_id)
    check_not_cut(
        view.group_id,
        known_logs(view),
        {tp: log.cut for tp, log in logs.items() if log.cut is not None},
    )
    check_only_forward(view, others)


def _with_begun(
    state: GroupState, others: OthersCommits, logs: Mapping[TopicPartition, LogNow]
) -> GroupState:
    """Return the state with partitions that appeared, and on which Parallel Consumer has begun."""
    if not state.format.is_shared:
        return state
    commits = {
        tp: commit
        for tp, commit in others.items()
        if tp in logs
        and state.partition(tp) is None
        and logs[tp].topic_id == state.topics[tp.topic].topic_id
    }
    check_usable(state.group_id, commits)
    topics = dict(state.topics)
    for tp, commit in commits.items():
        late = covered_before(state, tp.topic)
        new = replace(begun(commit), late=late.from_offset(commit.offset))
        topic = topics[tp.topic]
        topics[tp.topic] = replace(topic, partitions={**topic.partitions, tp.partition: new})
    return replace(state, topics=topics) if commits else state


def _in_format(state: GroupState, to: ProgressFormat) -> GroupState:
    """Return the state in another format, after its offsets are committed in Kafka."""

    def committed(topic: TopicState) -> TopicState:
        return replace(with_committed_bases(topic), settled=True)

    topics = {name: committed(topic) for name, topic in state.topics.items()}
    return next_state(replace(state, format=to, topics=topics))


def _check_nothing_lost(state: GroupState, logs: Mapping[TopicPartition, LogNow]) -> None:
    lost = {
        tp: gone
        for tp, partition in state
        if (log := logs.get(tp)) is not None
        and log.topic_id == state.topics[tp.topic].topic_id
        and (gone := OffsetSet.of((0, log.log_start)) - partition.done)
    }
    if lost:
        tp, gone = next(iter(sorted(lost.items())))
        raise RecordsLostError(
            f"group {state.group_id}: retention or deletion removed offsets that are not done, {tp} "
            f"[{gone.first}, {gone.end}) ({len(lost)} partitions): Parallel Consumer would skip them without a word. "
            "Commit a window with on_data_loss='warn', which records them as lost, and migrate again",
            lost={str(partition): offsets.ranges for partition, offsets in lost.items()},
        )


def _unchanged(state: GroupState, committed: CommittedOffsets, others: OthersCommits) -> Migration:
    """Return the summary of a group that Parallel Consumer has: its commits."""
    partitions = []
    for tp, partition in sorted(state):
        commit = committed.get(tp)
        if commit is None:
            continue
        other = others.get(tp, OthersCommit(commit.offset))
        known = partition.done | OffsetSet.of((0, other.offset))
        partitions.append(
            MigratedPartition(
                tp,
                base_before=other.offset,
                base=other.offset,
                done=other.done,
                gained=(other.done | known) - partition.done,
                size_bytes=len(commit.metadata),
            )
        )
    return Migration(state.group_id, state.format, state.format, False, tuple(partitions))


def _summary(
    before: GroupState,
    after: GroupState,
    committed: CommittedOffsets,
    present: Mapping[str, TopicFacts],
    *,
    changed: bool,
) -> Migration:
    partitions = []
    change = Change(state=after, records=(), commits_to=present)
    written = offsets_to_commit(change, ledger_id=_ANY_ID)
    for tp, partition in sorted(after):
        if tp not in written:
            continue
        known, commit = before.partition(tp), committed.get(tp)
        partitions.append(
            MigratedPartition(
                tp,
                base_before=None if commit is None else commit.offset,
                base=partition.base,
                done=partition.beyond,
                gained=partition.done - (EMPTY_SET if known is None else known.done),
                size_bytes=len(written[tp].metadata),
            )
        )
    return Migration(after.group_id, before.format, after.format, changed, tuple(partitions))
