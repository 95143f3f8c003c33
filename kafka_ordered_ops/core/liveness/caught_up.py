"""Whether a group has *caught up* with a cutoff: all records before it are committed, as far as a cheap check shows.

The check uses the ledger and the broker's index, and reads no records. It misses a record that was written after a
record stamped at or after the cutoff, and after the group last read the log. Such a record is late, and belongs to the
next window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kafka_ordered_ops.core.group.group_state import Claims, GroupView, PartitionState
from kafka_ordered_ops.core.liveness.live_search import LogFacts
from kafka_ordered_ops.core.offset_set import OffsetSet, union_of
from kafka_ordered_ops.core.planning.planning import head_end
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import INT64_MIN, Mode, TopicPartition

#: Open windows listed in an answer.
_NAMED_MAX: Final = 20


class CatchUpState(StrEnum):
    """Whether a partition or group has caught up."""

    CAUGHT_UP = "caught_up"
    WAITING = "waiting"


class CatchUpReason(StrEnum):
    """Why a partition is caught up, or is not."""

    COMMITTED = "committed"
    UNKNOWN = "unknown"
    NOT_COVERED = "not_covered"
    OPEN_WINDOW = "open_window"
    NOT_DONE = "not_done"
    OPEN_TRANSACTION = "open_transaction"


@dataclass(frozen=True, slots=True)
class PartitionCatchUp:
    """One partition's verdict."""

    tp: TopicPartition
    reason: CatchUpReason
    explanation: str
    #: Offsets known to be before the cutoff that are not committed, including control records and gaps.
    lag_offsets: int | None

    @property
    def state(self) -> CatchUpState:
        """Whether the partition has caught up."""
        is_done = self.reason is CatchUpReason.COMMITTED
        return CatchUpState.CAUGHT_UP if is_done else CatchUpState.WAITING

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON: the same keys for every verdict."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "state": self.state.value,
            "reason": self.reason.value,
            "explanation": self.explanation,
            "lag_offsets": self.lag_offsets,
        }


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The answer for all partitions of a window at one moment."""

    group_id: str
    times: TimeRange
    now_ms: int
    #: Sorted by topic and partition.
    partitions: tuple[PartitionCatchUp, ...]
    #: Ids of the group's open windows that ask for these times, at most `_NAMED_MAX`.
    open_windows: tuple[str, ...]
    #: Ids of committed windows of these times whose output readers do not see yet, at most `_NAMED_MAX`.
    unpublished_windows: tuple[str, ...] = ()

    @property
    def is_caught_up(self) -> bool:
        """Whether every partition has caught up, and readers see the output of all committed windows."""
        return not self.count(CatchUpState.WAITING) and not self.unpublished_windows

    def count(self, state: CatchUpState) -> int:
        """Return the number of partitions in this state."""
        return sum(partition.state is state for partition in self.partitions)

    def __str__(self) -> str:
        done, every = self.count(CatchUpState.CAUGHT_UP), len(self.partitions)
        return f"group {self.group_id} has caught up in {done:,} of {every:,} partitions"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        since_ms, before_ms = self.times
        return {
            "caught_up": self.is_caught_up,
            "since": None if since_ms == INT64_MIN else time_text(since_ms),
            "cutoff": time_text(before_ms),
            "checked_at": time_text(self.now_ms),
            "counts": {state.value: self.count(state) for state in CatchUpState},
            "partitions": [partition.to_json() for partition in self.partitions],
            "group": self.group_id,
            "open_windows": list(self.open_windows),
            "unpublished_windows": list(self.unpublished_windows),
        }


def caught_up(
    view: GroupView, looked: Sequence[LogFacts], times: TimeRange, *, now_ms: int
) -> CatchUp:
    """Return the verdicts, from the facts of the ledger and the broker.

    For a group in catch-up mode, the check is about all times before the end of `times`, whatever their start.
    """
    if view.state is not None and view.state.definition.mode is Mode.CATCH_UP:
        times = TimeRange(INT64_MIN, times.before_ms)
    meeting = [
        record.plan.window_id
        for record in view.open_windows()
        if record.plan.window.times.meets(times)
    ]
    # An unreadable window may hold any offsets.
    meeting += view.open_unreadable()
    ordered, claims = sorted(looked, key=lambda facts: facts.tp), view.known_claims()
    return CatchUp(
        view.group_id,
        times,
        now_ms,
        tuple(_catch_up_of(view, claims, facts, times) for facts in ordered),
        tuple(meeting[:_NAMED_MAX]),
        tuple(_unpublished(view, times)[:_NAMED_MAX]),
    )


def _unpublished(view: GroupView, times: TimeRange) -> list[str]:
    """Return the unpublished windows that ask for these times; an unreadable window may ask for any times."""
    names = view.state.unpublished if view.state else ()
    return [
        name
        for name in names
        if (record := view.windows.get(name)) is None or record.plan.window.times.meets(times)
    ]


def _catch_up_of(
    view: GroupView, claims: Claims, facts: LogFacts, times: TimeRange
) -> PartitionCatchUp:
    def verdict(
        reason: CatchUpReason, explanation: str, lag: int | None = None
    ) -> PartitionCatchUp:
        return PartitionCatchUp(facts.tp, reason, explanation, lag)

    topic = None if view.state is None else view.state.topics.get(facts.tp.topic)
    if topic is None or topic.topic_id != facts.topic_id:
        return verdict(CatchUpReason.UNKNOWN, "the group has committed nothing of this topic")
    known = topic.partitions.get(facts.tp.partition)
    if known is None:
        # A partition that was added later.
        if facts.log_start >= facts.high_watermark:
            return verdict(CatchUpReason.COMMITTED, "new to the group, and empty", 0)
        return verdict(CatchUpReason.UNKNOWN, "new to the group")
    if not known.late.cover(times):
        return verdict(CatchUpReason.NOT_COVERED, _coverage(known))
    held = _held(claims, facts.tp, times)
    if held:
        return verdict(
            CatchUpReason.OPEN_WINDOW,
            f"{held.count:,} offsets are in open windows, from {held.first:,} on",
        )
    if times.since_ms != INT64_MIN:
        return verdict(CatchUpReason.COMMITTED, "the interval is committed")
    left = _open_offsets(view, facts, known, times)
    if left:
        return verdict(
            CatchUpReason.NOT_DONE,
            f"{left.count:,} offsets before the cutoff are in no window, from {left.first:,} on",
            left.count,
        )
    undecided = facts.index_offset is None or facts.index_offset > facts.end_offset
    if undecided and facts.end_offset < facts.high_watermark:
        return verdict(
            CatchUpReason.OPEN_TRANSACTION,
            f"a transaction is open: last stable offset {facts.end_offset:,}, high watermark "
            f"{facts.high_watermark:,}",
        )
    return verdict(CatchUpReason.COMMITTED, "everything before the cutoff is committed", 0)


def _coverage(known: PartitionState) -> str:
    times = known.late.times
    if not times:
        return "no window with this partition is committed"
    return f"committed windows reach up to {time_text(times[-1].before_ms)}"


def _held(claims: Claims, tp: TopicPartition, times: TimeRange) -> OffsetSet:
    """Return offsets that open windows of these times hold."""
    return union_of(
        offsets
        for part, claim_times in claims.by_partition.get(tp, ())
        if claim_times.meets(times)
        for offsets in (part.taken, part.lost)
    )


def _open_offsets(
    view: GroupView, facts: LogFacts, known: PartitionState, times: TimeRange
) -> OffsetSet:
    """Return offsets before the cutoff that are not done, by the index or by the group's own reads.

    If the index proves nothing, offsets that the group has not read may be before the cutoff.
    """
    time_map, every = (
        view.time_map(facts.tp, facts.topic_id),
        OffsetSet.of((facts.log_start, facts.end_offset)),
    )
    early = time_map.meeting(times)
    if not facts.index_is_proven:
        return every - known.done - (time_map.covered - early)
    head = head_end(
        times.before_ms,
        log_start=facts.log_start,
        end=facts.end_offset,
        index_offset=facts.index_offset,
    )
    return (OffsetSet.of((facts.log_start, head)) | (every & early)) - known.done
