"""Random histories that end in what readers see: one seed, one history.

A step is a verb with some numbers. The numbers are read against what exists when the step is taken, so a part of a
history is a history as well, and a failing history can be shortened by leaving steps out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from tests.support.oracle.shrinking import shortest

#: Hours of the tests' time that windows ask for.
HOURS: Final = 4
#: Numbers that a step carries: more than any step reads.
NUMBERS: Final = 8


@dataclass(frozen=True)
class Kill:
    """Where the process of a step dies."""

    #: It has stored so many changes of the ledger,
    stored: int
    #: and dies before its n-th change of anything after that.
    change: int
    #: Or in the instant in which readers miss something, if there is one.
    in_gap: bool = False

    def __str__(self) -> str:
        gap = ", or where readers miss something" if self.in_gap else ""
        return (
            f", killed before change {self.change} after {self.stored} changes of the ledger{gap}"
        )


@dataclass(frozen=True)
class Actor:
    """One group, as the processes of one deployment run it."""

    cluster: str
    ledger: str
    group: str

    def __str__(self) -> str:
        return f"{self.cluster}/{self.ledger}/{self.group}"


@dataclass(frozen=True)
class GroupKind:
    """What all windows of a group have in common."""

    in_intervals: bool
    topics: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One step: what, with which numbers, and where its process dies."""

    what: str
    label: int
    numbers: tuple[int, ...]
    kill: Kill | None = None

    def __str__(self) -> str:
        return f"{self.label}: {self.what} {self.numbers}{self.kill or ''}"


@dataclass(frozen=True)
class History:
    """What stays the same in a history, and its steps."""

    seed: int
    #: Output goes into a local folder, or into an object store.
    in_store: bool
    #: The file system exchanges two folders in one step.
    exchanges: bool
    partition_by: str | None
    actors: tuple[Actor, ...]
    groups: tuple[tuple[str, GroupKind], ...]
    #: The hour that so many steps of ten are about, besides those that it gets by chance.
    hour: int
    of_the_hour: int
    #: How many of ten windows have an id of the caller's choice.
    own_ids: int
    steps: tuple[Step, ...]

    def kind(self, group: str) -> GroupKind:
        """Return what the windows of a group have in common."""
        return dict(self.groups)[group]

    def __str__(self) -> str:
        folder = "folder" if self.exchanges else "folder that cannot be exchanged"
        place = "object store" if self.in_store else folder
        kinds = ", ".join(
            f"{name}: {'intervals' if kind.in_intervals else 'catch-up'} of {'+'.join(kind.topics)}"
            for name, kind in self.groups
        )
        actors = ", ".join(map(str, self.actors))
        told = f"seed {self.seed}: {place}, partition_by {self.partition_by}; {actors}; {kinds}"
        return "\n".join([told, *(f"  {step}" for step in self.steps)])


#: How often each step comes.
_OFTEN: Final = {
    "fill": 0.5,
    "produce": 8,
    "run": 10,
    "again": 4,
    "stage": 3,
    "finish_staged": 3,
    "replay": 3,
    "parts": 1.5,
    "many": 2.5,
    "abandon": 2,
    "prune": 2,
    "move": 2,
    "adopt": 0.7,
    "reset": 1,
    "migrate": 0.6,
    "take_root": 0.7,
    "clean": 1.5,
    "lose": 0.7,
    "recreate": 0.6,
    "retention": 1,
    "carry": 0.8,
    "remove": 0.5,
}
#: What a history is about: these steps come so many times as often, because what meets seldom among twenty kinds of
#: steps meets often among five.
_THEMES: Final[tuple[dict[str, int], ...]] = (
    {},
    {"prune": 8, "again": 4, "replay": 4, "run": 2},
    {"stage": 12, "abandon": 16, "produce": 2},
    {"finish_staged": 8, "stage": 4, "prune": 4, "clean": 4, "move": 4, "reset": 8},
    {"move": 8, "reset": 8, "adopt": 8, "run": 3, "again": 4, "retention": 4},
    {"replay": 10, "again": 4, "clean": 4, "parts": 6},
    {"lose": 8, "carry": 8, "remove": 8, "take_root": 8, "again": 8, "run": 2, "clean": 4},
    {"recreate": 8, "adopt": 8, "migrate": 8, "many": 8, "again": 4, "run": 2},
)
#: Where the process of a step dies: after so many changes of the ledger, before one of these changes of anything. A
#: window is planned by the first change of the ledger, committed by the second, and published after it.
_RUN: Final = ((0, 1, 6), (1, 1, 15), (2, 1, 9), (2, 1, 13))
_UPKEEP: Final = ((0, 1, 3),)
_DEATHS: Final = {
    "run": _RUN,
    "again": _RUN,
    "stage": ((0, 1, 2), (1, 1, 9)),
    "finish_staged": ((0, 1, 1), (1, 1, 10), (1, 1, 10)),
    # Staged by some seven changes, and then published.
    "replay": ((0, 1, 21), (0, 8, 16), (0, 8, 16), (0, 5, 13)),
    "parts": ((1, 1, 2), (2, 1, 15), (4, 1, 13), (5, 1, 13), (5, 1, 13)),
    "many": ((1, 1, 22), (2, 1, 13), (2, 1, 25)),
    "clean": ((0, 1, 6),),
    **dict.fromkeys(
        ("abandon", "prune", "move", "adopt", "reset", "migrate", "take_root"), _UPKEEP
    ),
}
#: Steps that call the package by their own name.
VERBS: Final = frozenset(_DEATHS) - {"again", "move"}

_MAIN: Final = Actor("eu", "ledger", "g")
#: Who else works: nobody; another group of the same ledger; another ledger; another cluster with the same names.
_OTHERS: Final = (
    (),
    (),
    (),
    (),
    (Actor("eu", "ledger", "h"),),
    (Actor("eu", "ledger", "h"),),
    (Actor("eu", "ledger2", "h"),),
    (Actor("eu", "ledger2", "g"),),
    (Actor("us", "ledger", "g"),),
    (Actor("us", "ledger", "g"), Actor("eu", "ledger", "h")),
)
_TOPICS: Final = (("t",), ("t",), ("t", "u"))


def history(seed: int, *, in_store: bool | None = None, one_cluster: bool = False) -> History:
    """Return the history of a seed.

    Args:
        seed: the seed.
        in_store: whether output goes into an object store; None: the seed decides.
        one_cluster: leave the second cluster out.
    """
    random = Random(seed)
    theme, kills = random.choice(_THEMES), random.choice([0.1, 0.3, 0.5])
    table = {what: often * theme.get(what, 1) for what, often in _OFTEN.items()}
    store = random.random() < 0.3
    others: tuple[Actor, ...] = random.choice(_OTHERS)
    if one_cluster:
        others = tuple(one for one in others if one.cluster == _MAIN.cluster)
    topics = random.choice(_TOPICS)
    intervals = random.random() < 0.6
    groups = (
        ("g", GroupKind(intervals, topics)),
        ("h", GroupKind(intervals != (random.random() < 0.3), random.choice([topics, ("u",)]))),
    )

    def step(label: int) -> Step:
        # Something to read, and somebody who has read it.
        [what] = random.choices(list(table), list(table.values()))
        what = {0: "fill", 1: "run"}.get(label, what)
        numbers = tuple(random.randrange(1_000) for _ in range(NUMBERS))
        kill = None
        if what in _DEATHS and random.random() < kills:
            stored, first, last = random.choice(_DEATHS[what])
            kill = Kill(stored, random.randint(first, last), random.random() < 0.4)
        return Step(what, label, numbers, kill)

    told = History(
        seed=seed,
        in_store=store if in_store is None else in_store,
        exchanges=True,
        partition_by=random.choice([None, None, None, None, "hour", "date"]),
        actors=(_MAIN, *others),
        groups=groups,
        hour=random.randrange(HOURS),
        of_the_hour=random.choice([2, 4, 6]),
        own_ids=random.choice([1, 3, 6]),
        steps=tuple(step(label) for label in range(random.randint(10, 20))),
    )
    return replace(told, exchanges=random.random() < 0.5)


def smaller(told: History, still_fails: Callable[[History], bool]) -> History:
    """Return a part of a failing history that still fails, with no step or kill that could be left out alone."""

    def fails(steps: tuple[Step, ...]) -> bool:
        return still_fails(replace(told, steps=steps))

    steps = shortest(told.steps, fails)
    for at, step in enumerate(steps):
        calmer = (*steps[:at], replace(step, kill=None), *steps[at + 1 :])
        if step.kill is not None and fails(calmer):
            steps = calmer
    return replace(told, steps=steps)
