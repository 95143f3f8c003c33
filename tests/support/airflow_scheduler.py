"""Airflow's scheduler in tests: started again where its own database ended it, as a service manager would."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

#: More often than this it is no accident.
_RESTARTS_MAX: Final = 2

#: A line of another part, in the log of all: ``triggerer  | text``, in colors where they are forced.
_OF_OTHERS: Final = re.compile(
    r"(?:\x1b\[\d+m)*(?:api-server|dag-processor|triggerer|standalone)\b"
)

#: So many of its last lines hold the reason: it has logged faults that it survived, too.
_LAST_LINES: Final = 150

#: What ends it by itself now and then: two of its processes change one row of a database that has no row locks.
_OWN_FAULT: Final = re.compile(
    r"\b(?:StaleDataError|ObjectDeletedError)\b.*|\bOperationalError\b.*database is locked.*"
)

#: A frame of this package: then the fault is ours, whatever its name.
_OUR_FRAME: Final = re.compile(r"/kafka_ordered_ops/\S*\.py")


class Scheduler:
    """The scheduler of a standalone Airflow, which starts it once and never again.

    Args:
        home: Airflow's folder.
        log: the log of all parts.
        environment: as of the other parts.
    """

    def __init__(self, home: Path, log: Path, environment: Mapping[str, str]) -> None:
        self._home = home
        self._log = log
        #: Of Airflow's parts.
        self.environment = environment
        #: The process that Airflow itself started, once it is known.
        self.first_pid: int | None = None
        #: Those that took its place.
        self.restarted: list[subprocess.Popen[bytes]] = []
        self._seen_bytes = 0

    def has_ended(self, dead: set[int]) -> bool:
        """Whether it has ended, by the dead processes among those that Airflow itself started."""
        if self.restarted:
            return self.restarted[-1].poll() is not None
        return self.first_pid in dead

    def restart(self) -> bool:
        """Start it again where the log has a fault of its own as the reason; return whether it was."""
        with self._log.open("rb") as log:
            log.seek(self._seen_bytes)
            fault = own_fault(log.read().decode(errors="replace"))
        if fault is None or len(self.restarted) >= _RESTARTS_MAX:
            return False
        line = f"Airflow's scheduler ended by itself and is started again: {fault}"
        print(line)
        with self._log.open("ab") as log:
            log.write(f"{line}\n".encode())
            log.flush()
            self._seen_bytes = log.tell()
            self.restarted.append(self._started(log))
        return True

    def _started(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "airflow", "scheduler"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(self.environment),
            cwd=self._home,
            start_new_session=True,
        )


def own_fault(log: str) -> str | None:
    """The fault of its database that ended the scheduler; None for no such fault, or with a frame of this package."""
    lines = [line for line in log.splitlines() if not _OF_OTHERS.match(line)][-_LAST_LINES:]
    faults = [found[0].strip() for line in lines if (found := _OWN_FAULT.search(line))]
    is_ours = any(_OUR_FRAME.search(line) for line in lines)
    return faults[-1] if faults and not is_ours else None
