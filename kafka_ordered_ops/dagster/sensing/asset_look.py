"""One check of an asset: which windows are live and neither delivered nor requested, and which wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from dagster import TimeWindowPartitionsDefinition

from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.times import time_ms, time_text
from kafka_ordered_ops.dagster.assets.registry import WindowAsset
from kafka_ordered_ops.dagster.sensing.cursor import AssetCursor, merged
from kafka_ordered_ops.dagster.settings import window_id_of
from kafka_ordered_ops.dagster.step.times import times_of
from kafka_ordered_ops.delivery.search import NewestReached
from kafka_ordered_ops.spec.asked import span_of

if TYPE_CHECKING:
    from kafka_ordered_ops.core.liveness.liveness import Liveness
    from kafka_ordered_ops.dagster.resource import KafkaResource
    from kafka_ordered_ops.windows.queries.group_watch import GroupWatch

#: Partitions named in a reason: the first waiting ones.
_NAMED_MAX: Final = 5
#: Cutoffs checked for an asset without partitions: the newest.
_CUTOFFS_MAX: Final = 24


@dataclass(frozen=True, slots=True)
class Candidate:
    """A window that has ended by the clock."""

    #: The partition's key; for an asset without partitions the cutoff.
    name: str
    times: TimeRange
    #: The partition's index in the asset: neighbours form a range.
    index: int
    #: How often the window was planned and then rewound.
    rewound: int = 0


@dataclass(frozen=True)
class LookResult:
    """The result of a check."""

    #: Windows to request, in pieces of one run each, by time.
    pieces: tuple[tuple[Candidate, ...], ...]
    cursor: AssetCursor


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one check."""

    #: Partitions of one run.
    partitions_max: int
    #: Runs of one check.
    runs_max: int
    #: Older partitions are ignored; None means that all count.
    lookback: timedelta | None
    #: The distance of cutoffs for assets without partitions.
    every: timedelta | None


class AssetLook:
    """Checks one asset repeatedly; records read for one check are not read again for the next."""

    def __init__(self, about: WindowAsset, limits: Limits) -> None:
        self.about = about
        self._limits = limits
        self._times: dict[str, TimeRange] = {}
        self._seen: dict[int, Liveness] = {}

    def look(
        self, kafka: KafkaResource, cursor: AssetCursor, *, now: datetime, deadline: float
    ) -> LookResult:
        """Check once; `deadline` is on the monotonic clock.

        Raises:
            KafkaOrderedOpsError: as `GroupWatch` does.
        """
        ended = self._ended(now, cursor)
        with self._watch(kafka) as watch:
            rewound = watch.undelivered(
                {self._id(candidate): candidate.times for candidate in ended}
            )
            missing = [
                replace(candidate, rewound=rewound[name])
                for candidate in ended
                if (name := self._id(candidate)) in rewound
            ]
            requested = [
                candidate for candidate in missing if cursor.has_requested(candidate.times)
            ]
            open_ = [
                candidate for candidate in missing if not cursor.has_requested(candidate.times)
            ]
            count, waits_for = self._count_live(watch, open_, deadline)
        pieces = self._pieces(open_[:count])
        if self.about.is_serial:
            # Requested windows are delivered first: the next window builds on them.
            pieces = () if requested else pieces[:1]
        return LookResult(
            pieces,
            AssetCursor(
                requested=merged(
                    candidate.times
                    for candidate in (
                        *requested,
                        *(candidate for piece in pieces for candidate in piece),
                    )
                ),
                waits=self._reasons(requested, open_, count, waits_for),
            ),
        )

    def _watch(self, kafka: KafkaResource) -> GroupWatch:
        from kafka_ordered_ops.windows.queries.group_watch import GroupWatch

        group_id = self.about.settings.group_id
        return GroupWatch(kafka.client_settings(), group_id, ledger_topic=kafka.ledger_topic)

    # --- candidates -----------------------------------------------------------------------------

    def _ended(self, now: datetime, cursor: AssetCursor) -> list[Candidate]:
        """Return the windows that have ended and are not too old, by time."""
        definition = self.about.partitions_def
        if not isinstance(definition, TimeWindowPartitionsDefinition):
            return self._cutoffs(now, cursor)
        lookback, now_ms = self._limits.lookback, time_ms(now, what="now")
        since_ms = None if lookback is None else time_ms(now - lookback, what="lookback")
        ended = []
        for index, key in enumerate(definition.get_partition_keys(now)):
            times = self._times_of(definition, key)
            if times.before_ms <= now_ms and (since_ms is None or times.before_ms > since_ms):
                ended.append(Candidate(key, times, index))
        return ended

    def _times_of(self, definition: TimeWindowPartitionsDefinition, key: str) -> TimeRange:
        if (times := self._times.get(key)) is None:
            window = times_of(definition, key)
            since_ms = time_ms(window.start, what="start")
            times = self._times[key] = TimeRange(since_ms, time_ms(window.end, what="end"))
        return times

    def _cutoffs(self, now: datetime, cursor: AssetCursor) -> list[Candidate]:
        """Return the last cutoffs that the clock has passed and no run was requested for; a run takes all before it."""
        step_ms = (self._limits.every or timedelta(hours=1)) // timedelta(milliseconds=1)
        newest = time_ms(now, what="now") // step_ms
        after_ms = max((times.before_ms for times in cursor.requested), default=0)
        return [
            Candidate(time_text(at * step_ms), TimeRange((at - 1) * step_ms, at * step_ms), at)
            for at in range(newest - _CUTOFFS_MAX + 1, newest + 1)
            if at * step_ms >= after_ms
        ]

    def _id(self, candidate: Candidate) -> str:
        return window_id_of(self.about.key, candidate.name)

    # --- liveness -------------------------------------------------------------------------------

    def _count_live(
        self, watch: GroupWatch, windows: Sequence[Candidate], deadline: float
    ) -> tuple[int, Liveness | None]:
        """Return the number of live windows from the first on, and the reason of the first that is not live."""
        waits_for: Liveness | None = None
        seen: dict[int, Liveness] = {}
        search = NewestReached(0, len(windows))
        while (step := search.step) is not None and time.monotonic() < deadline:
            cutoff_ms = windows[step].times.before_ms
            liveness = watch.live(
                self.about.settings.untimed_window.at(_moment(cutoff_ms)),
                grace=span_of(self.about.settings.grace, "grace"),
                before=self._seen.get(cutoff_ms),
            )
            if not liveness.is_live:
                waits_for = seen[cutoff_ms] = liveness
            search.saw(liveness.is_live)
        self._seen = seen
        return search.reached_end, waits_for if search.step is None else None

    # --- results --------------------------------------------------------------------------------

    def _pieces(self, live: Sequence[Candidate]) -> tuple[tuple[Candidate, ...], ...]:
        if self.about.partitions_def is None:
            # One run takes everything before the last cutoff, which is complete.
            return ((live[-1],),) if live else ()
        size_max = self._limits.partitions_max
        if self.about.run_partitions_max is not None:
            size_max = min(size_max, self.about.run_partitions_max)
        pieces: list[list[Candidate]] = []
        for candidate in live:
            if (
                pieces
                and pieces[-1][-1].index + 1 == candidate.index
                and len(pieces[-1]) < size_max
            ):
                pieces[-1].append(candidate)
            else:
                pieces.append([candidate])
        return tuple(tuple(piece) for piece in pieces[: self._limits.runs_max])

    def _reasons(
        self,
        requested: Sequence[Candidate],
        windows: Sequence[Candidate],
        count: int,
        waits_for: Liveness | None,
    ) -> tuple[str, ...]:
        """Return the reasons why windows wait, one line each."""
        reasons = []
        if requested:
            reasons.append(f"{_names(requested)}: requested, and not delivered yet")
        if waits_for is not None:
            reasons.append(f"{_names(windows[count:])}: {waits_for}; {_why(waits_for)}")
        elif count < len(windows):
            reasons.append(f"{_names(windows[count:])}: not checked, the tick ran out of time")
        return tuple(reasons)


def _names(windows: Sequence[Candidate]) -> str:
    if len(windows) == 1:
        return windows[0].name
    return f"{windows[0].name} to {windows[-1].name} ({len(windows):,})"


def _why(liveness: Liveness) -> str:
    named = [f"{partition.tp}: {partition.verdict}" for partition in liveness.waiting[:_NAMED_MAX]]
    more = len(liveness.waiting) - len(named)
    return "; ".join(named) + (f"; and {more:,} more partitions" if more else "")


def _moment(time_ms_: int) -> datetime:
    return datetime.fromtimestamp(time_ms_ / 1000, UTC)
