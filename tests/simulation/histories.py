"""One history: several processes deliver the windows of a group or two, with whatever a seed lets go wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final

from kafka_ordered_ops import (
    CommitUnknownError,
    Earliest,
    OutputOwnedError,
    Policy,
    ReadTimeoutError,
    RecordsLostError,
    SinkError,
    StagedOutput,
    UnknownWindowError,
    Window,
    WindowFencedError,
    WindowPlan,
    WindowSupersededError,
)
from kafka_ordered_ops.core.errors import BrokerUnreachableError, LedgerUnavailableError
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC, ledger_partition
from kafka_ordered_ops.core.types import OnDataLoss, OnOpenClaim
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.writing.draft import drafts_of
from kafka_ordered_ops.windows import OrderedWindows
from tests.simulation.oracle import LAST_CUTOFF_S, Oracle, Place
from tests.simulation.scheduler import Chances
from tests.simulation.world import TOPIC, Faults, World
from tests.support.windows_support import at

#: Errors that tell a process to run the window again, or to leave it to another one.
_PASSING: Final = (
    BrokerUnreachableError,
    CommitUnknownError,
    LedgerUnavailableError,
    ReadTimeoutError,
    RecordsLostError,
    SinkError,
    UnknownWindowError,
    WindowFencedError,
    WindowSupersededError,
)
#: The one of them that nothing in a history is a reason for.
_NEVER: Final = OutputOwnedError


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
            ),
        )

    @property
    def roots(self) -> dict[str, str]:
        """Where each group's windows go."""
        return {group: f"s3://lake/{group}/out" for group in _GROUPS[: self.groups]}


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
    with World(history.seed, history.partitions, history.chances, history.faults) as world:
        try:
            _live(world, history)
        except Exception as error:  # noqa: BLE001 - whatever it is, no guarantee allows it
            problem = f"{type(error).__name__}: {error}"
    scheduler = world.scheduler
    return Outcome(history, problem, scheduler.commands, scheduler.crashes, tuple(scheduler.told))


def _live(world: World, history: History) -> None:
    for _ in range(history.partitions * 2):
        world.write(history.windows * 10)
    oracle = Oracle(world, history.roots)
    _plan_events(world, history)
    groups = list(history.roots)
    world.scheduler.run(
        {
            f"process {number}": partial(_run, world, oracle, history, groups[number % len(groups)])
            for number in range(history.processes)
        },
        crashes=history.crashes,
    )
    world.heal()
    world.scheduler.run(
        {f"last of {group}": partial(_finish, world, oracle, history, group) for group in groups},
        crashes=0,
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
        for group in history.roots:
            world.scheduler.later(
                world.random.random() * 10,
                f"offsets of {group} expire",
                partial(world.kafka.expire_offsets, group),
            )
    if history.faults.retention:
        world.scheduler.later(world.random.random() * 10, "a log start moves", world.remove)


# --- what a process does -------------------------------------------------------------------------


def _run(world: World, oracle: Oracle, history: History, group: str) -> None:
    """Deliver the windows of a group, in some order, like a task that is retried."""
    names = [f"w{number + 1}" for number in range(history.windows)]
    world.random.shuffle(names)
    with _service(world, group) as windows:
        for name in names:
            _attempt(partial(_deliver, world, oracle, windows, history, name))
            if world.random.random() < 0.15:
                other = world.random.choice(names)
                _attempt(partial(_abandon, oracle, windows, other))


def _finish(world: World, oracle: Oracle, history: History, group: str) -> None:
    """Deliver what is left: every window once more, and one that takes all that there is."""
    names = [f"w{number + 1}" for number in range(history.windows)]
    with _service(world, group) as windows:
        for name in [*names, "last"]:
            _deliver(world, oracle, windows, history, name)


def _attempt(do: Callable[[], object]) -> None:
    try:
        do()
    except _PASSING as error:
        if isinstance(error, _NEVER):
            raise


@contextmanager
def _service(world: World, group: str) -> Iterator[OrderedWindows]:
    with OrderedWindows(
        world.kafka.settings, group, clock=world.clock, timeout_s=60, lookup_timeout_s=20
    ) as windows:
        yield windows


def _deliver(
    world: World, oracle: Oracle, windows: OrderedWindows, history: History, name: str
) -> None:
    cutoff_s = LAST_CUTOFF_S if name == "last" else int(name[1:]) * 10
    window = Window(
        [TOPIC], at(cutoff_s), starting_offsets=Earliest(), on_data_loss=OnDataLoss.WARN
    )
    plan = windows.plan(window, name, history.policy)
    world.scheduler.told.append(
        f"          {name}: {plan.status}, claim {plan.claim_id}, attempt {plan.attempt}"
    )
    oracle.planned(plan)
    root = history.roots[windows.group_id]

    def write(plans: Sequence[WindowPlan]) -> list[StagedOutput]:
        return [_write(world, oracle, plan, root) for plan in plans]

    def reopen(result: Mapping[str, Any]) -> StagedOutput | None:
        return StagedOutput.found(result)

    windows.deliver_many([plan], write, reopen)
    oracle.delivered(plan)


def _abandon(oracle: Oracle, windows: OrderedWindows, name: str) -> None:
    oracle.gave_up(windows.group_id, windows.abandon(name))


def _write(world: World, oracle: Oracle, plan: WindowPlan, root: str) -> StagedOutput:
    """Read a plan's records, and stage them in two files."""
    rows = sorted(_read(world, plan))
    oracle.wrote(plan, frozenset(rows))
    with drafts_of([StagedOutput.of(plan, root)]) as (draft,):
        for number, part in enumerate((rows[::2], rows[1::2])):
            world.store.put(f"{draft.path}/part-{number}.json", json.dumps(part).encode())
        return draft.seal({"records": len(rows)})


def _read(world: World, plan: WindowPlan) -> list[Place]:
    taken = plan.taken
    with open_reader(
        ClientSettings.of(world.kafka.settings),
        plan.group_id,
        plan.isolation,
        taken,
        stall_timeout_s=100,
    ) as reader:
        return [
            (batch.tp.partition, int(offset))
            for batch in reader.timestamps()
            for offset in batch.offsets
        ]
