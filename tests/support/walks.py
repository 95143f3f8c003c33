"""Random walks through a world: anything, in any order."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

from kafka_ordered_ops import AtTime, Earliest, Latest
from kafka_ordered_ops.core.types import Isolation, OnDataLoss
from tests.support.windows_support import BASE_MS
from tests.support.worlds import World


def wander(world: World, seed: int, steps: int) -> None:
    """A random walk: whatever the seed chooses, as far as the world allows it."""
    random = Random(seed)
    world.create("orders", 2)
    world.create("others")
    walk = _Walk(world, random)
    for number in range(steps):
        walk.step(number)
    walk.finish()


class _Walk:
    """What a random walk knows; it never looks at outcomes but at whether a plan was made."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.topics = ["orders", "others"]
        self.in_transaction: set[str] = set()
        self.places = [("orders", 0), ("orders", 1), ("others", 0)]
        self.known: list[str] = []
        self.isolation = random.choice(
            [Isolation.READ_COMMITTED] * 3 + [Isolation.READ_UNCOMMITTED]
        )
        self.in_intervals = random.random() < 0.4
        self.start = random.choice([Earliest(), Earliest(), Latest(), AtTime(BASE_MS + 5_000)])

    def step(self, number: int) -> None:
        """One step, the common ones most often."""
        weights = {
            self.write: 8,
            self.send: 4,
            self.end: 3,
            self.plan: 8,
            self.commit: 7,
            self.read: 3,
            self.process: 2,
            self.take_up: 2,
            self.abandon: 2,
            self.replay: 1,
            self.delete_before: 1,
            self.foreign_commit: 1,
            self.expire: 1,
            self.prune: 1,
            self.plan_many: 1,
            self.raced: 3,
            self.put_back: 0.7,
            self.commit_many: 1,
            self.split: 1,
            self.recreate: 0 if self.in_transaction else 0.5,
            self.add_partition: 0.5,
            self.look: 1,
        }
        [chosen] = self.random.choices(list(weights), list(weights.values()))
        chosen(number)

    def place(self) -> tuple[str, int]:
        """A partition of a topic."""
        return self.random.choice(self.places)

    def seconds(self) -> list[float]:
        """Times of a few records."""
        return [self.random.randrange(40) for _ in range(self.random.randrange(1, 5))]

    def write(self, _: int) -> None:
        self.world.write(*self.place(), *self.seconds())

    def send(self, _: int) -> None:
        transaction = self.random.choice(["one", "two"])
        self.in_transaction.add(transaction)
        self.world.send(transaction, *self.place(), *self.seconds())

    def end(self, _: int) -> None:
        if self.in_transaction:
            transaction = self.random.choice(sorted(self.in_transaction))
            self.in_transaction.remove(transaction)
            self.world.end(transaction, self.random.choice(["commit", "commit", "abort"]))

    def question(self) -> dict[str, Any]:
        """The arguments of a window."""
        before = self.random.randrange(1, 45)
        question: dict[str, Any] = {
            "before": before,
            "topics": self.topics,
            "starting_offsets": self.start,
            "isolation": self.isolation,
            "on_data_loss": self.random.choice([OnDataLoss.WARN, OnDataLoss.WARN, OnDataLoss.FAIL]),
        }
        if self.in_intervals and self.random.random() < 0.8:
            question["since"] = before - self.random.randrange(1, 20)
        elif self.in_intervals:
            question["sweep"] = True
        if self.random.random() < 0.15:
            question["out_of_orderness_s"] = self.random.randrange(10)
        return question

    def plan(self, number: int) -> None:
        if self.world.plan(f"w{number}", **self.question()) is not None:
            self.known.append(f"w{number}")

    def plan_many(self, number: int) -> None:
        question = self.question()
        if self.in_intervals:
            question["since"], _ = 0, question.pop("sweep", None)
        windows = [
            self.world.window(**{**question, "before": before})
            for before in self.random.sample(range(1, 45), 3)
        ]
        names = [f"w{number}.{n}" for n in range(3)]
        service = self.world.windows()
        plans = self.world.do("plan many", lambda: service.plan_many(windows, names))
        for plan in plans or ():
            self.world.plans[plan.window_id] = plan
            self.known.append(plan.window_id)

    def raced(self, number: int) -> None:
        """A window is planned, and others change the group between its look and its claim."""
        other = self.random.choice([self.plan, self.abandon, self.commit, self.write])
        self.world.before_claim(lambda: other(1_000 + number))
        self.plan(number)

    def put_back(self, number: int) -> None:
        """Offsets are saved, others commit, and somebody puts the older ones back."""
        put_back = self.world.backup("orders")
        self.commit(number)
        put_back()
        self.commit(number)
        self.world.do("adopt", self.world.windows().adopt)

    def commit_many(self, _: int) -> None:
        if self.known:
            names = self.random.sample(self.known, min(3, len(self.known)))
            plans = [self.world.plans[name] for name in names]
            self.world.do("commit many", lambda: self.world.windows().commit_many(plans))

    def split(self, _: int) -> None:
        if (window_id := self.chosen()) is None:
            return
        service, plan = self.world.windows(), self.world.plans[window_id]
        for part in self.world.do("split", lambda: service.split(plan, 2)) or ():
            if self.random.random() < 0.8:
                self.world.do(f"report {part.part}", lambda: service.report(part, {}))  # noqa: B023

    def recreate(self, _: int) -> None:
        self.world.delete("others")
        self.world.create("others")

    def add_partition(self, _: int) -> None:
        number = sum(topic == "orders" for topic, _ in self.places)
        self.world.add_partitions("orders", number + 1)
        self.places.append(("orders", number))

    def chosen(self) -> str | None:
        return self.random.choice(self.known) if self.known else None

    def commit(self, _: int) -> None:
        if (window_id := self.chosen()) is not None:
            self.world.commit(window_id)

    def read(self, _: int) -> None:
        if (window_id := self.chosen()) is not None:
            self.world.read(window_id)

    def process(self, _: int) -> None:
        if (window_id := self.chosen()) is not None:
            start = self.random.randrange(20)
            self.world.process(window_id, start, start + self.random.randrange(1, 10))

    def take_up(self, _: int) -> None:
        if (window_id := self.chosen()) is not None:
            service, window = self.world.windows(), self.world.plans[window_id].window
            plan = self.world.do(f"take up {window_id}", lambda: service.plan(window, window_id))
            self.world.plans[window_id] = plan or self.world.plans[window_id]

    def abandon(self, _: int) -> None:
        if (window_id := self.chosen()) is not None:
            self.world.abandon(window_id)

    def replay(self, _: int) -> None:
        if (window_id := self.chosen()) is not None:
            self.world.replay(window_id)

    def delete_before(self, _: int) -> None:
        topic, partition = self.place()
        tp = self.world.tp(topic, partition)
        end = self.world._lookup.end_offsets([tp], Isolation.READ_COMMITTED)[tp]
        self.world.delete_before(topic, partition, self.random.randint(0, end))

    def foreign_commit(self, _: int) -> None:
        topic, partition = self.place()
        self.world.foreign_commit("g", topic, {partition: self.random.randrange(12)})
        if self.random.random() < 0.8:
            self.world.do("adopt", self.world.windows().adopt)

    def expire(self, _: int) -> None:
        topic, partition = self.place()
        if any(self.world.committed(topic)[str(self.world.tp(topic, partition))] or ()):
            self.world.expire("g", topic, partition)

    def prune(self, _: int) -> None:
        self.world.now += 60
        span = timedelta(seconds=self.random.choice([30, 90]))
        forget = self.random.random() < 0.3
        self.world.do("prune", lambda: self.world.windows().prune(span, forget=forget))

    def look(self, _: int) -> None:
        self.world.look(*self.topics)
        self.world.facts(*self.topics)

    def finish(self) -> None:
        """Ends what is open, takes all that is left, and looks."""
        for transaction in sorted(self.in_transaction):
            self.world.end(transaction, "commit")
        self.world.do("adopt", self.world.windows().adopt)
        self.world.run(
            "last",
            1_000,
            *self.topics,
            starting_offsets=Earliest(),
            isolation=self.isolation,
            on_data_loss=OnDataLoss.WARN,
            sweep=self.in_intervals,
        )
        for window_id in self.known:
            self.world.commit(window_id)
        self.look(0)
