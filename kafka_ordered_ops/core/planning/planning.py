"""Which offsets windows take: facts about one partition in, exact offset sets out.

Four steps, so that reading happens between decisions and never inside one:

1. `ask`: from facts, progress and claims, the open offsets, and those that must be scanned.
2. The caller scans (`scan_fold`).
3. `draft`: which of the open offsets belong to which window.
4. `settle`: the draft against the newest progress and claims, inside the fence.

Each step handles a list of windows, often one. A `TimeSplit` assigns timestamps to windows. *Head*: offsets for which
the broker's index proves that all times are below the lowest requested one; nothing is read. *Tail*: later offsets,
decided by the time map, or by reading timestamps. Taken is a complement: everything decided, less the records that no
window asks for, less done and claimed offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from kafka_ordered_ops.core.errors import LogTruncatedError, invariant
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet, coarsened, union_of
from kafka_ordered_ops.core.planning.first_past import Sought, first_past, read_again
from kafka_ordered_ops.core.planning.scan_fold import ScanFold, ScanResult, ScanStop
from kafka_ordered_ops.core.planning.time_map import EMPTY_MAP, DealtChunks, TimeMap
from kafka_ordered_ops.core.time_ranges import (
    NOBODY,
    LateSteps,
    TimeRange,
    TimeSplit,
    without_untimed,
)
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN, TopicPartition
from kafka_ordered_ops.core.window.bounds import (
    AtOffset,
    AtTime,
    Bound,
    Committed,
    Earliest,
    Latest,
    Relative,
)
from kafka_ordered_ops.core.window.plan import EARLIER_RANGES_MAX, PartitionPlan
from kafka_ordered_ops.core.window.window import Window

#: A record stamped further ahead than this is no sign that time has passed (Kafka's own default for
#: ``log.message.timestamp.after.max.ms``).
FUTURE_TOLERANCE_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The broker's answers about one partition; the end offset is requested before the times."""

    tp: TopicPartition
    topic_id: str
    log_start: int
    #: Last stable offset under read_committed, high watermark otherwise.
    end: int
    #: The high watermark: progress beyond it is progress in another log.
    high_watermark: int
    #: Every record below it is stamped before the windows' `floor_ms`.
    floor: int
    #: For each window: every record below it is stamped before the window's cutoff. By the index alone, so
    #: that what is there may be a marker.
    head_ends: tuple[int, ...]
    #: The epoch of the leader that answered.
    leader_epoch: int | None = None
    #: Up to here the log is known to be the one that the group has worked on.
    checked_end: int = 0


@dataclass(frozen=True, slots=True)
class WindowsAsked:
    """The requests of a list of windows for one partition, in order."""

    split: TimeSplit
    #: The lowest time at which a window begins, or ends where none begins.
    floor_ms: int
    #: A scan may stop after this time; None: it may not.
    stop_after_ms: int | None
    #: Of each window.
    cutoffs_ms: tuple[int, ...]
    #: Of each; None for a window without a start.
    sinces_ms: tuple[int | None, ...]
    #: Every record that a window of the group has taken is stamped before it.
    taken_before_ms: int

    @classmethod
    def of(cls, windows: Sequence[Window], frozen: Iterable[TimeRange]) -> WindowsAsked:
        """Return the windows of one planning; `frozen` are the times that earlier ones of the group covered.

        With `since` a window also takes late records, stamped earlier in a frozen time, and no records without a
        timestamp.
        """
        frozen = tuple(frozen)
        out_of_orderness_ms = windows[0].out_of_orderness_ms
        greatest_ms = max(window.cutoff_ms for window in windows)
        return cls(
            split=TimeSplit.of([_times_taken(window, frozen) for window in windows]),
            floor_ms=floor_ms(windows),
            stop_after_ms=None
            if out_of_orderness_ms is None
            else greatest_ms + out_of_orderness_ms,
            cutoffs_ms=tuple(window.cutoff_ms for window in windows),
            sinces_ms=tuple(window.since_ms for window in windows),
            taken_before_ms=max((times.before_ms for times in frozen), default=INT64_MIN),
        )


@dataclass(frozen=True, slots=True)
class PartitionQuestion:
    """The open offsets of one partition, and those that must be read to decide them."""

    facts: PartitionFacts
    asked: WindowsAsked
    #: Below the end, neither done nor claimed, still in the log.
    open: OffsetSet
    #: For each window: neither done nor claimed, and no longer in the log. Where nothing is known of their
    #: times they are the first one's.
    lost: tuple[OffsetSet, ...]
    #: Also no longer in the log, but of times that no window here asks for: losses of others.
    left: OffsetSet
    #: The part of `lost` whose times are unknown.
    lost_untimed: OffsetSet
    #: Open and below the floor, where that alone decides: whose it is.
    head: OffsetSet
    head_window: int
    #: The times of the rest, from the time map.
    chunks: DealtChunks
    #: Its timestamps must be read.
    to_scan: OffsetSet
    #: Chunks of the time map that are decided without reading.
    known: OffsetSet
    #: The times known before.
    time_map: TimeMap
    #: The times known from the floor but not from the time map.
    learned: TimeMap
    #: For each window the first offset that is not scanned, and whose record may be stamped at or after its
    #: cutoff.
    doubtful: tuple[int, ...]
    stop: ScanStop | None

    def fold(self) -> ScanFold:
        """Take the results of a scan of `to_scan`."""
        return ScanFold(
            self.to_scan,
            self.asked.split,
            self.stop,
            self.known,
            self.asked.cutoffs_ms,
            self.asked.sinces_ms,
        )


@dataclass(frozen=True, slots=True)
class PartitionDecision:
    """A decision made outside the fence: still to be reconciled with changes of other processes."""

    facts: PartitionFacts
    decided: OffsetSet
    #: The offsets that each window would take.
    included: tuple[OffsetSet, ...]
    #: The offsets that each would record as lost.
    lost: tuple[OffsetSet, ...]
    #: The part of `lost` whose times are unknown.
    lost_untimed: OffsetSet
    #: Of each, where records stamped before its start may be.
    earlier: tuple[OffsetSet, ...]
    decided_end: int
    #: Of each window; None for a window without a start.
    sinces_ms: tuple[int | None, ...]
    #: The assignment of times to windows, by the windows that were planned when the group was read.
    split: TimeSplit
    #: The times known then.
    time_map: TimeMap
    #: The scan's chunks, and the older chunks that they replace.
    learned: TimeMap
    superseded: OffsetSet
    records_scanned: int
    #: For each window the first visible record stamped at or after its cutoff, as `PartitionPlan.head_end`.
    head_ends: tuple[int | None, ...]


def floor_ms(windows: Sequence[Window]) -> int:
    """Return the lowest time at which one of the windows begins, or ends where it has no beginning."""
    return min(
        window.cutoff_ms if window.since_ms is None else window.since_ms for window in windows
    )


def _times_taken(window: Window, frozen: Iterable[TimeRange]) -> list[TimeRange]:
    times = window.times
    if window.since_ms is None:
        return [times]
    late = [
        TimeRange(one.since_ms, min(one.before_ms, times.since_ms))
        for one in frozen
        if one.since_ms < times.since_ms
    ]
    return [piece for one in (times, *late) for piece in without_untimed(one)]


def lookup_time_ms(cutoff_ms: int) -> int | None:
    """Return the time to ask the broker's index for, or None where it must not be asked.

    One millisecond before the cutoff: an old broker may answer a tie between an index entry and the time
    asked for inexactly. Times below zero mean "latest" and "earliest" to the broker.
    """
    return cutoff_ms - 1 if cutoff_ms >= 1 else None


def head_end(cutoff_ms: int, *, log_start: int, end: int, found: int | None) -> int:
    """Return where the head ends, from the index's answer for `lookup_time_ms`."""
    if lookup_time_ms(cutoff_ms) is None:
        return log_start
    return end if found is None else max(min(found, end), log_start)


def bound_time_ms(bound: Bound, cutoff_ms: int) -> int | None:
    """Return the time that starting offsets ask the index for, if it does."""
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
    """Return the offset a bound means on one partition; None where it means the committed offset and there is none.

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
    asked: WindowsAsked,
    *,
    origin: int,
    done: OffsetSet,
    claimed: OffsetSet,
    time_map: TimeMap,
    now_ms: int,
) -> PartitionQuestion:
    """Return the open offsets of a partition, and those that must be scanned.

    Of the offsets that are done, those at or above `origin` were taken by windows.

    Raises:
        LogTruncatedError: the group's progress is beyond the end of the log.
    """
    base = done.first_missing(0)
    if base > facts.high_watermark:
        raise LogTruncatedError(
            f"{facts.tp}: the group's progress is at offset {base}, but the log ends at {facts.high_watermark}: the "
            "log was truncated, or the topic was refilled. Check the topic. `windows adopt` moves the group's progress "
            "to the end of the log; a group that has planned nothing yet needs other starting offsets",
            truncated={str(facts.tp): (base, facts.high_watermark)},
        )
    pending = OffsetSet.of((base, facts.end)) - done - claimed
    open_ = pending - OffsetSet.of((0, facts.log_start))
    head_window = asked.split.below(asked.floor_ms)
    head = EMPTY_SET if head_window is None else open_ & OffsetSet.of((0, facts.floor))
    chunks = time_map.dealt(asked.split)
    known = union_of(chunks.by_window.values())
    gone = pending - open_
    left = gone & chunks.of(NOBODY)
    lost = _lost(gone - left, chunks, asked.split, time_map, len(facts.head_ends))
    learned = EMPTY_MAP
    if head_window == NOBODY and head:
        learned = TimeMap.below(OffsetSet.of((head.first, head.end)) - known, asked.floor_ms)
    rest = open_ - head
    told = time_map.within(known & rest)
    sought = _sought(facts, asked, open_, origin)
    again = read_again(sought, told, chunks, rest - known)
    unread = told.without(again)
    return PartitionQuestion(
        facts=facts,
        asked=asked,
        open=open_,
        lost=lost,
        left=left,
        lost_untimed=gone - known,
        head=head,
        head_window=NOBODY if head_window is None else head_window,
        chunks=chunks,
        to_scan=rest - (known - again),
        known=known,
        time_map=time_map,
        learned=learned,
        doubtful=tuple(one.doubtful(unread) for one in sought),
        stop=_stop(asked, time_map, now_ms),
    )


def _sought(
    facts: PartitionFacts, asked: WindowsAsked, open_: OffsetSet, origin: int
) -> list[Sought]:
    """Return the known facts about each window's first record past its cutoff."""

    def taken_from(cutoff_ms: int, not_before: int) -> int:
        if not_before < origin:
            return not_before
        # Records taken by windows of earlier cutoffs are stamped before this one too.
        is_past = asked.taken_before_ms > cutoff_ms
        return open_.first_missing(not_before) if is_past else INT64_MAX

    return [
        Sought(cutoff_ms, not_before, taken_from(cutoff_ms, not_before))
        for cutoff_ms, not_before in zip(asked.cutoffs_ms, facts.head_ends, strict=True)
    ]


def _lost(
    gone: OffsetSet, chunks: DealtChunks, split: TimeSplit, time_map: TimeMap, windows: int
) -> tuple[OffsetSet, ...]:
    """Return the losses by window: of the window that asks for these times, or else of the first that may."""
    if not gone:
        return (EMPTY_SET,) * windows
    by_window = {number: gone & chunks.of(number) for number in range(windows)}
    for number, maybe in time_map.first_askers(gone & chunks.straddling, split).items():
        by_window[number] = by_window[number] | maybe
    by_window[0] = by_window[0] | (gone - union_of(by_window.values()))
    return tuple(by_window.values())


def _stop(asked: WindowsAsked, time_map: TimeMap, now_ms: int) -> ScanStop | None:
    if asked.stop_after_ms is None:
        return None
    return ScanStop(
        at_or_after_ms=asked.stop_after_ms,
        from_offset=time_map.covered.end if time_map else 0,
        future_ms=now_ms + FUTURE_TOLERANCE_MS,
    )


def draft(
    question: PartitionQuestion, scan: ScanResult | None, unreadable: OffsetSet = EMPTY_SET
) -> PartitionDecision:
    """Return which open offsets belong to which window; `scan` is needed where `to_scan` is not empty.

    Offsets that the scan could not read are lost. Nothing is known of their times: they are the first window's.
    """
    invariant(not question.to_scan or scan is not None, f"{question.facts.tp} was not scanned")
    decided_end, learned, records = question.facts.end, question.learned, 0
    if scan is not None:
        learned, records = learned.replaced(scan.time_map), scan.records
        if scan.stopped_at is not None:
            decided_end = scan.stopped_at
    decided = question.open & OffsetSet.of((0, decided_end))
    rest = decided - question.head
    included = []
    for number in range(len(question.facts.head_ends)):
        found = question.chunks.of(number) & rest
        if number == question.head_window:
            found = found | (question.head & decided)
        if scan is not None:
            found = found | (scan.of(number) & decided)
        included.append(found - unreadable)
    first, *others = question.lost
    return PartitionDecision(
        facts=question.facts,
        decided=decided | question.left,
        included=tuple(included),
        lost=(first | (unreadable & decided), *others),
        lost_untimed=question.lost_untimed | (unreadable & decided),
        earlier=tuple(
            EMPTY_SET if since_ms is None else _earlier(question, scan, number, since_ms)
            for number, since_ms in enumerate(question.asked.sinces_ms)
        ),
        decided_end=decided_end,
        sinces_ms=question.asked.sinces_ms,
        split=question.asked.split,
        time_map=question.time_map,
        learned=learned,
        superseded=question.chunks.straddling if scan is not None or learned else EMPTY_SET,
        records_scanned=records,
        head_ends=tuple(
            first_past(
                None if scan is None else scan.first_past.get(cutoff_ms),
                end=decided_end,
                doubtful=doubtful,
                taken=taken,
            )
            for cutoff_ms, doubtful, taken in zip(
                question.asked.cutoffs_ms, question.doubtful, included, strict=True
            )
        ),
    )


def _earlier(
    question: PartitionQuestion, scan: ScanResult | None, number: int, since_ms: int
) -> OffsetSet:
    """Return where a window may take records stamped before its start: by its reads, by known bounds, by the index."""
    known = question.chunks.of(number)
    if known:
        known = known & question.time_map.meeting(TimeRange(INT64_MIN, since_ms))
    # Every record of the head is stamped before all windows' starts.
    head = question.head if number == question.head_window else EMPTY_SET
    read = EMPTY_SET if scan is None else scan.earlier
    return union_of((read, known, head))


def settle(
    draft: PartitionDecision,
    *,
    done: OffsetSet,
    claimed: OffsetSet,
    late: LateSteps,
    split: TimeSplit,
) -> tuple[PartitionPlan, ...] | None:
    """Return the partition's share of each window, or None when the draft no longer suffices.

    That is so when offsets became open that the draft did not read: a claim was abandoned, or progress was moved
    back. It is also so when a record may now belong to another window: `split` is the current assignment, given the
    windows that were planned or abandoned meanwhile. The caller then starts over with new facts.
    """
    open_now = OffsetSet.of((0, draft.decided_end)) - done - claimed
    if not open_now <= union_of((draft.decided, *draft.lost)):
        return None
    if _is_dealt_otherwise(draft, split, open_now):
        return None
    return tuple(
        _share(
            draft,
            taken=included & open_now,
            lost=draft.lost[number] & open_now,
            earlier=draft.earlier[number],
            head_end=draft.head_ends[number],
            late=late.in_interval(draft.sinces_ms[number]),
        )
        for number, included in enumerate(draft.included)
    )


def _is_dealt_otherwise(draft: PartitionDecision, split: TimeSplit, open_now: OffsetSet) -> bool:
    """Return whether a record may be of a time that changed hands.

    Each window that is planned freezes times; most often the draft knows of no record in them, and still holds.
    """
    changes = draft.split.changes(split)
    if not changes:
        return False
    # For the offsets that a window would take, only the window's times are known.
    losers = {window for _, window in changes if window != NOBODY}
    if any((draft.included[one] | draft.lost[one]) & open_now for one in losers):
        return True
    known = draft.time_map.without(draft.superseded).replaced(draft.learned)
    rest = open_now - union_of(draft.included)
    if rest - union_of((known.covered, *draft.lost)):
        return True
    return any(known.meeting(times) & rest for times, _ in changes)


def _share(
    draft: PartitionDecision,
    *,
    taken: OffsetSet,
    lost: OffsetSet,
    earlier: OffsetSet,
    head_end: int | None,
    late: LateSteps,
) -> PartitionPlan:
    first = min(one.first for one in (taken, lost) if one) if taken or lost else draft.decided_end
    return PartitionPlan(
        tp=draft.facts.tp,
        topic_id=draft.facts.topic_id,
        taken=taken,
        lost=lost,
        lost_untimed=lost & draft.lost_untimed,
        earlier=coarsened(earlier & (taken | lost), EARLIER_RANGES_MAX),
        decided_end=draft.decided_end,
        head_end=head_end,
        late=late.from_offset(first),
        leader_epoch=draft.facts.leader_epoch,
    )
