"""Steps that keep a group and its roots in order."""

from __future__ import annotations

from datetime import timedelta

from kafka_ordered_ops import AtOffset, OrderedWindows
from tests.support.oracle.outputs import verbs
from tests.support.oracle.outputs.deliveries import Deliveries
from tests.support.oracle.outputs.steps import Step
from tests.support.oracle.outputs.world import HOUR_MS


class Upkeep(Deliveries):
    """What people and their scripts do with the package, besides delivering."""

    def abandon(self, step: Step) -> None:
        """Give up a window that is open, or one that may not be."""
        actor, claim = self.actor(step), self.known_claim(step)
        lineage = self.account.lineage(actor)
        if step.numbers[2] % 8:
            found = [] if lineage is None else lineage.open_windows()
            claim = found[step.numbers[1] % len(found)] if found else None
        if claim is None:
            self.stage(step)
            return
        window_id = claim.window_id
        self.call("abandon", step, actor, lambda one: one.abandon(window_id), [window_id])

    def prune(self, step: Step) -> None:
        """Cut down old windows, or forget them."""
        self.clusters.now_ms += HOUR_MS
        age, forget = timedelta(minutes=step.numbers[1] % 2 * 90), step.numbers[2] % 3 > 0
        self.call("prune", step, self.actor(step), lambda one: one.prune(age, forget=forget))

    def move(self, step: Step) -> None:
        """Let another program move an offset of the group; most often somebody adopts it."""
        actor = self.actor(step)
        topic, partition = self.partition(actor, step.numbers[1])
        self.clusters.move_offset(actor, topic, partition, step.numbers[3] % 6)
        self.judge.by_hand()
        if step.numbers[4] % 4:
            self.adopt(step)

    def adopt(self, step: Step) -> None:
        """Accept what other programs did."""
        self.call("adopt", step, self.actor(step), lambda one: one.adopt())

    def reset(self, step: Step) -> None:
        """Set the group's progress."""
        to = ("earliest", "latest", AtOffset(step.numbers[1] % 6))[step.numbers[2] % 3]
        self.call("reset", step, self.actor(step), lambda one: one.reset_offsets(to))

    def migrate(self, step: Step) -> None:
        """Hand the group over to Parallel Consumer, and most often take it back at once."""

        def act(windows: OrderedWindows) -> None:
            windows.migrate("parallel-consumer")
            if step.numbers[2] % 6:
                windows.migrate("ledger")

        self.call("migrate", step, self.actor(step), act)

    def take_root(self, step: Step) -> None:
        """Make a group's ledger the owner of a root."""
        actor, place = self.actor(step), self.place(step.numbers[1])

        def act(windows: OrderedWindows) -> None:
            windows.adopt_output(place.path)

        self.call("take_root", step, actor, act, place=place)

    def clean(self, step: Step) -> None:
        """Remove old stages: by age alone, or with the word of the group's ledger."""
        actor, place = self.actor(step), self.place(step.numbers[1])

        def act(windows: OrderedWindows) -> None:
            if step.numbers[2] % 2:
                verbs.clean(place.path, windows, self.ledger_topic(actor))
            else:
                verbs.clean(place.path)

        self.call("clean", step, actor, act, place=place)
