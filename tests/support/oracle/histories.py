"""Random histories of everything that can happen to a group: one seed, one history.

A history is a list of steps whose numbers are read against what is there when their turn comes; so a part of a
history is a history too, and a failing one can be made small by leaving steps out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from kafka_ordered_ops.core.planning import scan_fold
from tests.support.oracle.shrinking import shortest

ACTORS: Final = 3
#: Numbers that a step carries: more than any step reads.
NUMBERS: Final = 12


@dataclass(frozen=True)
class Step:
    """One step: what, by whom, with which numbers; and what others do inside it."""

    what: str
    label: str
    actor: int
    numbers: tuple[int, ...]
    inside: tuple[Step, ...] = ()

    def __str__(self) -> str:
        within = f" while {[str(one) for one in self.inside]}" if self.inside else ""
        return f"{self.label}: {self.actor} {self.what}{self.numbers}{within}"


@dataclass(frozen=True)
class History:
    """What stays the same in it, and its steps."""

    seed: int
    in_intervals: bool
    committed_only: bool
    by_pattern: bool
    start: str
    segment_ms: int | None
    out_of_orderness_s: tuple[float | None, ...]
    #: A map of times has chunks of so many records; as it is, short logs have but one.
    chunk_records: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        mine = {name: one for name, one in vars(self).items() if name != "steps"}
        return "\n".join([str(mine), *(f"  {step}" for step in self.steps)])


#: Each with how often it comes; those of the second table never come inside another step.
_INSIDE: Final = {
    "plan": 8,
    "plan_known": 4,
    "plan_many": 2,
    "plan_after": 3,
    "outlive": 3,
    "commit": 7,
    "commit_many": 1,
    "abandon": 4,
    "report": 1,
    "prune": 2,
}
_OUTSIDE: Final = {
    "write": 14,
    "send": 4,
    "end": 3,
    "plan_otherwise": 0.5,
    "mark_written": 1,
    "split": 1.5,
    "read": 5,
    "replay": 1,
    "delete_before": 1.5,
    "compact": 0.7,
    "recreate": 0.7,
    "grow": 0.7,
    "appear": 0.3,
    "foreign": 0.7,
    "lose": 1,
    "restore": 0.7,
    "expire": 0.5,
    "adopt": 2,
    "redefine": 0.3,
    "list": 1,
    "gaps": 3,
}

#: A history is about some of these more than about others: what never meets at a hundred kinds of steps meets there.
_MOODS: Final = (0, 0.5, 1, 1, 2, 4)
_ALWAYS: Final = frozenset({"write", "plan"})


def history(seed: int) -> History:
    """The history of a seed."""
    random = Random(seed)
    length = random.choice([15, 25, 25, 40])
    moods = {
        what: 1 if what in _ALWAYS else random.choice(_MOODS) for what in {**_INSIDE, **_OUTSIDE}
    }

    def step(number: str, table: dict[str, float], depth: int) -> Step:
        [what] = random.choices(list(table), list(table.values()))
        numbers = tuple(random.randrange(1_000) for _ in range(NUMBERS))
        inside: tuple[Step, ...] = ()
        if depth == 0 and what in _INSIDE and random.random() < 0.35:
            count = random.choice([1, 1, 2])
            inside = tuple(step(f"{number}.{n}", within, 1) for n in range(count))
        return Step(what, number, random.randrange(ACTORS), numbers, inside)

    table = {what: often * moods[what] for what, often in {**_INSIDE, **_OUTSIDE}.items()}
    within = {what: often * moods[what] for what, often in _INSIDE.items()}
    return History(
        seed=seed,
        in_intervals=random.random() < 0.6,
        committed_only=random.random() < 0.8,
        by_pattern=random.random() < 0.3,
        start=random.choice(["earliest"] * 4 + ["latest", "offset:3"]),
        segment_ms=random.choice([None, None, 3_000]),
        out_of_orderness_s=random.choice([(None,), (None,), (None, 0, 5), (0,), (10,)]),
        steps=tuple(
            step(str(n), {"write": 3, "send": 1, "end": 1} if n < length // 8 else table, 0)
            for n in range(length)
        ),
        chunk_records=random.choice([2, 2, 3, 5, scan_fold.CHUNK_RECORDS]),
    )


def smaller(told: History, still_fails: Callable[[History], bool]) -> History:
    """A part of a failing history that still fails, with no step that could be left out alone."""
    steps = list(shortest(told.steps, lambda part: still_fails(replace(told, steps=part))))
    for at, step in enumerate(steps):
        for one in step.inside:
            fewer = replace(steps[at], inside=tuple(o for o in steps[at].inside if o != one))
            shorter = [*steps[:at], fewer, *steps[at + 1 :]]
            if still_fails(replace(told, steps=tuple(shorter))):
                steps = shorter
    return replace(told, steps=tuple(steps))
