"""What a step chooses by its numbers, and what its processes know; see `life`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from kafka_ordered_ops import StagedOutput, Window, WindowPlan
from kafka_ordered_ops.core.types import OnDataLoss
from kafka_ordered_ops.core.window.window_id import default_window_id
from tests.support.oracle.outputs.account import Account
from tests.support.oracle.outputs.judge import Heard, Judge
from tests.support.oracle.outputs.lineage import Claim
from tests.support.oracle.outputs.processes import Act, Processes
from tests.support.oracle.outputs.roots import Roots
from tests.support.oracle.outputs.steps import HOURS, Actor, History, Step
from tests.support.oracle.outputs.world import (
    HOUR_MS,
    PARTITIONS,
    START_MS,
    Clusters,
    MakeCluster,
    Place,
    moment,
)

#: Ids that callers choose, and use for one thing today and for another tomorrow.
OWN_IDS: Final = ("A", "B", "C")
#: More places than this come to be by copies only.
_PLACES_MAX: Final = 3


@dataclass(frozen=True)
class Staged:
    """What a process has staged, and may commit much later."""

    actor: Actor
    plan: WindowPlan
    output: StagedOutput
    place: Place


@dataclass(frozen=True)
class Asked:
    """A window that somebody asks for."""

    actor: Actor
    window: Window
    window_id: str
    place: Place


class Choices:
    """A history that is lived: its world, its judge, and what each step chooses.

    Args:
        told: the history.
        make: makes its clusters.
        roots: where it publishes.
        suffix: what all of its names on clusters end in.
        stack: closes all of it.
        processes: lets its processes act.
    """

    def __init__(
        self,
        told: History,
        make: MakeCluster,
        roots: Roots,
        suffix: str,
        stack: ExitStack,
        processes: type[Processes] = Processes,
    ) -> None:
        self.told = told
        self.roots = roots
        self.clusters = Clusters(make, {one.cluster for one in told.actors}, suffix, stack)
        self.account = Account(self.clusters, roots, told.actors)
        self.judge = Judge(self.account)
        self.processes = processes(self.account, self.judge)
        stack.enter_context(self.processes.ports.opened())
        #: What processes have staged, and the question that was asked first under each id.
        self.staged: list[Staged] = []
        self.asked: dict[tuple[Actor, str], Window] = {}
        self.account.new_place()

    def call(
        self,
        what: str,
        step: Step,
        actor: Actor,
        act: Act,
        window_ids: Sequence[str] = (),
        place: Place | None = None,
        *,
        allow_fewer: bool = False,
    ) -> Heard:
        """Let a process of the step act."""
        heard = Heard(what, actor, tuple(window_ids), place, allow_fewer)
        return self.processes.call(heard, act, step.kill)

    # --- choices ----------------------------------------------------------------------------------

    def actor(self, step: Step) -> Actor:
        """Return who acts: the first one twice as often as any other."""
        actors = (self.told.actors[0], *self.told.actors)
        return actors[step.numbers[0] % len(actors)]

    def hour(self, number: int) -> int:
        """Return the hour that the history is about, or any."""
        return self.told.hour if number // 7 % 10 < self.told.of_the_hour else number % HOURS

    def place(self, number: int) -> Place:
        """Return a place: the first one most often, now and then a new one."""
        places = self.account.places
        if number % 10 == 0 and len(places) < _PLACES_MAX:
            return self.account.new_place()
        return places[0] if number % 3 else places[number % len(places)]

    def partition(self, actor: Actor, number: int) -> tuple[str, int]:
        """Return a partition that the actor's group reads."""
        topics = self.told.kind(actor.group).topics
        places = [(topic, n) for topic in topics for n in range(PARTITIONS[topic])]
        return places[number % len(places)]

    def question(self, step: Step) -> Asked:
        """Return a window that the step asks for, with an id of the package or one of the caller."""
        actor = self.actor(step)
        window = self._window(actor, step)
        window_id = default_window_id(self.group_id(actor), window)
        if step.numbers[5] % 10 < self.told.own_ids:
            window_id = OWN_IDS[step.numbers[6] % len(OWN_IDS)]
        return self._placed(step, actor, window, window_id)

    def known_question(self, step: Step) -> Asked | None:
        """Return a window that was asked for before, as a scheduler repeats its calls; None if none was."""
        actor = self.actor(step)
        known = [window_id for one, window_id in self.asked if one == actor]
        if not known:
            return None
        window_id = known[step.numbers[1] % len(known)]
        return self._placed(step, actor, self.asked[actor, window_id], window_id)

    def group_id(self, actor: Actor) -> str:
        """Return the name of an actor's group on its cluster."""
        return self.clusters[actor.cluster].world.named(actor.group)

    def ledger_topic(self, actor: Actor) -> str:
        """Return the name of an actor's ledger topic on its cluster."""
        return self.clusters[actor.cluster].world.named(actor.ledger)

    def known_claim(self, step: Step) -> Claim | None:
        """Return a window that the actor's group has; a newer one most often. None if it has none."""
        lineage, number = self.account.lineage(self.actor(step)), step.numbers[1]
        if lineage is None or not lineage.group.windows:
            return None
        names = list(lineage.group.windows)
        newer = names[-1 - number % min(len(names), 2)]
        return lineage.newest(newer if number % 3 else names[number % len(names)])

    # --- inside -----------------------------------------------------------------------------------

    def _placed(self, step: Step, actor: Actor, window: Window, window_id: str) -> Asked:
        """A window goes to one place, however often it is asked for."""
        place = self.account.meant[actor].get(window_id) or self.place(step.numbers[3])
        self.asked.setdefault((actor, window_id), window)
        return Asked(actor, window, window_id, place)

    def _window(self, actor: Actor, step: Step) -> Window:
        _, hour, kind, _, loss = step.numbers[:5]
        group = self.told.kind(actor.group)
        since_ms = START_MS + self.hour(hour) * HOUR_MS
        is_sweep = group.in_intervals and kind % 8 == 0
        return Window(
            [self.clusters[actor.cluster].world.named(topic) for topic in group.topics],
            moment(since_ms + HOUR_MS),
            since=moment(since_ms) if group.in_intervals and not is_sweep else None,
            sweep=is_sweep,
            starting_offsets="earliest",
            on_data_loss=OnDataLoss.WARN if loss % 3 else OnDataLoss.FAIL,
        )


def later(window: Window) -> Window:
    """Return the same window an hour later."""
    names = ("topics", "starting_offsets", "on_data_loss", "sweep")
    words: dict[str, Any] = {name: getattr(window, name) for name in names}
    if window.since is not None:
        words["since"] = window.cutoff
    return Window(cutoff=moment(window.cutoff_ms + HOUR_MS), **words)
