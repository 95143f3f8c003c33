"""One time limit for everything that a call waits for, and a log line while it waits.

A public call asks many questions, and each of them could wait its own time. So the outermost call sets one
`Deadline` for the thread it runs in, and every wait below it ends there: `within` is the earlier of the wait's
own bound and the call's. Reading data has its own bounds and does not count (`Uncounted`).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Self

from kafka_ordered_ops.core.arguments import DefaultTimeout
from kafka_ordered_ops.core.errors import BrokerError, CommitError, LedgerError, ReadError

_log = logging.getLogger("kafka_ordered_ops.windows")

#: A call that has waited this long logs it; each further line follows after twice the time.
FIRST_LINE_S: Final = 3.0
#: Lines of the client that a failed call shows.
CLIENT_LINES_MAX: Final = 5
#: The differing parts of equal log lines.
DIGITS: Final = re.compile(r"\d+")
#: Errors that the client's lines may explain.
_OF_THE_CLUSTER: Final = (BrokerError, LedgerError, CommitError, ReadError)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of `time.monotonic`."""

    at_s: float

    @classmethod
    def after(cls, timeout_s: float) -> Self:
        """Return the deadline this many seconds from now."""
        return cls(time.monotonic() + timeout_s)

    @property
    def left_s(self) -> float:
        """How many seconds are left; 0 once the moment has passed."""
        return max(self.at_s - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether the moment has passed."""
        return self.left_s <= 0


class Call:
    """One public call: its name, its deadline, and the current wait."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._started_s = time.monotonic()
        self._deadline = Deadline.after(timeout_s)
        #: Whether to wait until the deadline for brokers that all refuse.
        self.is_patient = not isinstance(timeout_s, DefaultTimeout)
        self._waits_for = "the cluster"
        self._allowed_s = 0.0
        #: When reading began that does not count; None while everything does.
        self._reading_since_s: float | None = None
        self._client_said: dict[str, str] = {}
        self._over = threading.Event()

    @property
    def deadline(self) -> Deadline | None:
        """When the call gives up; None while it reads data."""
        return self._deadline if self._reading_since_s is None else None

    def waits_for(self, what: str) -> None:
        """Note the reason of the wait, for the log line."""
        self._waits_for = what

    def allow(self, more_s: float) -> None:
        """Extend the deadline by an extra wait that the caller agreed to; repeating it changes nothing."""
        self._extend(max(more_s - self._allowed_s, 0.0))
        self._allowed_s = max(more_s, self._allowed_s)

    def _extend(self, more_s: float) -> None:
        self._deadline = Deadline(self._deadline.at_s + more_s)

    def give_up(self) -> None:
        """End the call's time: waiting longer cannot help."""
        self._deadline = Deadline.after(0.0)

    def begin_reading(self) -> bool:
        """Stop the clock; return whether it ran."""
        if self._reading_since_s is not None:
            return False
        self._reading_since_s = time.monotonic()
        return True

    def end_reading(self, *, counts: bool) -> None:
        """Let the clock run again; with `counts`, the time since it was stopped is taken off after all.

        Reading that failed counts: else a call that begins again and again would never end.
        """
        if self._reading_since_s is not None and not counts:
            self._extend(time.monotonic() - self._reading_since_s)
        self._reading_since_s = None

    def client_said(self, line: str) -> None:
        """Keep the client's error lines: the first of each kind, up to a limit."""
        if len(self._client_said) < CLIENT_LINES_MAX:
            self._client_said.setdefault(DIGITS.sub("#", line), line)

    def end(self, error: BaseException | None) -> None:
        """End the log lines; for a call that fails by the cluster, log the client's error lines."""
        self._over.set()
        if isinstance(error, _OF_THE_CLUSTER) and self._client_said:
            _log.error(
                "%s failed (%s). The Kafka client said: %s",
                self._name,
                type(error).__name__,
                "; ".join(self._client_said.values()),
            )

    def tell_while_waiting(self) -> None:
        """Log the reason of the wait now and then, in another thread, because a client may wait inside C."""
        told_s = FIRST_LINE_S
        while not self._over.wait(max(self._started_s + told_s - time.monotonic(), 0.01)):
            told_s *= 2
            if self._reading_since_s is None:
                _log.info(
                    "%s has taken %.0f s and is waiting for: %s. It gives up within %.0f s",
                    self._name,
                    time.monotonic() - self._started_s,
                    self._waits_for,
                    self._deadline.left_s,
                )


_running: ContextVar[Call | None] = ContextVar("kafka_ordered_ops_call", default=None)


def running() -> Call | None:
    """Return the call that this thread is in, if it is in one."""
    return _running.get()


@contextmanager
def call(name: str, timeout_s: float) -> Iterator[Call]:
    """Limit all waiting inside the block to `timeout_s`; a nested call ends with the outer call."""
    outer = _running.get()
    if outer is not None:
        yield outer
        return
    one = Call(name, timeout_s)
    token = _running.set(one)
    threading.Thread(target=one.tell_while_waiting, name="koo-call", daemon=True).start()
    failed: BaseException | None = None
    try:
        yield one
    except BaseException as error:
        failed = error
        raise
    finally:
        _running.reset(token)
        one.end(failed)


def client_said(line: str) -> None:
    """Keep a line of the client for the running call, if there is one."""
    if (one := _running.get()) is not None:
        one.client_said(line)


def within(timeout_s: float) -> Deadline:
    """Return the end of a wait that may take `timeout_s`: earlier, where the call that it belongs to ends earlier."""
    own, one = Deadline.after(timeout_s), _running.get()
    if one is None or (of_call := one.deadline) is None:
        return own
    return min(own, of_call, key=lambda deadline: deadline.at_s)


def is_patient(timeout_s: float) -> bool:
    """Return whether brokers that all refuse are waited for until the end: of the running call, or of `timeout_s`."""
    one = _running.get()
    return not isinstance(timeout_s, DefaultTimeout) if one is None else one.is_patient


def give_up() -> None:
    """End the running call's time, if there is a call."""
    if (one := _running.get()) is not None:
        one.give_up()


class Uncounted:
    """Takes the time of reading data, which has its own bound, out of the running call's."""

    def __init__(self) -> None:
        self._call: Call | None = None

    def begin(self) -> None:
        """Stop the running call's clock, if there is one and it runs."""
        one = _running.get()
        self._call = one if one is not None and one.begin_reading() else None

    def end(self, *, failed: bool) -> None:
        """Let it run again."""
        if self._call is not None:
            self._call.end_reading(counts=failed)
            self._call = None


@contextmanager
def outside() -> Iterator[None]:
    """Exclude user code: its time does not count, and its own calls have their own limits."""
    one = _running.get()
    if one is None:
        yield
        return
    token = _running.set(None)
    stopped = one.begin_reading()
    try:
        yield
    finally:
        if stopped:
            one.end_reading(counts=False)
        _running.reset(token)


def waits_for(what: str) -> None:
    """Note the reason of the running call's wait, if there is a call."""
    if (one := _running.get()) is not None:
        one.waits_for(what)
