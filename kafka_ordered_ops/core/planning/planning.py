"""Decide which offsets windows take: facts about one partition in, exact offset sets out.

Four steps, so that reading happens between decisions and never inside one:

1. `ask` computes the open offsets from facts, progress and claims, and the offsets that must be scanned.
2. The caller scans (`scan_fold`).
3. `draft` assigns the open offsets to windows.
4. `settle` checks the draft against the newest progress and claims, inside the fence.

Each step handles a list of windows, often a single one. A `TimeSplit` assigns timestamps to windows. *Head*: offsets
for which the broker's index proves that all times are below the lowest requested time; nothing is read. *Tail*: later
offsets, decided by the time map, or by reading timestamps. The taken offsets are a complement: all decided offsets,
without the records that no window asks for, and without done and claimed offsets.
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

#: A record stamped further in the future proves nothing (Kafka's ``log.message.timestamp.after.max.ms`` by default).
FUTURE_TOLERANCE_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The broker's answers about one partition; the end offset is requested before the times."""

    tp: TopicPartition
    topic_id: str
    log_start: int
    #: Last stable offset under read_committed, high watermark otherwise.
    end: int
    #: The high watermark: progress past it belongs to another log.
    high_watermark: int
    #: Every record below it is stamped before the windows' `floor_ms`.
    floor: int
    #: For each window: every record below it is stamped before the window's cutoff. It comes from the index alone,
    #: so the offset may be a transaction marker.
    head_ends: tuple[int, ...]
    #: The epoch of the leader that answered.
    leader_epoch: int | None = None
    #: Up to this offset, the log is known to be the log that the group has worked on.
    checked_end: int = 0


@dataclass(frozen=True, slots=True)
class WindowsRequest:
    """The requests of a list of windows for one partition, in order."""

    split: TimeSplit
    #: The lowest start of a window, or cutoff of a window without a start.
    floor_ms: int
    #: A scan may stop after this time; None if it must not stop.
    stop_after_ms: int | None
    #: Of each window.
    cutoffs_ms: tuple[int, ...]
    #: Of each window; None for a window without a start.
    sinces_ms: tuple[int | None, ...]
    #: Every record that a window of the group has taken is stamped before it.
    taken_before_ms: int

    @classmethod
    def of(cls, windows: Sequence[Window], frozen: Iterable[TimeRange]) -> WindowsRequest:
        """Return the requests of windows that are planned together; `frozen` are the times of earlier windows of the group.

        A window with `since` also takes late records, which are stamped earlier, in a frozen time. It takes no records
        without a timestamp.
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
    """The open offsets of one partition, and the offsets that must be read to decide them."""

    facts: PartitionFacts
    request: WindowsRequest
    #: Below the end, neither done nor claimed, still in the log.
    open: OffsetSet
    #: For each window: neither done nor claimed, and no longer in the log. If their times are unknown, they belong to
    #: the first window.
    lost: tuple[OffsetSet, ...]
    #: Also no longer in the log, but of times that none of these windows asks for: losses of other windows.
    left: OffsetSet
    #: The part of `lost` whose times are unknown.
    lost_untimed: OffsetSet
    #: Open and below the floor, if the floor alone decides them.
    head: OffsetSet
    #: The window that takes the head, or `NOBODY`.
    head_window: int
    #: The times of the rest, from the time map.
    chunks: DealtChunks
    #: The offsets whose timestamps must be read.
    to_scan: OffsetSet
    #: Chunks of the time map that are decided without reading.
    known: OffsetSet
    #: The times known before.
    time_map: TimeMap
    #: The times known from the floor but not from the time map.
    learned: TimeMap
    #: For each window: the first offset that is not scanned, and whose record may be stamped at or after its cutoff.
    doubtful: tuple[int, ...]
    stop: ScanStop | None

    def fold(self) -> ScanFold:
        """Return the fold for a scan of `to_scan`."""
        return ScanFold(
            self.to_scan,
            self.request.split,
            self.stop,
            self.known,
            self.request.cutoffs_ms,
            self.request.sinces_ms,
        )


@dataclass(frozen=True, slots=True)
class PartitionDecision:
    """A decision made outside the fence: `settle` reconciles it with changes by other processes."""

    facts: PartitionFacts
    decided: OffsetSet
    #: The offsets that each window would take.
    included: tuple[OffsetSet, ...]
    #: The offsets that each window would record as lost.
    lost: tuple[OffsetSet, ...]
    #: The part of `lost` whose times are unknown.
    lost_untimed: OffsetSet
    #: For each window: where records stamped before its start may be.
    earlier: tuple[OffsetSet, ...]
    decided_end: int
    #: Of each window; None for a window without a start.
    sinces_ms: tuple[int | None, ...]
    #: The assignment of times to windows, by the windows that were planned when the group was read.
    split: TimeSplit
    #: The times that were known then.
    time_map: TimeMap
    #: The scan's chunks, and the older chunks that they replace.
    learned: TimeMap
    superseded: OffsetSet
    records_scanned: int
    #: For each window: the first visible record stamped at or after its cutoff, as `PartitionPlan.head_end`.
    head_ends: tuple[int | None, ...]


def floor_ms(windows: Sequence[Window]) -> int:
    """Return the lowest start of a window, or cutoff of a window without a start."""
    return min(
        window.cutoff_ms if window.since_ms is None else window.since_ms for window in windows
    )


def _times_taken(window: Window, frozen: Iterable[TimeRange]) -> list[TimeRange]:
    times = window.times
    if window.since_ms is None:
        return [times]
    late = [
        TimeRange(planned.since_ms, min(planned.before_ms, times.since_ms))
        for planned in frozen
        if planned.since_ms < times.since_ms
    ]
    return [piece for range_ in (times, *late) for piece in without_untimed(range_)]


def lookup_time_ms(cutoff_ms: int) -> int | None:
    """Return the time to look up in the broker's index, or None if it cannot be looked up.

    It is one millisecond before the cutoff: old brokers may answer inexactly if an index entry has the requested time.
    Brokers take times below zero as "latest" and "earliest".
    """
    return cutoff_ms - 1 if cutoff_ms >= 1 else None


def head_end(cutoff_ms: int, *, log_start: int, end: int, index_offset: int | None) -> int:
    """Return the end of the head, from the index's answer for `lookup_time_ms`."""
    if lookup_time_ms(cutoff_ms) is None:
        return log_start
    return end if index_offset is None else max(min(index_offset, end), log_start)


def bound_time_ms(bound: Bound, cutoff_ms: int) -> int | None:
    """Return the time to look up in the index for starting offsets; None if they are not given by a time."""
    match bound:
        case AtTime(timestamp_ms):
            return max(timestamp_ms, 0)
        case Relative(before_cutoff_ms):
            return max(cutoff_ms - before_cutoff_ms, 0)
        case _:
            return None


def resolve_start(
    bound: Bound, *, log_start: int, end: int, committed: int | None, index_offset: int | None
) -> int | None:
    """Return the offset of a bound on one partition; None for a committed offset that does not exist.

    `index_offset` is the index's answer for `bound_time_ms`. An empty partition needs no committed offset: it has no records
    to lose.
    """
    match bound:
        case Earliest():
            return log_start
        case Latest():
            return end
        case Committed():
            return committed if committed is not None or log_start < end else log_start
        case AtTime() | Relative():
            return end if index_offset is None else max(min(index_offset, end), log_start)
        case AtOffset(offset):
            return max(min(offset, end), log_start)
        case _:
            assert_never(bound)


def ask(
    facts: PartitionFacts,
    request: WindowsRequest,
    *,
    origin: int,
    done: OffsetSet,
    claimed: OffsetSet,
    time_map: TimeMap,
    now_ms: int,
) -> PartitionQuestion:
    """Return the open offsets of a partition, and the offsets that must be scanned.

    Done offsets at or above `origin` were taken by windows.

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
    head_window = request.split.below(request.floor_ms)
    head = EMPTY_SET if head_window is None else open_ & OffsetSet.of((0, facts.floor))
    chunks = time_map.dealt(request.split)
    known = union_of(chunks.by_window.values())
    gone = pending - open_
    left = gone & chunks.of(NOBODY)
    lost = _lost(gone - left, chunks, request.split, time_map, len(facts.head_ends))
    learned = EMPTY_MAP
    if head_window == NOBODY and head:
        learned = TimeMap.below(OffsetSet.of((head.first, head.end)) - known, request.floor_ms)
    rest = open_ - head
    decided = time_map.within(known & rest)
    sought = _sought(facts, request, open_, origin)
    again = read_again(sought, decided, chunks, rest - known)
    unread = decided.without(again)
    return PartitionQuestion(
        facts=facts,
        request=request,
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
        doubtful=tuple(record.doubtful(unread) for record in sought),
        stop=_stop(request, time_map, now_ms),
    )


def _sought(
    facts: PartitionFacts, request: WindowsRequest, open_: OffsetSet, origin: int
) -> list[Sought]:
    """Return what is known about each window's first record past its cutoff."""

    def taken_from(cutoff_ms: int, not_before: int) -> int:
        if not_before < origin:
            return not_before
        # Records taken by windows of earlier cutoffs are stamped before this one too.
        is_past = request.taken_before_ms > cutoff_ms
        return open_.first_missing(not_before) if is_past else INT64_MAX

    return [
        Sought(cutoff_ms, not_before, taken_from(cutoff_ms, not_before))
        for cutoff_ms, not_before in zip(request.cutoffs_ms, facts.head_ends, strict=True)
    ]


def _lost(
    gone: OffsetSet, chunks: DealtChunks, split: TimeSplit, time_map: TimeMap, windows: int
) -> tuple[OffsetSet, ...]:
    """Return the lost offsets by window: the window of their times, or else the first window that may take them."""
    if not gone:
        return (EMPTY_SET,) * windows
    by_window = {number: gone & chunks.of(number) for number in range(windows)}
    for number, maybe in time_map.first_askers(gone & chunks.straddling, split).items():
        by_window[number] = by_window[number] | maybe
    by_window[0] = by_window[0] | (gone - union_of(by_window.values()))
    return tuple(by_window.values())


def _stop(request: WindowsRequest, time_map: TimeMap, now_ms: int) -> ScanStop | None:
    if request.stop_after_ms is None:
        return None
    return ScanStop(
        at_or_after_ms=request.stop_after_ms,
        from_offset=time_map.covered.end if time_map else 0,
        future_ms=now_ms + FUTURE_TOLERANCE_MS,
    )


def draft(
    question: PartitionQuestion, scan: ScanResult | None, unreadable: OffsetSet = EMPTY_SET
) -> PartitionDecision:
    """Return which open offsets belong to which window; `scan` is required unless `to_scan` is empty.

    Offsets that the scan could not read are lost. Their times are unknown: they belong to the first window.
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
        offsets = question.chunks.of(number) & rest
        if number == question.head_window:
            offsets = offsets | (question.head & decided)
        if scan is not None:
            offsets = offsets | (scan.of(number) & decided)
        included.append(offsets - unreadable)
    first, *others = question.lost
    return PartitionDecision(
        facts=question.facts,
        decided=decided | question.left,
        included=tuple(included),
        lost=(first | (unreadable & decided), *others),
        lost_untimed=question.lost_untimed | (unreadable & decided),
        earlier=tuple(
            EMPTY_SET if since_ms is None else _earlier(question, scan, number, since_ms)
            for number, since_ms in enumerate(question.request.sinces_ms)
        ),
        decided_end=decided_end,
        sinces_ms=question.request.sinces_ms,
        split=question.request.split,
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
                question.request.cutoffs_ms, question.doubtful, included, strict=True
            )
        ),
    )


def _earlier(
    question: PartitionQuestion, scan: ScanResult | None, number: int, since_ms: int
) -> OffsetSet:
    """Return where a window may take records stamped before its start, from its reads, known bounds and the index."""
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
    """Return the partition's share of each window, or None if the draft is outdated.

    The draft is outdated if offsets became open that it did not read: a claim was abandoned, or progress was moved
    back. It is also outdated if a record may now belong to another window: `split` is the current assignment, with the
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
    """Return whether a record may have a time that another window takes now.

    Each planned window freezes times. Usually, the draft knows of no record in them, and is still valid.
    """
    changes = draft.split.changes(split)
    if not changes:
        return False
    # Of offsets that a window would take, only that window's times are known.
    losers = {window for _, window in changes if window != NOBODY}
    if any((draft.included[window] | draft.lost[window]) & open_now for window in losers):
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
    first = (
        min(offsets.first for offsets in (taken, lost) if offsets)
        if taken or lost
        else draft.decided_end
    )
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
