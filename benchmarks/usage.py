"""CPU time and memory of a process and all below it: a Spark driver, its JVM, and their Python workers.

Read from Linux's ``/proc``; elsewhere there are no numbers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

_T = TypeVar("_T")

_PROC: Final = Path("/proc")

#: What a process uses after the last look at it is lost where its parent does not wait for it.
_SAMPLE_EVERY_S: Final = 0.3

#: Where Linux's ``tcp_info`` has the bytes received, 8 bytes.
_RECEIVED_AT: Final = 128

#: Above it a process's memory counts whole: a JVM shares little, and to look at the shares of 2 GB takes the
#: kernel 50 ms, which the contenders would miss.
_SHARED_BYTES_MAX: Final = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class Process:
    """What the system tells of a process at one moment."""

    pid: int
    parent: int
    #: Clock ticks from the machine's start to its own: with the pid it tells processes apart for ever.
    began: int
    #: Its own user and system time.
    own_s: float
    #: The whole time of children that have ended and that it waited for.
    waited_s: float
    resident_bytes: int = 0


class CpuTally:
    """Adds up the CPU time of a tree over looks at it.

    The time of a child that ends is added to its parent's, but only if the parent waits for it: the daemon
    that forks Spark's Python workers does not, and what they used is gone with them. So every process is
    kept as it was last seen, and of what a parent has waited for only that counts which was not seen.
    """

    def __init__(self, before: Iterable[Process]) -> None:
        self._first = {(one.pid, one.began): one for one in before}
        self._last = dict(self._first)
        self._alive = set(self._first)

    def look(self, tree: Iterable[Process]) -> None:
        """Takes note of the tree as it is now."""
        now = {(one.pid, one.began): one for one in tree}
        self._last |= now
        self._alive = set(now)

    @property
    def cpu_s(self) -> float:
        """CPU seconds since the first look."""
        own = waited = 0.0
        seen_of_ended: dict[int, float] = {}
        for key, one in self._last.items():
            if key not in self._alive:
                seen = one.own_s + one.waited_s
                seen_of_ended[one.parent] = seen_of_ended.get(one.parent, 0.0) + seen
        for key, one in self._last.items():
            first = self._first.get(key)
            own += one.own_s - (0.0 if first is None else first.own_s)
            grown = one.waited_s - (0.0 if first is None else first.waited_s)
            waited += max(0.0, grown - seen_of_ended.get(one.pid, 0.0))
        return own + waited


class Meter:
    """Meters the tree below a process for the time of a `with` block."""

    def __init__(self, root: int) -> None:
        self._root = root
        #: CPU seconds used in the block; None where the system does not tell.
        self.cpu_s: float | None = None
        #: The most memory seen at once: proportional shares, so what forked workers share counts once.
        self.memory_bytes: int | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measures the block."""
        if not (_PROC / "self/stat").exists():
            yield
            return
        ended, tally = threading.Event(), CpuTally(_tree(self._root))
        watcher = threading.Thread(target=self._watch, args=(ended, tally), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            tally.look(_tree(self._root))
            self.cpu_s = tally.cpu_s

    def _watch(self, ended: threading.Event, tally: CpuTally) -> None:
        while True:
            tree = _tree(self._root)
            tally.look(tree)
            memory_bytes = sum(map(_memory_bytes, tree))
            self.memory_bytes = max(self.memory_bytes or 0, memory_bytes)
            if ended.wait(_SAMPLE_EVERY_S):
                return


def peak_memory_bytes() -> int | None:
    """The most memory that this process has had resident so far."""
    try:
        return _field_bytes(_PROC / "self/status", "VmHWM")
    except FileNotFoundError:
        return None


def memory_grown_bytes(call: Callable[[], _T]) -> tuple[_T, int]:
    """Return a call's result, and by how much it raised this process's resident memory at its peak; 0 if unknown."""
    try:
        # The peak is from now on.
        (_PROC / "self/clear_refs").write_text("5")
    except FileNotFoundError:
        return call(), 0
    before = peak_memory_bytes() or 0
    return call(), (peak_memory_bytes() or 0) - before


def received_bytes() -> int:
    """Return what this process has received on the TCP connections that it has open; 0 where the system does not report it."""
    in_all = 0
    for file in (_PROC / "self/fd").glob("*"):
        with contextlib.suppress(OSError):
            if file.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(file.name))) as one:
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
                in_all += int.from_bytes(info[_RECEIVED_AT:], sys.byteorder)
    return in_all


def _tree(root: int) -> list[Process]:
    by_parent: dict[int, list[Process]] = {}
    found: list[Process] = []
    for process in _processes():
        by_parent.setdefault(process.parent, []).append(process)
        if process.pid == root:
            found.append(process)
    for process in found:
        found += by_parent.get(process.pid, [])
    return found


def _processes() -> Iterator[Process]:
    tick_s, page_bytes = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="ascii", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # Gone meanwhile.
        # The second field is a name in parentheses, which may hold any character.
        fields = stat.rpartition(")")[2].split()
        user, system, waited_user, waited_system = (int(one) * tick_s for one in fields[11:15])
        yield Process(
            pid=int(folder.name),
            parent=int(fields[1]),
            began=int(fields[19]),
            own_s=user + system,
            waited_s=waited_user + waited_system,
            resident_bytes=int(fields[21]) * page_bytes,
        )


def _memory_bytes(process: Process) -> int:
    if process.resident_bytes > _SHARED_BYTES_MAX:
        return process.resident_bytes
    try:
        return _field_bytes(_PROC / str(process.pid) / "smaps_rollup", "Pss")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0  # Gone meanwhile, or on the way out.


def _field_bytes(path: Path, name: str) -> int:
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
