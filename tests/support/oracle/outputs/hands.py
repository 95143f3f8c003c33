"""Steps in which nobody uses the package: producers, retention, and what people do by hand."""

from __future__ import annotations

from tests.support.oracle.outputs.choices import Choices
from tests.support.oracle.outputs.steps import HOURS, Step
from tests.support.oracle.outputs.world import HOUR_MS, PARTITIONS, START_MS

#: How much of a log retention takes.
_SHARES = (0.4, 0.7, 1.0)


class Hands(Choices):
    """What happens to topics, ledgers and roots."""

    def fill(self, step: Step) -> None:
        """Write a record of every hour to every partition, in each cluster."""
        for cluster in sorted({actor.cluster for actor in self.told.actors}):
            for topic, partitions in PARTITIONS.items():
                for partition in range(partitions):
                    start_ms = START_MS + step.numbers[partition] * 3_000
                    times = [start_ms + hour * HOUR_MS for hour in range(HOURS)]
                    self.clusters.produce(cluster, topic, partition, times)

    def produce(self, step: Step) -> None:
        """Write records of one hour most often: late ones, when it was read already. Now and then in each cluster."""
        actor = self.actor(step)
        topic, partition = self.partition(actor, step.numbers[1])
        first, count = self.hour(step.numbers[2]), 1 + step.numbers[3] % 4
        hours = [first if n != 1 else step.numbers[4] % (HOURS + 1) for n in range(count)]
        start_ms = START_MS + step.numbers[5] * 3_000
        times = [start_ms + hour * HOUR_MS + n for n, hour in enumerate(hours)]
        others = {one.cluster for one in self.told.actors if step.numbers[6] % 2}
        for cluster in sorted({actor.cluster, *others}):
            self.clusters.produce(cluster, topic, partition, times)

    def retention(self, step: Step) -> None:
        """Let the beginning of a log go."""
        actor = self.actor(step)
        topic, partition = self.partition(actor, step.numbers[1])
        share = _SHARES[step.numbers[2] % len(_SHARES)]
        self.clusters.delete_before(actor.cluster, topic, partition, share)
        self.judge.by_hand()

    def recreate(self, step: Step) -> None:
        """Delete a topic and create it again, with new records in it or without."""
        actor = self.actor(step)
        topic, _ = self.partition(actor, step.numbers[1])
        self.clusters.recreate(actor.cluster, topic, {one.group for one in self.told.actors})
        if step.numbers[2] % 2:
            times = [START_MS + (number % HOURS) * HOUR_MS for number in step.numbers[3:5]]
            self.clusters.produce(actor.cluster, topic, 0, times)
        self.judge.by_hand()

    def lose(self, step: Step) -> None:
        """Delete the ledger topic, or let the group's offsets expire, or both."""
        actor, which = self.actor(step), step.numbers[1] % 3
        if which != 1:
            self.clusters.lose_ledger(actor)
        if which != 0:
            self.clusters.lose_commits(actor)
        self.judge.by_hand()

    def carry(self, step: Step) -> None:
        """Move or copy a root, with or without what is stored beside it."""
        place, path = self.place(step.numbers[1]), self.roots.new()
        moves = step.numbers[2] % 3 > 0
        # In a store, what readers see is named beside the root.
        with_control = self.told.in_store or step.numbers[3] % 4 > 0
        self.roots.carry(place.path, path, moves=moves, with_control=with_control)
        if moves:
            self.account.moved(place, path, with_control=with_control)
            # Nobody moves a root away under a process that writes to it.
            self.staged = [one for one in self.staged if one.place is not place]
        else:
            self.account.copied(place, path, with_control=with_control)
        self.judge.by_hand()

    def remove(self, step: Step) -> None:
        """Delete a window's folder, or a whole root."""
        place = self.place(step.numbers[1])
        folders = sorted(self.account.seen[place])
        if not folders:
            return
        folder = folders[step.numbers[2] % len(folders)] if step.numbers[3] % 4 else None
        self.account.removed(place, folder)
        self.roots.remove(place.path, folder)
        self.judge.by_hand()
