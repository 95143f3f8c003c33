"""Which offsets a window takes: facts about one partition in, an exact offset set out.

Four steps, so that reading happens between decisions and never inside one:

1. `ask`: from facts, progress and claims, what is open, and which of it must be scanned.
2. The caller scans (`scan_fold`).
3. `draft`: what of the open offsets lies before the cutoff.
4. `settle`: the draft against the newest progress and claims, inside the fence.

*Head*: every record before the first one stamped at or after the cutoff is taken without being read.
*Tail*: what lies behind it is decided by the time map, or by reading timestamps. Taken is a complement:
everything decided, less the records stamped at or after the cutoff, less what is done or claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from kafka_ordered_ops.core.bounds import (
    AtOffset,
    AtTime,
    Bound,
    Committed,
    Earliest,
    Latest,
    Relative,
)
from kafka_ordered_ops.core.errors import PlanError, invariant
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.plan import LateSteps, PartitionPlan
from kafka_ordered_ops.core.scan_fold import ScanFold, ScanResult, ScanStop
from kafka_ordered_ops.core.time_map import EMPTY_MAP, TimeMap
from kafka_ordered_ops.core.types import TopicPartition

#: A record stamped further ahead than this is no sign that time has passed (Kafka's own default for
#: ``log.message.timestamp.after.max.ms``).
FUTURE_TOLERANCE_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """What the broker said about one partition, the end offset asked before the time."""

    tp: TopicPartition
    topic_id: str
    log_start: int
    #: Last stable offset under read_committed, high watermark otherwise.
    end: int
    #: Every record below it is stamped before the cutoff.
    head_end: int


@dataclass(frozen=True, slots=True)
class PartitionQuestion:
    """What one partition has open, and what must be read to decide it."""

    facts: PartitionFacts
    #: Below the end, neither done nor claimed, still in the log.
    open: OffsetSet
    #: Neither done nor claimed, and no longer in the log.
    lost: OffsetSet
    #: Known from the time map to stay for a later window.
    known_after: OffsetSet
    #: Its timestamps must be read.
    to_scan: OffsetSet
    #: Chunks of the time map that need no reading, and those that a scan replaces.
    known: OffsetSet
    superseded: OffsetSet
    stop: ScanStop | None

    def fold(self, cutoff_ms: int) -> ScanFold:
        """Takes in what a scan of `to_scan` finds."""
        return ScanFold(self.to_scan, cutoff_ms, self.stop, self.known)


@dataclass(frozen=True, slots=True)
class PartitionDraft:
    """A decision made outside the fence: still to be reconciled with what others did meanwhile."""

    facts: PartitionFacts
    decided: OffsetSet
    included: OffsetSet
    lost: OffsetSet
    decided_end: int
    #: What the scan learned, and the older chunks that it replaces.
    learned: TimeMap
    superseded: OffsetSet
    records_scanned: int


def lookup_time_ms(cutoff_ms: int) -> int | None:
    """The time to ask the broker's index for, or None where it must not be asked.

    One millisecond before the cutoff: an old broker may answer a tie between an index entry and the time
    asked for inexactly. Times below zero mean "latest" and "earliest" to the broker.
    """
    return cutoff_ms - 1 if cutoff_ms >= 1 else None


def head_end(cutoff_ms: int, *, log_start: int, end: int, found: int | None) -> int:
    """Where the head ends, from the index's answer for `lookup_time_ms`."""
    if lookup_time_ms(cutoff_ms) is None:
        return log_start
    return end if found is None else max(min(found, end), log_start)


def bound_time_ms(bound: Bound, cutoff_ms: int) -> int | None:
    """The time that a start bound asks the index for, if it does."""
    match bound:
        case AtTime(timestamp_ms):
            return max(timestamp_ms, 0)
        case Relative(before_cutoff_ms):
            return max(cutoff_ms - before_cutoff_ms, 0)
        case _:
            return None


def resolve_start(
    bound: Bound, *, log_start: int, end: int, committed: int | None, found: int | None
) -> int | None:
    """The offset a bound means on one partition; None where it means the committed offset and there is none.

    `found` answers `bound_time_ms`. An empty partition needs no committed offset: there is nothing to lose.
    """
    match bound:
        case Earliest():
            return log_start
        case Latest():
            return end
        case Committed():
            return committed if committed is not None or log_start < end else log_start
        case AtTime() | Relative():
            return end if found is None else max(min(found, end), log_start)
        case AtOffset(offset):
            return max(min(offset, end), log_start)
        case _:
            assert_never(bound)


def ask(
    facts: PartitionFacts,
    *,
    done: OffsetSet,
    claimed: OffsetSet,
    time_map: TimeMap,
    cutoff_ms: int,
    lateness_ms: int | None,
    now_ms: int,
) -> PartitionQuestion:
    """What is open on a partition, and what must be scanned.

    Raises:
        PlanError: the group's progress lies beyond the end of the log.
    """
    base = done.first_missing(0)
    if base > facts.end:
        raise PlanError(
            f"{facts.tp}: the group's progress is at offset {base}, and the log ends at {facts.end}: the log "
            "was truncated, or the topic was filled anew. Check the topic; if its records are to be read from "
            "the start, use a new group"
        )
    pending = OffsetSet.of((base, facts.end)) - done - claimed
    open_ = pending - OffsetSet.of((0, facts.log_start))
    tail = open_ - OffsetSet.of((0, facts.head_end))
    split = time_map.split(cutoff_ms)
    known = split.before | split.after
    scanned_to = time_map.covered.end if time_map else 0
    stop = None
    if lateness_ms is not None:
        stop = ScanStop(
            at_or_after_ms=cutoff_ms + lateness_ms,
            from_offset=scanned_to,
            future_ms=now_ms + FUTURE_TOLERANCE_MS,
        )
    return PartitionQuestion(
        facts=facts,
        open=open_,
        lost=pending - open_,
        known_after=tail & split.after,
        to_scan=tail - known,
        known=known,
        superseded=split.straddling,
        stop=stop,
    )


def draft(question: PartitionQuestion, scan: ScanResult | None) -> PartitionDraft:
    """What of the open offsets lies before the cutoff; `scan` is needed where `to_scan` is not empty."""
    invariant(not question.to_scan or scan is not None, f"{question.facts.tp} was not scanned")
    decided_end = question.facts.end
    excluded = question.known_after
    learned, superseded, records = EMPTY_MAP, EMPTY_SET, 0
    if scan is not None:
        excluded, learned, records = excluded | scan.excluded, scan.time_map, scan.records
        superseded = question.superseded
        if scan.stopped_at is not None:
            decided_end = scan.stopped_at
    decided = question.open & OffsetSet.of((0, decided_end))
    return PartitionDraft(
        facts=question.facts,
        decided=decided,
        included=decided - excluded,
        lost=question.lost,
        decided_end=decided_end,
        learned=learned,
        superseded=superseded,
        records_scanned=records,
    )


def settle(
    draft: PartitionDraft, *, done: OffsetSet, claimed: OffsetSet, late: LateSteps
) -> PartitionPlan | None:
    """The partition's share of the plan, or None when the draft no longer suffices.

    That is so when something became open meanwhile that the draft did not look at: a claim was abandoned,
    or progress was moved back. The caller then starts over with new facts.
    """
    open_now = OffsetSet.of((0, draft.decided_end)) - done - claimed
    if not open_now <= (draft.decided | draft.lost):
        return None
    taken = draft.included & open_now
    lost = draft.lost & open_now
    first = (taken | lost).first if taken or lost else draft.decided_end
    return PartitionPlan(
        tp=draft.facts.tp,
        topic_id=draft.facts.topic_id,
        taken=taken,
        lost=lost,
        decided_end=draft.decided_end,
        head_end=min(draft.facts.head_end, draft.decided_end),
        late=late.from_offset(first),
    )
