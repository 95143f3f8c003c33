"""One time limit for all waits of a call, and log lines while it waits.

A public call makes many requests, each with its own timeout. So the outermost call sets one `Deadline` for its thread, and
every wait inside it ends there: `within` returns the earlier of the wait's own deadline and the call's. Reading data has
its own limits and does not count (`Uncounted`).
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

#: A call logs that it waits after this time; each further line follows after twice the time.
FIRST_LINE_S: Final = 3.0
#: How many lines of the client a failed call logs.
CLIENT_LINES_MAX: Final = 5
#: The parts in which similar log lines differ.
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
        """The seconds left; 0 after the deadline."""
        return max(self.at_s - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.left_s <= 0


class Call:
    """One public call: its name, its deadline, and the current wait."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._started_s = time.monotonic()
        self._deadline = Deadline.after(timeout_s)
        #: Whether to wait until the deadline if all brokers refuse.
        self.is_patient = not isinstance(timeout_s, DefaultTimeout)
        self._waits_for = "the cluster"
        self._allowed_s = 0.0
        #: When reading that does not count began; None while all time counts.
        self._reading_since_s: float | None = None
        self._client_said: dict[str, str] = {}
        self._over = threading.Event()

    @property
    def deadline(self) -> Deadline | None:
        """The deadline of the call; None while it reads data."""
        return self._deadline if self._reading_since_s is None else None

    def waits_for(self, what: str) -> None:
        """Set the reason for the wait, for the log line."""
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
        """Stop the clock; return whether it was running."""
        if self._reading_since_s is not None:
            return False
        self._reading_since_s = time.monotonic()
        return True

    def end_reading(self, *, counts: bool) -> None:
        """Restart the clock; with `counts`, the time since it was stopped counts after all.

        Failed reading counts: otherwise a call that starts over again and again would never end.
        """
        if self._reading_since_s is not None and not counts:
            self._extend(time.monotonic() - self._reading_since_s)
        self._reading_since_s = None

    def client_said(self, line: str) -> None:
        """Keep the client's error lines: the first one of each kind, up to a limit."""
        if len(self._client_said) < CLIENT_LINES_MAX:
            self._client_said.setdefault(DIGITS.sub("#", line), line)

    def end(self, error: BaseException | None) -> None:
        """End the log lines; if the call failed because of the cluster, log the client's error lines."""
        self._over.set()
        if isinstance(error, _OF_THE_CLUSTER) and self._client_said:
            _log.error(
                "%s failed (%s). The Kafka client said: %s",
                self._name,
                type(error).__name__,
                "; ".join(self._client_said.values()),
            )

    def tell_while_waiting(self) -> None:
        """Log the reason for the wait periodically, in another thread, because a client may wait inside C code."""
        line_s = FIRST_LINE_S
        while not self._over.wait(max(self._started_s + line_s - time.monotonic(), 0.01)):
            line_s *= 2
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
    """Return the running call of this thread, if there is one."""
    return _running.get()


@contextmanager
def call(name: str, timeout_s: float) -> Iterator[Call]:
    """Limit all waiting inside the block to `timeout_s`; a nested call ends with the outer call."""
    outer = _running.get()
    if outer is not None:
        yield outer
        return
    current = Call(name, timeout_s)
    token = _running.set(current)
    threading.Thread(target=current.tell_while_waiting, name="koo-call", daemon=True).start()
    failed: BaseException | None = None
    try:
        yield current
    except BaseException as error:
        failed = error
        raise
    finally:
        _running.reset(token)
        current.end(failed)


def client_said(line: str) -> None:
    """Keep a line of the client for the running call, if there is one."""
    if (current := _running.get()) is not None:
        current.client_said(line)


def within(timeout_s: float) -> Deadline:
    """Return the deadline of a wait of up to `timeout_s`, or the running call's deadline if that is earlier."""
    own, current = Deadline.after(timeout_s), _running.get()
    if current is None or (of_call := current.deadline) is None:
        return own
    return min(own, of_call, key=lambda deadline: deadline.at_s)


def is_patient(timeout_s: float) -> bool:
    """Return whether to wait until the end of the running call, or of `timeout_s`, if all brokers refuse."""
    current = _running.get()
    return not isinstance(timeout_s, DefaultTimeout) if current is None else current.is_patient


def give_up() -> None:
    """End the running call's time, if there is a call."""
    if (current := _running.get()) is not None:
        current.give_up()


class Uncounted:
    """Excludes the time of reading data, which has its own limit, from the running call's time."""

    def __init__(self) -> None:
        self._call: Call | None = None

    def begin(self) -> None:
        """Stop the running call's clock, if there is a call and its clock runs."""
        current = _running.get()
        self._call = current if current is not None and current.begin_reading() else None

    def end(self, *, failed: bool) -> None:
        """Restart the clock."""
        if self._call is not None:
            self._call.end_reading(counts=failed)
            self._call = None


@contextmanager
def outside() -> Iterator[None]:
    """Exclude user code: its time does not count, and its own calls have their own limits."""
    current = _running.get()
    if current is None:
        yield
        return
    token = _running.set(None)
    stopped = current.begin_reading()
    try:
        yield
    finally:
        if stopped:
            current.end_reading(counts=False)
        _running.reset(token)


def waits_for(what: str) -> None:
    """Set the reason for the running call's wait, if there is a call."""
    if (current := _running.get()) is not None:
        current.waits_for(what)
