"""What each judge of calls has: what there was to see around a call, and where it writes down what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.support.oracle.group import Group
from tests.support.oracle.journal import Call, PlanSeen
from tests.support.oracle.truth import LogKey, Truth


@dataclass(frozen=True)
class Moment:
    """What there was to see just before a call, or just after it."""

    #: Of each log: (start, stable end, end).
    bounds: Mapping[LogKey, tuple[int, int, int]]
    committed: Mapping[tuple[str, int], int]
    #: Committed offsets that are not where the group left them.
    moved: Mapping[LogKey, int]
    #: Topics that are not those that the group knows.
    recreated: frozenset[str]
    now_ms: int

    def start(self, key: LogKey) -> int:
        """Where a log begins."""
        return self.bounds.get(key, (0, 0, 0))[0]

    def end(self, key: LogKey, *, committed_only: bool) -> int:
        """Where readers of an isolation end; never below the start."""
        start, stable_end, end = self.bounds.get(key, (0, 0, 0))
        return max(stable_end if committed_only else end, start)


class Bench:
    """What there is to judge by: the logs, the group as it must be, and what there was to see around each call."""

    def __init__(self, truth: Truth, group: str, now_ms: Callable[[], int]) -> None:
        self.truth = truth
        self.group = Group(truth)
        self.problems: list[str] = []
        self._name = group
        self._now_ms = now_ms
        self._call: Call | None = None
        #: Whether something may have happened to the topics since they were read.
        self.is_stale = True

    def look(self) -> Moment:
        """What there is to see now."""
        if self.is_stale:
            self.truth.look()
            self.is_stale = False
        committed = self.truth.plain.committed(self._name)
        return Moment(
            self.truth.bounds(),
            committed,
            self.group.moved_by_others(committed),
            frozenset(self.group.recreated({key.topic for key in self.group.origin})),
            self._now_ms(),
        )

    def _moment(self, which: int) -> Moment:
        assert self._call is not None
        moment: Moment = self._call.moments[which]
        return moment

    def _wrong(self, guarantee: int, what: str) -> None:
        self.problems.append(f"({guarantee}) {what} :: {self._call}")


def show(plan: PlanSeen) -> str:
    """The offsets of a plan, in a message."""
    return str({str(key): sorted(offsets) for key, offsets in plan.holds.items()})
