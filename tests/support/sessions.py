"""Processes of Linux in tests: those of a session, and how all of them are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Time to end by themselves before they are killed.
END_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.5


@dataclass(frozen=True)
class Process:
    """What Linux tells of a process."""

    pid: int
    parent: int
    session: int
    #: It has ended, and nobody has asked how.
    is_dead: bool

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """A process; None when it is gone."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # After the name, which may hold anything, in parentheses.
        state, parent, _, session = text.rpartition(")")[2].split()[:4]
        return cls(pid, int(parent), int(session), state == "Z")

    @property
    def command(self) -> str:
        """Its arguments; empty when it is dead."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            return ""


def worker_of(pid: int) -> int:
    """The process that has started a task's, and watches it."""
    task = Process.of(pid)
    assert task is not None
    return task.parent


def end_session(process: subprocess.Popen[bytes], timeout_s: float = END_TIMEOUT_S) -> None:
    """Ends every process of a session: politely, then by force.

    A task has a process group of its own, so the group is not enough.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while (left := session_pids(process.pid)) and time.monotonic() < deadline:
        process.poll()
        time.sleep(_LOOK_S)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout_s)


def session_pids(session: int) -> list[int]:
    """The processes of a session that are not dead."""
    return [one.pid for one in processes() if one.session == session and not one.is_dead]


def processes() -> list[Process]:
    """All that there are."""
    found = [Process.of(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    return [one for one in found if one is not None]
