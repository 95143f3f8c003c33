"""Times that no interval of a group covers, in which records may wait for a sweep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning.time_map import TimeMap
from kafka_ordered_ops.core.time_ranges import TimeRange, TimeSplit, without_untimed
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import INT64_MIN, Mode


@dataclass(frozen=True, slots=True)
class Gap:
    """Times between, or before, the intervals of a group, and the offsets that wait there."""

    topic: str
    #: None: timestamps were not kept, so any time below the greatest cutoff.
    times: TimeRange | None
    partitions: int
    #: Offsets whose records are known to be of these times.
    offsets: int
    #: With those whose records may be of other times too: a sweep takes at most so many.
    offsets_at_most: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; a gap without a beginning has since null."""
        since = before = None
        if self.times is not None:
            before = time_text(self.times.before_ms)
            since = None if self.times.since_ms == INT64_MIN else time_text(self.times.since_ms)
        return {
            "topic": self.topic,
            "since": since,
            "cutoff": before,
            "partitions": self.partitions,
            "offsets": self.offsets,
            "offsets_at_most": self.offsets_at_most,
        }


def gaps_of(view: GroupView) -> list[Gap]:
    """Return the gaps in which records wait, by topic and time, from the ledger alone.

    In a group of intervals, records without a timestamp always wait in a gap: no interval takes them.
    """
    counts_by_gap: defaultdict[tuple[str, TimeRange | None], list[tuple[int, int]]] = defaultdict(
        list
    )
    claims = view.known_claims()
    has_intervals = view.state is not None and view.state.definition.mode is Mode.INTERVAL
    for tp, state in view.state or ():
        steps, time_map = claims.late(tp, state.late), view.time_map(tp)
        covered: Sequence[TimeRange] = steps.times
        if has_intervals:
            covered = [piece for times in covered for piece in without_untimed(times)]
        gaps = _between(covered)
        if not gaps:
            continue
        # Offsets that windows read, also where their times are forgotten.
        looked_at = max(steps.end, time_map.covered.end if time_map else 0)
        waiting = OffsetSet.of((0, looked_at)) - state.done - claims.offsets(tp)
        for gap, surely, at_most in _waiting(time_map, gaps, waiting):
            if at_most:
                counts_by_gap[tp.topic, gap].append((surely, at_most))
    return [
        Gap(
            topic=topic,
            times=times,
            partitions=len(counts),
            offsets=sum(surely for surely, _ in counts),
            offsets_at_most=sum(at_most for _, at_most in counts),
        )
        for (topic, times), counts in sorted(
            counts_by_gap.items(),
            key=lambda item: (item[0][0], item[0][1] or (INT64_MIN, INT64_MIN)),
        )
    ]


def _between(times: Sequence[TimeRange]) -> list[TimeRange]:
    """Return the gaps before and between ranges that rise."""
    edges = [INT64_MIN, *(edge for time_range in times for edge in time_range)]
    pairs = zip(edges[:-1:2], edges[1::2], strict=True)
    return [TimeRange(low, high) for low, high in pairs if low < high]


def _waiting(
    time_map: TimeMap, gaps: Sequence[TimeRange], waiting: OffsetSet
) -> list[tuple[TimeRange | None, int, int]]:
    """Return, for each gap, the offsets that certainly and at most wait in it; None for unknown times."""
    dealt = time_map.dealt(TimeSplit.of([[gap] for gap in gaps]))
    counts: list[tuple[TimeRange | None, int, int]] = [
        (None, 0, (waiting - time_map.covered).count)
    ]
    for number, gap in enumerate(gaps):
        surely = (dealt.of(number) & waiting).count
        maybe = time_map.meeting(gap) & dealt.straddling & waiting
        counts.append((gap, surely, surely + maybe.count))
    return counts
