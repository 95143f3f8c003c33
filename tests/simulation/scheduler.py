"""Workers that take turns, one command at a time, in an order that a seed decides, on a clock that a seed moves."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

#: The moment at which every history begins, s.
BEGIN_S: Final = 1_700_001_000.0
#: Commands of one history: more mean that it does not come to an end.
_COMMANDS_MAX: Final = 60_000
#: Commands that are told of a history that fails.
_TOLD_MAX: Final = 400


class Crash(BaseException):
    """The process is dead: nothing that it does after this reaches Kafka or the store."""


@dataclass(frozen=True)
class Chances:
    """How often something happens before a command."""

    #: The process dies.
    crash: float
    #: Another process goes on.
    switch: float
    #: Something of the world happens: a delayed request arrives, a producer writes.
    event: float
    #: Nothing happens for some seconds: a process was stopped, or a broker was slow.
    jump: float


#: Nothing goes wrong any more.
CALM: Final = Chances(crash=0.0, switch=0.3, event=0.5, jump=0.0)


@dataclass
class _Worker:
    name: str
    turn: threading.Lock
    #: It waits until then, or until `ready` says that it need not.
    wakes_at_s: float | None = None
    ready: Callable[[], bool] | None = None
    is_over: bool = False
    #: How many processes it may lose.
    crashes_left: int = 0
    is_dead: bool = False


@dataclass
class _Event:
    at_s: float
    name: str
    happen: Callable[[], object]
    #: Not before its time.
    exact: bool


@dataclass
class Scheduler:
    """The turns of one history. Only one thread runs at any time: the others wait for their locks."""

    random: Random
    chances: Chances
    #: Is called after each command, and raises if something is wrong.
    check: Callable[[], None] = lambda: None
    now_s: float = BEGIN_S
    commands: int = 0
    crashes: int = 0
    #: The last commands, for people.
    told: deque[str] = field(default_factory=lambda: deque(maxlen=_TOLD_MAX))
    failure: BaseException | None = None
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _events: list[_Event] = field(default_factory=list)
    _main: threading.Lock = field(default_factory=threading.Lock)

    # --- for workers ------------------------------------------------------------------------------

    def command(self, what: str, *, deadly: int = 1) -> None:
        """Come to a command: the process may die before it, `deadly` times as often, or others may come first."""
        worker = self._me()
        if worker is None:
            return
        if worker.is_dead:
            raise Crash
        self._go_on(worker)
        self.told.append(f"{self.now_s - BEGIN_S:9.3f} {worker.name}: {what}")
        self.commands += 1
        if self.commands > _COMMANDS_MAX:
            self._fail(AssertionError(f"no end after {_COMMANDS_MAX} commands"))
            raise Crash
        self.now_s += self.random.random() * 0.004
        if worker.crashes_left and self.random.random() < self.chances.crash * deadly:
            worker.crashes_left -= 1
            worker.is_dead = True
            self.crashes += 1
            self.told.append(f"          {worker.name} dies")
            raise Crash

    def sleep(self, seconds: float) -> None:
        """Wait on the clock of the history."""
        self.wait_for(lambda: False, seconds)

    def wait_for(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds, or the time is over; return whether it holds."""
        worker = self._me()
        if worker is None:
            return ready()
        if worker.is_dead:
            raise Crash
        if ready():
            return True
        worker.wakes_at_s, worker.ready = self.now_s + max(timeout_s, 0.0), ready
        self._hand_over(worker)
        worker.wakes_at_s = worker.ready = None
        return ready()

    # --- for the history --------------------------------------------------------------------------

    def later(
        self, delay_s: float, name: str, happen: Callable[[], object], *, exact: bool = False
    ) -> None:
        """Let something happen after a delay, or sooner by chance, unless it is `exact`."""
        self._events.append(_Event(self.now_s + delay_s, name, happen, exact))

    def run(self, programs: dict[str, Callable[[], None]], *, crashes: int) -> None:
        """Run programs to their ends; one whose process dies begins again, `crashes` times at most.

        Raises the first error of a program, of an event, or of a check.
        """
        threads = []
        for name, program in programs.items():
            worker = _Worker(name, threading.Lock(), crashes_left=crashes)
            worker.turn.acquire()
            thread = threading.Thread(
                target=self._live, args=(worker, program), name=name, daemon=True
            )
            threads.append((thread, worker))
        self._main.acquire()
        for thread, worker in threads:
            thread.start()
            self._workers[thread.ident or 0] = worker
        self._next(None)
        self._main.acquire()
        self._main.release()
        for thread, _ in threads:
            thread.join()
        self._workers.clear()
        if self.failure is not None:
            raise self.failure

    def settle(self) -> None:
        """Let everything happen that was to happen later."""
        while self._events:
            event = min(self._events, key=lambda event: event.at_s)
            self.now_s = max(self.now_s, event.at_s)
            self._happen(event)

    # --- inside -----------------------------------------------------------------------------------

    def _me(self) -> _Worker | None:
        return self._workers.get(threading.get_ident())

    def _live(self, worker: _Worker, program: Callable[[], None]) -> None:
        worker.turn.acquire()
        try:
            while self.failure is None:
                try:
                    program()
                    break
                except Crash:
                    worker.is_dead = False
        except BaseException as error:  # noqa: BLE001 - it is raised where the history was started
            self._fail(error)
        worker.is_over = True
        self._next(None)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error

    def _go_on(self, worker: _Worker) -> None:
        """Check what the last command has done, let events happen, and perhaps let another process go first."""
        if self.failure is not None:
            raise Crash
        try:
            self.check()
            if self._events and self.random.random() < self.chances.event:
                self._let_happen()
        except BaseException as error:  # noqa: BLE001 - it is raised where the history was started
            self._fail(error)
            raise Crash from None
        if self.chances.jump and self.random.random() < self.chances.jump:
            self.now_s += self.random.choice([0.5, 3.0, 20.0, 70.0])
        if self.random.random() < self.chances.switch:
            self._hand_over(worker)

    def _let_happen(self) -> None:
        possible = [event for event in self._events if not event.exact or event.at_s <= self.now_s]
        if possible:
            self._happen(possible[self.random.randrange(len(possible))])
            self.check()

    def _happen(self, event: _Event) -> None:
        self._events.remove(event)
        self.told.append(f"{self.now_s - BEGIN_S:9.3f} {event.name}")
        event.happen()

    def _hand_over(self, worker: _Worker) -> None:
        self._next(worker)
        if self.failure is not None:
            raise Crash

    def _next(self, current: _Worker | None) -> None:
        """Give the turn to a process that can go on: to this one too; return when it is this one's turn again."""
        chosen = self._chosen()
        if chosen is current is not None:
            return
        if chosen is None:
            self._main.release()
        else:
            chosen.turn.release()
        if current is not None:
            current.turn.acquire()

    def _chosen(self) -> _Worker | None:
        """Return a process that can go on, after the clock has moved to where one can; None when all are over."""
        while True:
            alive = [worker for worker in self._workers.values() if not worker.is_over]
            if not alive:
                return None
            if self.failure is not None:
                return alive[0]
            if runnable := [worker for worker in alive if self._can_go_on(worker)]:
                return runnable[self.random.randrange(len(runnable))]
            self._wait(alive)

    def _can_go_on(self, worker: _Worker) -> bool:
        if worker.wakes_at_s is None or worker.wakes_at_s <= self.now_s:
            return True
        return worker.ready is not None and worker.ready()

    def _wait(self, alive: list[_Worker]) -> None:
        """Move the clock to the next process that wakes, or to the next event, which then happens."""
        wakes_s = min(worker.wakes_at_s or self.now_s for worker in alive)
        event = min(self._events, key=lambda event: event.at_s, default=None)
        if event is None or event.at_s > wakes_s:
            self.now_s = wakes_s
            return
        self.now_s = max(self.now_s, event.at_s)
        try:
            self._happen(event)
            self.check()
        except BaseException as error:  # noqa: BLE001 - it is raised where the history was started
            self._fail(error)
