"""One history: several processes deliver the windows of a group or two, with whatever a seed lets go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from random import Random
from typing import Final

from kafka_ordered_ops import Policy
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC, ledger_partition
from kafka_ordered_ops.core.types import OnOpenClaim
from tests.simulation.oracle import Oracle
from tests.simulation.processes import Worker
from tests.simulation.scheduler import Chances
from tests.simulation.world import Faults, World


def _neighbor(group: str) -> str:
    """Return another group with its records in the same partition of the ledger: each waits for the other's transactions."""
    where = ledger_partition(LEDGER_TOPIC, group)
    names = (f"group-{number}" for number in count(1))
    return next(name for name in names if ledger_partition(LEDGER_TOPIC, name) == where)


_GROUPS: Final = ("group-0", _neighbor("group-0"))


@dataclass(frozen=True)
class History:
    """What a seed decides before anything happens."""

    seed: int
    partitions: int
    groups: int
    processes: int
    windows: int
    crashes: int
    policy: Policy
    chances: Chances
    faults: Faults
    #: Outputs go to a folder, not to an object store.
    folder: bool
    #: The folder's file system can exchange two folders.
    exchanges: bool

    @classmethod
    def of(cls, seed: int) -> History:
        """Return the history of a seed."""
        random = Random(f"history {seed}")
        return cls(
            seed=seed,
            partitions=random.randint(1, 2),
            groups=random.choice([1, 1, 1, 2]),
            processes=random.choice([2, 2, 2, 3]),
            windows=random.randint(1, 3),
            crashes=random.choice([0, 1, 1, 2]),
            policy=random.choice(
                [
                    Policy(),
                    Policy(on_open_claim=OnOpenClaim.TAKE_OVER, claim_age=timedelta(seconds=5)),
                ]
            ),
            chances=Chances(
                crash=random.choice([0.005, 0.02]),
                switch=random.choice([0.03, 0.1, 0.3]),
                event=random.choice([0.02, 0.1]),
                jump=random.choice([0.0, 0.0, 0.003, 0.02]),
            ),
            faults=Faults(
                fates=random.choice([0.0, 0.05, 0.2]),
                unreachable=random.choice([0.0, 0.0, 0.01]),
                marker_delay_s=random.choice([0.0, 0.05, 2.0]),
                expiry=random.random() < 0.2,
                retention=random.random() < 0.2,
                recreation=random.random() < 0.25,
            ),
            folder=random.random() < 0.4,
            exchanges=random.random() < 0.7,
        )

    @property
    def names(self) -> Sequence[str]:
        """The names of the groups."""
        return _GROUPS[: self.groups]


@dataclass(frozen=True)
class Outcome:
    """What became of a history."""

    history: History
    #: What is wrong; None if every guarantee holds.
    problem: str | None
    commands: int
    crashes: int
    #: Its last commands.
    told: tuple[str, ...]

    def __str__(self) -> str:
        repeat = f"repeat it with: python -m tests.simulation {self.history.seed}"
        return "\n".join([*self.told, "", str(self.history), str(self.problem), repeat])


def live(history: History) -> Outcome:
    """Live through a history."""
    problem: str | None = None
    with World(
        history.seed,
        history.partitions,
        history.chances,
        history.faults,
        exchanges=history.exchanges,
    ) as world:
        try:
            _live(world, history)
        except Exception as error:  # noqa: BLE001 - whatever it is, no guarantee allows it
            problem = f"{type(error).__name__}: {error}"
    scheduler = world.scheduler
    return Outcome(history, problem, scheduler.commands, scheduler.crashes, tuple(scheduler.told))


def _live(world: World, history: History) -> None:
    for _ in range(history.partitions * 2):
        world.write(history.windows * 10)
    place = world.folder.path if history.folder else "s3://lake"
    roots = {group: f"{place}/{group}/out" for group in history.names}
    oracle = Oracle(world, roots)
    _plan_events(world, history)
    workers = [
        Worker(world, oracle, group, root, history.windows, history.policy)
        for group, root in roots.items()
    ]
    world.scheduler.run(
        {
            f"process {number}": workers[number % len(workers)].run
            for number in range(history.processes)
        },
        crashes=history.crashes,
    )
    world.heal()
    world.scheduler.run(
        {f"last of {worker.group_id}": worker.finish for worker in workers}, crashes=0
    )
    world.scheduler.settle()
    oracle.finish()


def _plan_events(world: World, history: History) -> None:
    for _ in range(world.random.randrange(4)):
        world.scheduler.later(
            world.random.random() * 5,
            "a producer writes",
            partial(world.write, history.windows * 10),
        )
    if history.faults.expiry:
        for group in history.names:
            world.scheduler.later(
                world.random.random() * 10,
                f"offsets of {group} expire",
                partial(world.kafka.expire_offsets, group),
            )
    if history.faults.retention:
        world.scheduler.later(world.random.random() * 10, "a log start moves", world.remove)
    if history.faults.recreation:
        for _ in range(world.random.randint(1, 2)):
            world.scheduler.later(
                world.random.random() * 10,
                "the topic is deleted",
                partial(world.recreate, history.windows * 10),
            )
