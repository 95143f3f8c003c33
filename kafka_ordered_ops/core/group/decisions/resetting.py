"""Set a group's progress to offsets of a person's choice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts
from kafka_ordered_ops.core.group.checks import (
    check_foreign,
    check_none_open,
    check_only_forward,
    check_topic_id,
    known_state,
)
from kafka_ordered_ops.core.group.decisions.adoption import (
    Cause,
    LogNow,
    Moved,
    find_moved,
    with_moved,
)
from kafka_ordered_ops.core.group.decisions.truncation import check_not_cut, known_logs
from kafka_ordered_ops.core.group.group_state import Change, Changes, GroupView
from kafka_ordered_ops.core.group.others import OthersCommits
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class ResetPartition:
    """One partition of a group that is reset. Counts are of offsets: an upper bound for records."""

    tp: TopicPartition
    #: The first offset that was not done; None: the group had no committed offset.
    before: int | None
    #: The committed offset from now on: everything below counts as done, nothing at or above.
    after: int
    #: Offsets of the log below it that were not done, and are never delivered.
    skipped: int
    #: Offsets of the log at or above it that were done, and are delivered again.
    repeated: int

    @classmethod
    def of(
        cls,
        tp: TopicPartition,
        *,
        before: int | None,
        after: int,
        done: OffsetSet,
        log: tuple[int, int],
    ) -> ResetPartition:
        """Return the summary for a partition with these done offsets and a log with this start and end."""
        below = OffsetSet.of((log[0], min(after, log[1])))
        above = OffsetSet.of((max(after, log[0]), log[1]))
        return cls(tp, before, after, (below - done).count, (above & done).count)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """The change that a reset makes, or has made."""

    group_id: str
    partitions: tuple[ResetPartition, ...]
    #: Committed windows some of whose offsets are open again.
    rewound: tuple[str, ...] = ()
    #: Whether the ledger has progress of the group; otherwise only its committed offsets are written.
    has_ledger: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "group": self.group_id,
            "has_ledger": self.has_ledger,
            "partitions": [
                {
                    "topic": partition.tp.topic,
                    "partition": partition.tp.partition,
                    "before": partition.before,
                    "after": partition.after,
                    "skipped_offsets": partition.skipped,
                    "repeated_offsets": partition.repeated,
                }
                for partition in self.partitions
            ],
            "rewound": list(self.rewound),
        }


def reset(
    view: GroupView,
    wanted: Mapping[TopicPartition, int],
    others: OthersCommits,
    logs: Mapping[TopicPartition, LogNow],
    present: Mapping[str, TopicFacts],
) -> tuple[Change | None, OffsetReset]:
    """Set the progress of partitions: everything below the wanted offset is done, and nothing at or above it.

    Committed windows with later offsets are rewound. For the arguments see `adoption.adopt`; commits of other programs
    on the wanted partitions are overwritten. In a group that shares its progress, what Parallel Consumer has done since
    counts as done before.

    Raises:
        UnknownWindowError: the ledger has no state of the group.
        OpenClaimError: windows are open.
        TopicRecreatedError, LogTruncatedError: the progress is about another log. Adopt that first.
        ForeignCommitError: another program moved offsets of other partitions.
    """
    state = known_state(view)
    check_none_open(state, "reset")
    _check_same_logs(view, wanted, logs, present)
    changes = Changes(view)
    if done_since := _done_since(view, wanted, others, logs):
        changes.add(with_moved(view, done_since, logs, present)[0])
    state = known_state(changes.view)
    moved, partitions = [], []
    for tp, offset in sorted(wanted.items()):
        known, log = state.topics[tp.topic].partitions[tp.partition], logs[tp]
        partitions.append(
            ResetPartition.of(
                tp, before=known.base, after=offset, done=known.done, log=(log.log_start, log.end)
            )
        )
        if tp in others or known.committed != offset or known.done != OffsetSet.of((0, offset)):
            moved.append(Moved(tp, Cause.RESET, known.base, offset))
    if not moved:
        return None, OffsetReset(view.group_id, tuple(partitions), has_ledger=True)
    change, adopted = with_moved(changes.view, moved, logs, present)
    changes.add(change)
    summary = OffsetReset(view.group_id, tuple(partitions), adopted.rewound, has_ledger=True)
    return changes.joined(), summary


def _done_since(
    view: GroupView,
    wanted: Collection[TopicPartition],
    others: OthersCommits,
    logs: Mapping[TopicPartition, LogNow],
) -> tuple[Moved, ...]:
    """Return what Parallel Consumer has done in a group that it shares.

    Raises `ForeignCommitError` if other partitions than the wanted ones were moved in another way, or by others.
    """
    state = known_state(view)
    left = {tp: commit for tp, commit in others.items() if tp not in wanted}
    if not state.format.is_shared:
        check_foreign(state, left)
        return ()
    check_only_forward(view, left)
    # Of the wanted ones, whose commits are overwritten, what can be believed.
    usable = {tp: commit for tp, commit in others.items() if tp in left or commit.problem is None}
    moved = find_moved(state, usable, logs)
    return tuple(move for move in moved if move.cause is Cause.FORWARD)


def _check_same_logs(
    view: GroupView,
    wanted: Collection[TopicPartition],
    logs: Mapping[TopicPartition, LogNow],
    present: Mapping[str, TopicFacts],
) -> None:
    state = known_state(view)
    for name in {tp.topic for tp in wanted}:
        check_topic_id(view.group_id, present[name], state.topics[name].topic_id)
    cuts = {tp: log.cut for tp, log in logs.items() if log.cut is not None}
    check_not_cut(view.group_id, known_logs(view), cuts)
