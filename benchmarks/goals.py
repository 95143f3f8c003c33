"""What the package set out to reach, held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.comparisons import COLD, CONNECTOR, ONE_BY_ONE, ONE_PASS, SMALL_RECORDS, WARM
from benchmarks.one_window import Way
from benchmarks.statistics import Results, Spread, ratio
from benchmarks.tables import published_share, spread_text, table

_PLAN_PARTITIONS: Final = 1_000
_MB: Final = 1_000_000


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


def _ratio(results: Sequence[Results], name: str, base: str) -> Spread | None:
    found = {one.contender: one for one in results}
    return ratio(found[name], found[base]) if name in found and base in found else None
