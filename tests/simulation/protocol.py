"""The protocol by itself, for very many histories: generators that fence, read, decide with `core` and commit.

Kafka is reduced to what the protocol rests on: one transactional id with epochs, one open transaction, an end that is
decided before its markers are written, and answers that are lost, late or doubled. Before each command a process may
stop for a while, or die. `Protocol` says what to do wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from kafka_ordered_ops import Earliest, Window, WindowPlan, WindowSupersededError
from kafka_ordered_ops.core.errors import UnknownWindowError
from kafka_ordered_ops.core.group import transitions
from kafka_ordered_ops.core.group.decisions import claiming
from kafka_ordered_ops.core.group.group_state import Change, GroupView
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from tests.simulation.brokers import Fate
from tests.simulation.oracle import Broken
from tests.support.model import ModelGroup, ModelLog
from tests.support.windows_support import at

Steps = Generator[None, None, None]
Decide = Callable[[GroupView], transitions.Outcome]

#: More commands than any history needs.
_COMMANDS_MAX: Final = 20_000
_PARTITIONS: Final = [TopicPartition("orders", 0), TopicPartition("orders", 1)]


@dataclass(frozen=True)
class Protocol:
    """How a change of a group's state is made; by default as the package makes it."""

    fences_first: bool = True
    reads_after_fence: bool = True
    has_one_id: bool = True
    reads_back: bool = True


class _Fenced(Exception):
    """A newer producer has the transactional id."""


class _Unanswered(Exception):
    """Nobody knows whether the request was done."""


@dataclass
class _Transaction:
    after: GroupView
    #: Whether its end is decided: it commits, and its markers are missing.
    commits: bool = False


class _Coordinator:
    """The transactions of one group, and the state that they have stored."""

    def __init__(self, random: Random, fates: float) -> None:
        self.view = GroupView("group")
        self._random, self._fates = random, fates
        self._epochs = [0]
        #: The open transactions, by their ids.
        self._open: dict[int, _Transaction] = {}
        #: Requests that are still on their way.
        self._late: list[tuple[int, int]] = []

    @property
    def is_settled(self) -> bool:
        """Whether readers see the end of the log."""
        return not self._open

    def new_id(self) -> int:
        """Add a transactional id."""
        self._epochs.append(0)
        return len(self._epochs) - 1

    def init(self, name: int) -> int:
        """Fence the producers before, and end their transaction."""
        self._mark(name)
        self._epochs[name] += 1
        epoch = self._epochs[name]
        if self._random.random() < self._fates:
            raise _Unanswered
        return epoch

    def send(self, name: int, epoch: int, after: GroupView) -> None:
        """Write a change in the producer's transaction."""
        if self._epochs[name] != epoch:
            raise _Fenced
        self._open[name] = _Transaction(after)

    def commit(self, name: int, epoch: int) -> None:
        """Commit the producer's transaction; the answer may not come."""
        fate = Fate.ANSWERED
        if self._random.random() < self._fates:
            fate = self._random.choice([Fate.LOST, Fate.UNANSWERED, Fate.LATE, Fate.TWICE])
        if fate in (Fate.ANSWERED, Fate.UNANSWERED, Fate.TWICE):
            if self._epochs[name] != epoch:
                raise _Fenced
            self._decide(name, epoch)
        if fate in (Fate.LATE, Fate.TWICE):
            self._late.append((name, epoch))
        if fate in (Fate.LOST, Fate.UNANSWERED, Fate.LATE):
            raise _Unanswered

    def happen(self) -> None:
        """Let a late request arrive, or a transaction end: by its markers, or because its time is over."""
        if self._late and self._random.random() < 0.5:
            self._decide(*self._late.pop(self._random.randrange(len(self._late))))
        elif self._open:
            name = self._random.choice(list(self._open))
            if not self._open[name].commits:
                if self._random.random() > 0.05:
                    return
                self._epochs[name] += 1
            self._mark(name)

    def heal(self) -> None:
        """Let everything that is late arrive, and nothing be lost any more."""
        while self._late or self._open:
            self.happen()
        self._fates = 0.0

    def _decide(self, name: int, epoch: int) -> None:
        if self._epochs[name] == epoch and name in self._open:
            self._open[name].commits = True

    def _mark(self, name: int) -> None:
        ended = self._open.pop(name, None)
        if ended is not None and ended.commits:
            self.view = ended.after


class _Process:
    """One process: what it remembers is lost when it dies."""

    def __init__(self, life: ProtocolHistory, name: int) -> None:
        self._life = life
        self._name = name if life.protocol.has_one_id else life.coordinator.new_id()
        self._epoch: int | None = None

    def change(self, decide: Decide) -> Steps:
        """Change the group's state by a decision, until the change is known to be stored."""
        seen: GroupView | None = None
        while True:
            try:
                view = seen
                if view is None or self._life.protocol.reads_back:
                    view = yield from self._view()
                else:
                    yield from self._fence()
                outcome = decide(view)
                if not isinstance(outcome, Change):
                    return
                seen = view
                yield from self._store(outcome.applied_to(view))
                return
            except (_Fenced, _Unanswered):
                self._epoch = None
                yield

    def _view(self) -> Generator[None, None, GroupView]:
        protocol = self._life.protocol
        if protocol.reads_after_fence and protocol.fences_first:
            yield from self._fence()
        view = yield from self._read()
        if protocol.fences_first:
            yield from self._fence()
        return view

    def _fence(self) -> Steps:
        if self._epoch is None:
            yield
            self._epoch = self._life.coordinator.init(self._name)

    def _read(self) -> Generator[None, None, GroupView]:
        yield
        while not self._life.coordinator.is_settled:
            yield
        return self._life.coordinator.view

    def _store(self, after: GroupView) -> Steps:
        if not self._life.protocol.fences_first:
            yield from self._fence()
        assert self._epoch is not None
        yield
        self._life.coordinator.send(self._name, self._epoch, after)
        yield
        self._life.coordinator.commit(self._name, self._epoch)
        self._epoch = None


class ProtocolHistory:
    """One history of the protocol."""

    def __init__(self, seed: int, protocol: Protocol | None = None) -> None:
        self.protocol = protocol or Protocol()
        self.random = Random(f"protocol {seed}")
        self.coordinator = _Coordinator(self.random, self.random.choice([0.0, 0.1, 0.3]))
        self._windows = self.random.randint(1, 3)
        self._crash = self.random.choice([0.0, 0.02, 0.1])
        self._logs = {tp: ModelLog() for tp in _PARTITIONS[: self.random.randint(1, 2)]}
        for log in self._logs.values():
            self._write(log, 4)
        #: A plan that somebody has read: its claim always holds the same offsets.
        self._claims: dict[str, dict[TopicPartition, OffsetSet]] = {}
        self._done: dict[TopicPartition, OffsetSet] = {}
        self._looked_at: GroupView | None = None

    def live(self) -> None:
        """Live through it; raise `Broken` if a guarantee does not hold."""
        running = [self._tasks() for _ in range(self.random.choice([2, 2, 3]))]
        dies, commands = 3, 0
        while running:
            commands += 1
            if commands > _COMMANDS_MAX:
                raise Broken(f"no end after {_COMMANDS_MAX} commands")
            number = self.random.randrange(len(running))
            if dies and self.random.random() < self._crash:
                dies -= 1
                running[number] = self._tasks()
                continue
            if next(running[number], self) is self:
                del running[number]
            if self.random.random() < 0.3:
                self.coordinator.happen()
            self._check()
        self._crash = 0.0
        self._finish()

    # --- what processes do ------------------------------------------------------------------------

    def _tasks(self) -> Steps:
        process = _Process(self, 0)
        names = list(range(1, self._windows + 1))
        self.random.shuffle(names)
        for number in names:
            yield from self._deliver(process, number)
            if self.random.random() < 0.2:
                yield from self._change(
                    process,
                    lambda view: transitions.abandon(view, f"w{number}"),  # noqa: B023
                )
            if self.random.random() < 0.2:
                self._write(self.random.choice(list(self._logs.values())), 2)

    def _change(self, process: _Process, decide: Decide) -> Steps:
        try:
            yield from process.change(decide)
        except (UnknownWindowError, WindowSupersededError):
            return

    def _deliver(self, process: _Process, number: int) -> Steps:
        """Plan a window or take it up, read it, and commit it."""
        name, window = (
            f"w{number}",
            Window(["orders"], at(number * 10), starting_offsets=Earliest()),
        )
        plan: WindowPlan | None = None
        while plan is None:
            yield
            view = self.coordinator.view
            known = view.windows.get(name)
            if known is not None and known.status.is_done:
                return
            found: list[WindowPlan] = []
            if known is not None and known.status.is_open:
                decide = self._taking_up(name, window, view, found)
            else:
                decide = self._claiming(name, window, view, found)
            yield from process.change(decide)
            plan = found[-1] if found else None
        claim = {part.tp: part.taken for part in plan}
        if self._claims.setdefault(plan.claim_id, claim) != claim:
            raise Broken(f"{name}: claim {plan.claim_id} has other offsets")
        yield
        mine = plan
        yield from self._change(
            process,
            lambda view: transitions.commit(view, [mine], now_ms=1, others={}, present={}),
        )

    def _claiming(
        self, name: str, window: Window, looked_at: GroupView, found: list[WindowPlan]
    ) -> Decide:
        """Draft a window on a view, and return the decision that claims it on a newer one."""
        drafter = ModelGroup(self._logs)
        drafter.view = looked_at
        wish = drafter.draft((name, window))
        claim_id = f"{self.random.getrandbits(64):016x}"
        wish = replace(wish, windows=[replace(wish.windows[0], claim_id=claim_id)])

        def decide(view: GroupView) -> transitions.Outcome:
            found.clear()
            outcome = claiming.claim(view, wish)
            records = outcome.records if isinstance(outcome, Change) else outcome or ()
            found.extend(record.plan for record in records if record.plan.claim_id == claim_id)
            return outcome

        return decide

    def _taking_up(
        self, name: str, window: Window, looked_at: GroupView, found: list[WindowPlan]
    ) -> Decide:
        def decide(view: GroupView) -> transitions.Outcome:
            found.clear()
            outcome = claiming.resume(
                view,
                looked_at=looked_at.windows[name],
                window=window,
                log_starts={},
                unreadable={},
                now_ms=0,
            )
            if isinstance(outcome, Change):
                found.extend(record.plan for record in outcome.records)
            return outcome

        return decide

    def _write(self, log: ModelLog, records: int) -> None:
        for _ in range(records):
            visible = self.random.random() < 0.8
            second = self.random.randrange(self._windows * 10)
            log.append(
                int(at(second).timestamp() * 1000),
                visible=visible,
                hole=self.random.choice([0, 0, 1]),
            )

    # --- what must hold ---------------------------------------------------------------------------

    def _check(self) -> None:
        view = self.coordinator.view
        if view is self._looked_at or view.state is None:
            return
        self._looked_at = view
        for tp, partition in view.state:
            before = self._done.get(tp, EMPTY_SET)
            if gone := before - partition.done:
                raise Broken(f"progress of {tp} goes down by {gone}")
            self._done[tp] = partition.done
        held: dict[TopicPartition, OffsetSet] = {}
        for record in view.windows.values():
            if not (record.status.is_open or record.status.is_done):
                continue
            for part in record.plan:
                if twice := held.get(part.tp, EMPTY_SET) & part.taken:
                    raise Broken(f"{record.plan.window_id} takes {twice} of {part.tp}, as another")
                held[part.tp] = held.get(part.tp, EMPTY_SET) | part.taken
                if record.status.is_done and (gone := part.taken - self._done[part.tp]):
                    raise Broken(f"{record.plan.window_id} is committed, and {gone} is not done")
        if wrong := view.disagreements():
            raise Broken(str(wrong))

    def _finish(self) -> None:
        """Deliver what is left, and check that nothing is."""
        self.coordinator.heal()
        process = _Process(self, 0)
        for number in (*range(1, self._windows + 1), 1_000):
            for count, _ in enumerate(self._deliver(process, number)):
                if count > _COMMANDS_MAX:
                    raise Broken(f"window {number} comes to no end")
                self._check()
                self.coordinator.happen()
        self.coordinator.heal()
        self._check()
        taken: dict[TopicPartition, OffsetSet] = {}
        for record in self.coordinator.view.windows.values():
            for part in record.plan if record.status.is_done else ():
                taken[part.tp] = taken.get(part.tp, EMPTY_SET) | part.taken
        for tp, log in self._logs.items():
            expected = log.visible_below(log.end)
            if missing := [one for one in expected if one not in taken.get(tp, EMPTY_SET)]:
                raise Broken(f"no window has {missing} of {tp}")
