"""Living through a history: its steps become calls of processes, and a judge hears them all."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tests.support.oracle.outputs.finish import finish
from tests.support.oracle.outputs.hands import Hands
from tests.support.oracle.outputs.processes import Processes
from tests.support.oracle.outputs.roots import Roots
from tests.support.oracle.outputs.steps import History, Step
from tests.support.oracle.outputs.upkeep import Upkeep
from tests.support.oracle.outputs.world import MakeCluster


@dataclass(frozen=True)
class Told:
    """What came of a history."""

    problems: list[str]
    transcript: list[str]
    outcomes: Counter[tuple[str, str]]


def live(
    told: History,
    make: MakeCluster,
    roots: Roots,
    suffix: str,
    processes: type[Processes] = Processes,
) -> Told:
    """Live through a history; stop at the first problem. The arguments are those of `Choices`."""
    with ExitStack() as stack:
        return _Life(told, make, roots, suffix, stack, processes).live()


class _Life(Upkeep, Hands):
    """Has a method for each kind of step."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What travels to another process with the function of a step."""
        from tests.support.oracle.outputs.child import Stranger

        ledgers = {actor: self.ledger_topic(actor) for actor in self.told.actors}
        return Stranger, (self.told, self.roots, ledgers)

    def live(self) -> Told:
        transcript = self.processes.transcript
        for step in self.told.steps:
            transcript.append(f"  {step}")
            getattr(self, step.what)(step)
            if self.judge.problems:
                break
        else:
            self._finish_late()
            finish(self)
        return Told(self.judge.problems, transcript, self.processes.outcomes)

    def _finish_late(self) -> None:
        """Whoever has staged something comes back at last."""
        for number in range(len(self.staged)):
            if not self.judge.problems:
                numbers = (0, number, 2 * self.told.seed + number)
                self.finish_staged(Step("finish_staged", len(self.told.steps), numbers))
