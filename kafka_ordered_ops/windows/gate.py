"""The gate of every public call of a service: one call at a time, in its own process, within one time limit."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import (
    Concatenate,
    Final,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    SupportsIndex,
    TypeVar,
)

from kafka_ordered_ops.core.errors import (
    BrokerUnreachableError,
    ClosedError,
    CommitUnknownError,
    KafkaOrderedOpsError,
    LedgerUnavailableError,
    NotShareableError,
    WindowFencedError,
)
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.client.lifetime import Home

#: Temporary errors: a call with time left starts over. Every call can be repeated at any time.
_PASSING: Final = (
    BrokerUnreachableError,
    LedgerUnavailableError,
    CommitUnknownError,
    WindowFencedError,
)
_PAUSE_S: Final = 0.5

_P = ParamSpec("_P")
_R = TypeVar("_R")

RightsNamed = Callable[[str, Sequence[object]], AbstractContextManager[None]]
#: Called after a call: its name and arguments, what it returned, its seconds, and its error.
Observe = Callable[[str, Sequence[object], object, float, BaseException | None], None]


class Gate:
    """The way into one service.

    Args:
        name: the service's name in messages.
        timeout_s: time limit for each call, including the wait for other threads' calls.
        is_patient: whether a call is repeated after a temporary error.
        rights_named: returns a block that adds all missing rights of a call to its error, from the call's name and
            arguments.
        observe: is told of each call.
    """

    def __init__(
        self,
        name: str,
        timeout_s: float,
        *,
        is_patient: bool,
        rights_named: RightsNamed,
        observe: Observe,
    ) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._is_patient = is_patient
        self.rights_named = rights_named
        self._observe = observe
        self._home = Home()
        #: A condition, so that the thread that holds it can let others in for a while: see `pause`.
        self._lock = threading.Condition(threading.RLock())
        self._closed = False

    def run(self, what: str, call: Callable[[], _R], about: Sequence[object] = ()) -> _R:
        """Make a call; raise `ClosedError`, `NotShareableError`, or the call's last error."""
        began_s = time.monotonic()
        try:
            returned = self._run(what, call, about)
        except BaseException as error:
            if isinstance(error, KafkaOrderedOpsError) and error.step is None:
                error.step = what
            self._observe(what, about, None, time.monotonic() - began_s, error)
            raise
        self._observe(what, about, returned, time.monotonic() - began_s, None)
        return returned

    def _run(self, what: str, call: Callable[[], _R], about: Sequence[object]) -> _R:
        self.check()
        with calls.call(f"{self.name}: {what}", self._timeout_s) as current, self._turn(what):
            self.check()
            while True:
                try:
                    with self.rights_named(what, about):
                        return call()
                except _PASSING as error:
                    left_s = current.deadline.left_s if current.deadline else 0.0
                    if not self._is_patient or left_s <= _PAUSE_S:
                        raise
                    current.waits_for(str(error))
                    time.sleep(_PAUSE_S)

    def check(self) -> None:
        """Raise unless this process may call the service."""
        self._home.check(self.name)
        if self._closed:
            raise ClosedError(f"{self.name} is closed: create another one")

    @contextmanager
    def closing(self) -> Iterator[bool]:
        """Close the gate; yield whether there is anything to close: not twice, and not in a forked process."""
        if not self._home.is_here or self._closed:
            yield False
            return
        with calls.call(f"{self.name}: close", self._timeout_s), self._turn("close"):
            self._closed = True
            yield True

    def pause(self, pause_s: float) -> None:
        """Wait inside a call, and let other threads' calls proceed: the wait may be for one of them."""
        self._lock.wait(pause_s)
        self.check()

    @contextmanager
    def _turn(self, what: str) -> Iterator[None]:
        """Let one thread in: a client handles one request at a time, and a ledger has one reader."""
        calls.waits_for("another thread's call")
        left_s = min(calls.within(self._timeout_s).left_s, threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=left_s):
            raise NotShareableError(
                f"{self.name}: {what} waited {self._timeout_s:g} s for another thread's call on the same object: "
                "give each thread its own"
            )
        try:
            yield
        finally:
            self._lock.release()


class _Closes(Protocol):
    def close(self) -> None: ...


class Gated:
    """An object whose public methods go through a `Gate`. A context manager.

    It belongs to the process that opened it. Several threads may call it: one call proceeds at a time, and the others
    wait, within their own time limits.
    """

    def __init_subclass__(cls, *, in_steps: Collection[str] = ()) -> None:
        """Wrap every public method as one call, except methods made of other calls with user code between them."""
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_") and name not in in_steps:
                setattr(cls, name, _gated(method))

    def __init__(self, gate: Gate, *, closes: Sequence[_Closes]) -> None:
        self._gate = gate
        self._closes = closes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        gate = getattr(self, "_gate", None)
        return f"<{type(self).__name__}: {'not open' if gate is None else gate.name}>"

    def close(self) -> None:
        """Close the connections; may be called twice. In a forked process, the connections of its parent stay open."""
        with self._gate.closing() as is_open:
            for connection in self._closes if is_open else ():
                connection.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise `NotShareableError`: connections can be neither copied nor pickled."""
        raise NotShareableError(
            f"{self._gate.name} cannot be copied or pickled, as they have connections. Pass the settings and the group "
            "instead, and open the windows where they are used"
        )


def _gated(
    method: Callable[Concatenate[Gated, _P], _R],
) -> Callable[Concatenate[Gated, _P], _R]:
    """Return a public method that passes its object's `Gate`."""

    @functools.wraps(method)
    def through(self: Gated, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        about = (*args, *kwargs.values())
        what = method.__name__.removesuffix("_many")
        return self._gate.run(what, lambda: method(self, *args, **kwargs), about)

    return through
