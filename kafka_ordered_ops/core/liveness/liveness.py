"""Whether the partitions of a window are *live*: complete enough to plan, as far as a log shows.

A partition is live once a visible record is stamped at or after the cutoff (plus the maximum out-of-orderness):
its writers have passed the cutoff. It is *idle* if there is no such record, a grace period is set and has passed, and
no transaction is open. Otherwise it is *waiting*. Each answer includes its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, assert_never

from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.liveness.live_search import LivenessRule, LogFacts, Seen, Stamp, unread
from kafka_ordered_ops.core.times import duration_text, time_text
from kafka_ordered_ops.core.types import Isolation, TopicPartition, WindowStatus


class LivenessState(StrEnum):
    """The state of a partition or window."""

    LIVE = "live"
    IDLE = "idle"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Live:
    """A visible record at or after the cutoff (plus the maximum out-of-orderness) exists."""

    reason: ClassVar[str] = "record"
    record: Stamp

    def __str__(self) -> str:
        return str(self.record)


@dataclass(frozen=True, slots=True)
class Idle:
    """The partition has no such record, the grace has passed, and no transaction is open."""

    reason: ClassVar[str] = "grace_over"
    since_ms: int
    newest_ms: int | None

    def __str__(self) -> str:
        return f"idle since {time_text(self.since_ms)}{_newest(self.newest_ms)}"


@dataclass(frozen=True, slots=True)
class NothingYet:
    """Waiting: there is no visible record at or after the cutoff, and no grace period is set."""

    reason: ClassVar[str] = "no_record"
    live_from_ms: int
    newest_ms: int | None
    end_offset: int
    is_empty: bool

    def __str__(self) -> str:
        if self.is_empty:
            return f"the log is empty (end offset {self.end_offset:,})"
        return (
            f"no record at or after {time_text(self.live_from_ms)} below end offset "
            f"{self.end_offset:,}{_newest(self.newest_ms)}"
        )


@dataclass(frozen=True, slots=True)
class GraceRunning:
    """Waiting: there is no such record yet, and the grace has not passed."""

    reason: ClassVar[str] = "grace"
    until_ms: int
    newest_ms: int | None

    def __str__(self) -> str:
        return f"no record yet, idle from {time_text(self.until_ms)}{_newest(self.newest_ms)}"


@dataclass(frozen=True, slots=True)
class TransactionOpen:
    """Waiting: records after the last stable offset are undecided and may make the partition live."""

    reason: ClassVar[str] = "open_transaction"
    last_stable_offset: int
    high_watermark: int

    def __str__(self) -> str:
        return (
            f"a transaction is open: last stable offset {self.last_stable_offset:,}, "
            f"high watermark {self.high_watermark:,}"
        )


@dataclass(frozen=True, slots=True)
class OnlyFuture:
    """Waiting: the only such records are from the future and prove nothing about now."""

    reason: ClassVar[str] = "future"
    record: Stamp
    newest_ms: int | None

    def __str__(self) -> str:
        return f"{self.record}, too far in the future to count{_newest(self.newest_ms)}"


@dataclass(frozen=True, slots=True)
class Undecided:
    """Waiting: the search reached its limit. The next check continues from there."""

    reason: ClassVar[str] = "undecided"
    read_offsets: int
    unread_offsets: int

    def __str__(self) -> str:
        return f"not decided within {self.read_offsets:,} offsets, {self.unread_offsets:,} left to read"


Waiting = NothingYet | GraceRunning | TransactionOpen | OnlyFuture | Undecided
Verdict = Live | Idle | Waiting


def judge(rule: LivenessRule, facts: LogFacts, seen: Seen, *, now_ms: int) -> Verdict:
    """Return the verdict on one partition, and why."""
    newest_ms = seen.newest_ms
    if seen.record is not None and seen.decides(now_ms):
        return Live(seen.record)
    # Unread offsets may still hold such a record.
    if left := unread(facts, seen).count:
        return Undecided(seen.offsets.count, left)
    if facts.end_offset < facts.high_watermark:
        return TransactionOpen(facts.end_offset, facts.high_watermark)
    if rule.idle_from_ms is not None:
        if now_ms >= rule.idle_from_ms:
            return Idle(rule.idle_from_ms, newest_ms)
        return GraceRunning(rule.idle_from_ms, newest_ms)
    if seen.record is not None:
        return OnlyFuture(seen.record, newest_ms)
    is_empty = facts.log_start >= facts.end_offset
    return NothingYet(rule.live_from_ms, newest_ms, facts.end_offset, is_empty)


# --- the answer --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionLiveness:
    """One partition's verdict, with its numbers."""

    facts: LogFacts
    seen: Seen
    verdict: Verdict
    #: Offsets in the log that the group has not done, including control records and gaps; None if unknown.
    lag_offsets: int | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.facts.tp

    @property
    def state(self) -> LivenessState:
        """The state of the partition."""
        match self.verdict:
            case Live():
                return LivenessState.LIVE
            case Idle():
                return LivenessState.IDLE
            case NothingYet() | GraceRunning() | TransactionOpen() | OnlyFuture() | Undecided():
                return LivenessState.WAITING
            case _:
                assert_never(self.verdict)

    @property
    def newest_ms(self) -> int | None:
        """The greatest known timestamp of a record that is not from the future."""
        if isinstance(self.verdict, Live):
            return self.verdict.record.timestamp_ms
        return self.seen.newest_ms

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON: the same keys for every verdict."""
        record, facts = self.seen.record, self.facts
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "state": self.state.value,
            "reason": self.verdict.reason,
            "explanation": str(self.verdict),
            "offset": None if record is None else record.offset,
            "timestamp": None if record is None else time_text(record.timestamp_ms),
            "newest_timestamp": _time_or_none(self.newest_ms),
            "log_start": facts.log_start,
            "end_offset": facts.end_offset,
            "high_watermark": facts.high_watermark,
            "unread_offsets": 0
            if self.state is LivenessState.LIVE
            else unread(facts, self.seen).count,
            "lag_offsets": self.lag_offsets,
        }


@dataclass(frozen=True, slots=True)
class UncommittedWindow:
    """A window of the group that claims offsets and is not committed."""

    window_id: str
    status: WindowStatus
    cutoff_ms: int
    age_ms: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "window_id": self.window_id,
            "status": self.status.value,
            "cutoff": time_text(self.cutoff_ms),
            "age_seconds": self.age_ms / 1000,
        }


@dataclass(frozen=True, slots=True)
class GroupLiveness:
    """The open windows of the group that will take the records."""

    group_id: str
    #: Whether the ledger knows the group: it has planned a window.
    is_known: bool
    #: The oldest first.
    open_windows: tuple[UncommittedWindow, ...] = ()
    #: Ids of committed windows whose output readers do not see yet.
    unpublished: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Liveness:
    """The answer for all partitions of a window at one moment."""

    rule: LivenessRule
    isolation: Isolation
    now_ms: int
    #: Sorted by topic and partition.
    partitions: tuple[PartitionLiveness, ...]
    group: GroupLiveness | None = None

    @property
    def is_live(self) -> bool:
        """Whether every partition is live or idle, so that the window is complete enough to plan."""
        return not self.waiting

    @property
    def waiting(self) -> tuple[PartitionLiveness, ...]:
        """The partitions that the window waits for."""
        return tuple(
            partition for partition in self.partitions if partition.state is LivenessState.WAITING
        )

    def count(self, state: LivenessState) -> int:
        """Return the number of partitions in this state."""
        return sum(partition.state is state for partition in self.partitions)

    def seen_for(self, rule: LivenessRule, isolation: Isolation) -> dict[TopicPartition, Seen]:
        """Return the results that the next check does not need to read again; none if it asks for other records."""
        if (rule.live_from_ms, isolation) != (self.rule.live_from_ms, self.isolation):
            return {}
        return {partition.tp: partition.seen for partition in self.partitions}

    def same_as(self, other: Liveness) -> bool:
        """Return whether the partitions, their verdicts and their reasons are unchanged."""
        own, theirs = (
            [(partition.tp, partition.verdict.reason) for partition in answer.partitions]
            for answer in (self, other)
        )
        return own == theirs

    def __str__(self) -> str:
        live, *others = LivenessState
        counts = [f"{self.count(live):,} of {len(self.partitions):,} partitions live"]
        counts += [f"{count:,} {state}" for state in others if (count := self.count(state))]
        return ", ".join(counts)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, for the command line and for hosts."""
        rule, group = self.rule, self.group
        return {
            "live": self.is_live,
            "cutoff": time_text(rule.cutoff_ms),
            "max_out_of_orderness": duration_text(rule.out_of_orderness_ms),
            "grace": None if rule.grace_ms is None else duration_text(rule.grace_ms),
            "live_from": time_text(rule.live_from_ms),
            "idle_from": _time_or_none(rule.idle_from_ms),
            "isolation": self.isolation.value,
            "checked_at": time_text(self.now_ms),
            "counts": {state.value: self.count(state) for state in LivenessState},
            "partitions": [partition.to_json() for partition in self.partitions],
            "group": None if group is None else group.group_id,
            "open_windows": None
            if group is None
            else [window.to_json() for window in group.open_windows],
            "unpublished_windows": None if group is None else list(group.unpublished),
        }


def answer(
    rule: LivenessRule,
    isolation: Isolation,
    looked: Sequence[tuple[LogFacts, Seen]],
    view: GroupView | None,
    *,
    now_ms: int,
) -> Liveness:
    """Return the verdicts, with the group's facts if there is a group."""
    return Liveness(
        rule=rule,
        isolation=isolation,
        now_ms=now_ms,
        partitions=tuple(
            PartitionLiveness(
                facts,
                seen,
                judge(rule, facts, seen, now_ms=now_ms),
                None if view is None else _lag_offsets(view, facts),
            )
            for facts, seen in sorted(looked, key=lambda pair: pair[0].tp)
        ),
        group=None if view is None else _group(view, now_ms),
    )


def _lag_offsets(view: GroupView, facts: LogFacts) -> int | None:
    topic = view.state.topics.get(facts.tp.topic) if view.state else None
    if topic is None or topic.topic_id != facts.topic_id:
        return None
    known = topic.partitions.get(facts.tp.partition)
    return None if known is None else known.lag(facts.log_start, facts.end_offset)


def _group(view: GroupView, now_ms: int) -> GroupLiveness:
    windows = [
        UncommittedWindow(
            window_id=record.plan.window_id,
            status=record.status,
            cutoff_ms=record.plan.cutoff_ms,
            age_ms=max(now_ms - record.plan.planned_at_ms, 0),
        )
        for record in view.open_windows()
    ]
    windows.sort(key=lambda window: (-window.age_ms, window.window_id))
    unpublished = view.state.unpublished if view.state else ()
    return GroupLiveness(view.group_id, view.state is not None, tuple(windows), unpublished)


def _newest(newest_ms: int | None) -> str:
    return "" if newest_ms is None else f"; the newest is stamped {time_text(newest_ms)}"


def _time_or_none(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None else time_text(timestamp_ms)
