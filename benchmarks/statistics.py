"""Medians, spreads and ratios of rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.values import Measurement


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, with the least and the greatest."""

    median: float
    least: float
    greatest: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None without values."""
        if not values:
            return None
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Results:
    """One contender's measurements at one size: the rounds that count, and the first run apart."""

    contender: str
    size: int
    first: Measurement | None
    rounds: tuple[Measurement, ...]

    @property
    def seconds(self) -> Spread | None:
        """Of the job."""
        return self.spread(lambda one: one.seconds)

    @property
    def cpu_s(self) -> Spread | None:
        """CPU seconds."""
        return self.spread(lambda one: one.cpu_s)

    @property
    def memory_bytes(self) -> int | None:
        """The most in any round, the first run included: a process does not give it back."""
        every = [*self.rounds] if self.first is None else [self.first, *self.rounds]
        return max(
            (one.memory_bytes for one in every if one.memory_bytes is not None), default=None
        )

    @property
    def records(self) -> int:
        """What a round delivered."""
        return self.rounds[0].records if self.rounds else 0

    def beyond_s(self, *names: str) -> Spread | None:
        """Of some parts beyond the job, added up; None where there are none."""
        if any(name not in one.beyond_s for one in self.rounds for name in names):
            return None
        return self.spread(lambda one: sum(one.beyond_s[name] for name in names))

    def figure(self, name: str) -> float | None:
        """The median of a named number."""
        found = self.spread(lambda one: one.figures.get(name))
        return None if found is None else found.median

    def spread(self, of: Callable[[Measurement], float | None]) -> Spread | None:
        """Of any number of a round."""
        return Spread.of([value for one in self.rounds if (value := of(one)) is not None])


def results_of(measurements: Iterable[Measurement]) -> list[Results]:
    """By contender and size, in the order in which they appear."""
    groups: dict[tuple[str, int], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.contender, one.size), []).append(one)
    made = []
    for (contender, size), group_id in groups.items():
        by_round = {one.round: one for one in sorted(group_id, key=lambda one: one.round)}
        first = by_round.pop(0, None)
        made.append(Results(contender, size, first, tuple(by_round.values())))
    return made


def ratio(one: Results, other: Results) -> Spread | None:
    """How many times as long one contender takes as the other: within each round, as both ran side by side."""
    theirs = {measurement.round: measurement.seconds for measurement in other.rounds}
    return Spread.of(
        [mine.seconds / theirs[mine.round] for mine in one.rounds if mine.round in theirs]
    )


def exponent(results: Sequence[Results], name: str) -> float | None:
    """With which power of the size a figure grows, between the last two of these sizes: 0 is flat, 1 is linear."""
    last = [(one.size, value) for one in results if (value := one.figure(name)) and value > 0][-2:]
    if len(last) < 2:
        return None
    (size, value), (larger, grown) = last
    return math.log(grown / value) / math.log(larger / size)
