"""What the package set out to reach, held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.comparisons import (
    COLD,
    CONNECTOR,
    ONE_BY_ONE,
    ONE_PASS,
    ONE_PASS_LOCAL,
    SMALL_RECORDS,
    STREAMING_ONCE,
    WARM,
)
from benchmarks.one_window import Way
from benchmarks.ordered_reading import Way as OrderedWay
from benchmarks.peers import Peer, PeerSettings
from benchmarks.statistics import Results, Spread, ratio
from benchmarks.tables import published_share, spread_text, table
from benchmarks.tail import CONSUME, PEERS, TAIL, TAIL_GROWTH

_PLAN_PARTITIONS: Final = 1_000
_MB: Final = 1_000_000

#: Of an ordered read whose memory counts.
_READ_RECORDS: Final = 20_000_000
_OTHERS: Final = (CONSUME, *PEERS)


@dataclass(frozen=True)
class Goal:
    """One goal, and the number that decides about it."""

    text: str
    limit: float
    found: Spread
    #: Whether the number is to be at least the limit, instead of at most.
    at_least: bool = False
    #: Whether the limit itself is a miss.
    strict: bool = False

    @property
    def limit_text(self) -> str:
        """The limit in words."""
        what = "at least" if self.at_least else "below" if self.strict else "at most"
        return f"{what} {self.limit:g}"

    @property
    def is_met(self) -> bool:
        """Whether the median is on the right side."""
        value = self.found.median
        if self.at_least:
            return value >= self.limit
        return value < self.limit if self.strict else value <= self.limit


def goals_table(goals: Sequence[Goal]) -> str:
    """Each goal with its number."""
    rows = [
        [goal.text, goal.limit_text, spread_text(goal.found), "yes" if goal.is_met else "no"]
        for goal in goals
    ]
    return table(["goal", "limit", "measured", "met"], rows)


def goals(results: Mapping[str, Sequence[Results]]) -> Iterator[Goal]:
    """Those of whose comparison there are results, by the comparison's name."""
    yield from _against_connector(results.get("window", ()), results.get("ordered", ()))
    yield from _planning(results.get("planning", ()))
    yield from _hourly(results.get("hourly", ()))
    yield from _publishing(results.get("publishing", ()))
    yield from _ordered_reads(results)


def _against_connector(window: Sequence[Results], ordered: Sequence[Results]) -> Iterator[Goal]:
    wanted = (
        (window, Way.PYTHON, "window by engine python, times the connector", 1.1, False),
        (window, Way.LOCAL, "window by engine local, times the connector", 1.0, True),
        (
            ordered,
            Way.PYTHON,
            "in order by engine python, times the connector's orderBy",
            0.5,
            False,
        ),
        (ordered, Way.LOCAL, "in order by engine local, times the connector's orderBy", 0.5, False),
    )
    for results, way, text, limit, strict in wanted:
        found = _ratio(results, way.value, CONNECTOR)
        if found is not None:
            yield Goal(text, limit, found, strict=strict)
    for one in window:
        if one.contender == Way.PYTHON and (found := one.beyond_s("plan", "commit")):
            yield Goal("plan and commit beyond that window's job, s", 1.5, found)


def _planning(planning: Sequence[Results]) -> Iterator[Goal]:
    for one in planning:
        if one.size == _PLAN_PARTITIONS and one.contender in (COLD, WARM):
            found = one.beyond_s("plan")
            if found is not None:
                yield Goal(f"plan 1,000 partitions, {one.contender} process, s", 2.0, found)
    for one in planning:
        peak = one.memory_bytes
        if one.contender.startswith(COLD) and peak is not None:
            of = "old windows" if one.contender != COLD else "partitions"
            found = Spread.of([peak / _MB])
            if found is not None:
                yield Goal(f"memory to plan and commit with {one.size:,} {of}, MB", 300, found)


def _hourly(hourly: Sequence[Results]) -> Iterator[Goal]:
    found = _ratio(hourly, ONE_PASS_LOCAL, STREAMING_ONCE)
    if found is not None:
        yield Goal("24 windows by engine local, times one streaming query", 1.0, found)
    found = _ratio(hourly, ONE_BY_ONE, ONE_PASS)
    if found is not None:
        yield Goal("24 windows one by one, times one pass", 5.0, found, at_least=True)


def _publishing(publishing: Sequence[Results]) -> Iterator[Goal]:
    for one in publishing:
        if one.size == SMALL_RECORDS:
            text, limit, found = "s", 1.0, one.beyond_s("publish")
        else:
            text, limit, found = "of the job", 0.1, published_share(one)
        if found is not None:
            what = f"publish {one.size:,} records to {one.contender}, {text}"
            yield Goal(what, limit, found)


def _ordered_reads(results: Mapping[str, Sequence[Results]]) -> Iterator[Goal]:
    tail = results.get(TAIL, ())
    yield from _against_peer(tail, [f"{peer}{PeerSettings.DEFAULT}" for peer in Peer], "by default")
    yield from _against_peer(tail, PEERS, "at its best")
    for way in (OrderedWay.STREAMING, OrderedWay.EXACT):
        found = _ratio(tail, CONSUME, way)
        if found is not None:
            yield Goal(f"ordered read, {way}: speed, times {CONSUME}", 0.7, found, at_least=True)
    ours = [
        one
        for name, mine in results.items()
        for one in mine
        if name.startswith(TAIL) and one.contender not in _OTHERS
    ]
    # The sum: of one break in many rounds, a median would show nothing.
    breaks = [n for one in ours for run in one.rounds if (n := run.order_breaks) is not None]
    if breaks and (found := Spread.of([sum(breaks)])):
        yield Goal("order breaks in all ordered reads of the package", 0, found)
    for one in results.get(TAIL_GROWTH, ()):
        if one.size == _READ_RECORDS and (peak := one.memory_bytes) is not None:
            text = f"memory of an ordered read of {one.size:,} records, {one.contender}, MB"
            if found := Spread.of([peak / _MB]):
                yield Goal(text, 600, found)


def _against_peer(tail: Sequence[Results], names: Sequence[str], of: str) -> Iterator[Goal]:
    """The faster one's seconds, times ours."""
    # A read that was cut off counts with its seconds until then: fewer than it would have taken.
    peers = [(one.seconds.median, one.contender) for one in tail if one.seconds]
    faster = min((one for one in peers if one[1] in names), default=None)
    found = None if faster is None else _ratio(tail, faster[1], OrderedWay.STREAMING)
    if faster is not None and found is not None:
        text = (
            f"ordered read, {OrderedWay.STREAMING}: speed, times the faster peer {of} ({faster[1]})"
        )
        yield Goal(text, 2.0, found, at_least=True)


def _ratio(results: Sequence[Results], name: str, base: str) -> Spread | None:
    found = {one.contender: one for one in results}
    return ratio(found[name], found[base]) if name in found and base in found else None
