"""The host of a job: it may end the job, shows its progress, and commits its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kafka_ordered_ops.core.errors import JobFailedError

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import Staged


class Stop:
    """A flag that a host sets, perhaps in a signal's handler, to end a job; the job checks it."""

    # A plain attribute: a handler may interrupt the very thread that checks, where a lock would deadlock.
    def __init__(self, host: str) -> None:
        self._host = host
        self._is_set = False

    def set(self) -> None:
        """Make the job end."""
        self._is_set = True

    def __bool__(self) -> bool:
        return self._is_set

    def check(self, window_id: str) -> None:
        """Raise `JobFailedError` if the job must end."""
        if self:
            raise self.error(window_id)

    def error(self, window_id: str) -> JobFailedError:
        """Return the error of the ended job."""
        return JobFailedError(
            f"window {window_id}: {self._host} ended this attempt. Nothing was committed",
            window_id=window_id,
        )


class Display(Protocol):
    """A host's display of a job's progress."""

    def phase(self, name: str, unit: str = "offsets") -> None:
        """Begin a phase; `unit` is the unit of its counts."""

    def report(self, done: int, total: int, note: str = "") -> None:
        """Report the progress of the phase."""


@dataclass(frozen=True)
class Host:
    """The host of a job, which may end it and shows its progress.

    Args:
        stop: whether the job must end.
        lacks: the error message if a folder is needed and missing.
        say: receives the output lines of an application; `None` leaves them in its own log.
        display: shows the job's progress; `None` logs a line from time to time.
        report: receives the outputs if another process commits them; `None` means that this process commits them.
    """

    stop: Stop
    lacks: str
    say: Callable[[str], None] | None = None
    display: Display | None = None
    report: Callable[[Sequence[Staged | Mapping[str, Any]]], None] | None = None
