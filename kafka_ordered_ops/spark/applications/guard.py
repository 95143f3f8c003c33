"""Run spark-submit, and end every process that it started: at its end, on request, or when its submitter is gone.

Started as ``python -I guard.py WHAT COMMAND...`` with pipes as its standard input and output. WHAT is JSON: ``remove``,
folders as ``[descriptor, name]``; ``log`` in the same way; ``alive``, a descriptor; and ``grace_s``. Names are resolved in
folders whose descriptors this process has inherited, so a folder that another program puts in the place of one of them
is never reached. A line ``end`` on the input ends the run. So does the end of the input: the kernel closes it when the
submitter dies, even by a ``kill -9``. However the run ends, this process answers with one line of JSON only once *no*
process of the run is left: ``{"code": 0, "left": []}``. Then it waits for the end of its input, deletes the folders
(there are secrets in them), and ends.

A killed spark-submit leaves its Python running, which continues to write results. Spark's Python workers form their
own process group, which ``killpg`` does not reach. On Linux all of them stay this process's descendants, because it
adopts orphans: the run has ended when this process has no children left. Elsewhere, the run has ended when its process
group is empty.

Uses only the standard library, and nothing of the package: with ``-I``, the package is not on the path.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

#: The interval of the heartbeat; the job ends when it has not changed for minutes.
HEARTBEAT_S = 1.0

#: The file whose modification time is the heartbeat, and whose lock marks the folder as in use.
ALIVE_NAME = "alive"

#: After SIGKILL, only a process that hangs in the kernel survives.
_KILL_WAIT_S = 20.0
_LOOK_S = 0.05

#: The newest output of the job is kept, in at most two files of this size.
_LOG_BYTES_MAX = 16 * 1024 * 1024

_PIECE_BYTES = 65_536
_PIECES_MAX = 64

_ON_LINUX = os.uname().sysname == "Linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Guard:
    """One run."""

    def __init__(
        self, *, remove: list[tuple[int, str]], log: tuple[int, str], alive: int, grace_s: float
    ) -> None:
        self._remove = remove
        self._alive = alive
        self._grace_s = grace_s
        self._log = _Log(*log)
        self._parent = os.getppid()
        self._pid = 0
        self._code: int | None = None
        # The end of a child must wake up select(), so the signal is turned into a byte.
        self._wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The end of the guard ends the processes below it; SystemExit runs the `finally` of `run`.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))
        self._output = -1

    def run(self, command: list[str]) -> None:
        """Run `command`, report how it ended once none of its processes is left, and clean up."""
        try:
            try:
                self._start(command)
                while self._code is None and self._is_wanted():
                    self._turn(HEARTBEAT_S)
            except OSError as error:
                # This goes into the log. The submitter only learns that there is no exit code.
                print(error, file=sys.stderr, flush=True)
            finally:
                left = self._end()
            self._tell(left)
            while self._is_wanted(after_end=True):
                self._turn(HEARTBEAT_S)
        finally:
            for parent, name in self._remove:
                shutil.rmtree(name, ignore_errors=True, dir_fd=parent)

    def _start(self, command: list[str]) -> None:
        if _ON_LINUX:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._output, write = os.pipe()
        os.set_blocking(self._output, False)
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            start_new_session=True,
            # Safe here, because this process has one thread: no lock is held across the fork, and the thread
            # that forks lives to the end.
            preexec_fn=_die_with_guard if _ON_LINUX else None,
        )
        os.close(write)
        self._pid = program.pid
        # Reaped by this process, with all others.
        program.returncode = 0

    def _is_wanted(self, *, after_end: bool = False) -> bool:
        """Return whether the submitter is alive and has not asked for the end."""
        if os.getppid() != self._parent:
            # A fork of the submitter that never ran another program also keeps the pipe open; then only the
            # parent's id shows the end.
            return False
        orders = sys.stdin.fileno()
        readable, _, _ = select.select([orders], [], [], 0)
        if not readable:
            return True
        # The only order is to end; after the end, only the end of the input counts.
        return os.read(orders, 4096) != b"" and after_end

    def _turn(self, wait_s: float) -> None:
        """Wait for the next event, and handle it."""
        sources = [sys.stdin.fileno(), self._wake]
        if self._output >= 0:
            sources.append(self._output)
        readable, _, _ = select.select(sources, [], [], wait_s)
        if self._wake in readable:
            os.read(self._wake, 4096)
        if self._output in readable:
            self._drain()
        self._reap()
        with contextlib.suppress(OSError):
            os.utime(self._alive)

    def _drain(self) -> None:
        """Move printed output to the log, so that no printing process waits long."""
        # Limited: a process that prints without end must not block the guard.
        for _ in range(_PIECES_MAX):
            try:
                content = os.read(self._output, _PIECE_BYTES)
            except BlockingIOError:
                return
            if not content:
                os.close(self._output)
                self._output = -1
                return
            self._log.write(content)

    def _reap(self) -> bool:
        """Reap ended children; return False once there are no children left, running or not."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._code = os.waitstatus_to_exitcode(status)

    def _end(self) -> list[int]:
        """End the remaining processes; return those that cannot be ended."""
        for number, wait_s in ((signal.SIGTERM, self._grace_s), (signal.SIGKILL, _KILL_WAIT_S)):
            deadline = time.monotonic() + wait_s
            sent: set[int] = set()
            while self._is_left():
                # Repeated: a process may have forked between the check and the signal.
                for pid in set(self._left()) - sent:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                    sent.add(pid)
                if time.monotonic() > deadline:
                    break
                time.sleep(_LOOK_S)
                if self._output >= 0:
                    self._drain()
            else:
                break
        if self._output >= 0:
            self._drain()
        return self._left()

    def _is_left(self) -> bool:
        return self._reap() or bool(self._left())

    def _left(self) -> list[int]:
        """Return the processes left of the run."""
        if not self._pid:
            return []
        if _ON_LINUX:
            return _descendants(os.getpid())
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            return []
        # A negative number stands for a process group.
        return [-self._pid]

    def _tell(self, left: list[int]) -> None:
        # If the submitter is gone, the next turn finds out.
        with contextlib.suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), json.dumps({"code": self._code, "left": left}).encode())
            os.write(sys.stdout.fileno(), b"\n")


class _Log:
    """A log file that is rotated when it is full; the previous file is kept with the suffix ``.1``."""

    def __init__(self, parent: int, name: str) -> None:
        self._parent, self._name = parent, name
        self._written = 0
        self._descriptor = self._open()

    def write(self, content: bytes) -> None:
        try:
            if self._written > _LOG_BYTES_MAX:
                # Rotate between two lines, if there are any.
                end = content.find(b"\n") + 1
                os.write(self._descriptor, content[:end])
                os.close(self._descriptor)
                older = f"{self._name}.1"
                os.replace(self._name, older, src_dir_fd=self._parent, dst_dir_fd=self._parent)
                self._written, self._descriptor = 0, self._open()
                content = content[end:]
            self._written += os.write(self._descriptor, content)
        except OSError:
            # A full disk must not stop the job.
            return

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._name, flags, 0o600, dir_fd=self._parent)


def _descendants(root: int) -> list[int]:
    """Return all living descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The program's name is in brackets and may contain anything, even brackets.
            parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue  # it has ended in the meantime
        children.setdefault(int(parent), []).append(int(entry.name))
    descendants: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        descendants += below
        todo += below
    return descendants


def _die_with_guard() -> None:
    """Make the kernel kill spark-submit if the guard itself is killed (Linux only)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    Guard(**json.loads(sys.argv[1])).run(sys.argv[2:])
