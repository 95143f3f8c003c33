"""Run spark-submit below a guard, which answers once no process of the run is left."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import JobFailedError, SinkError, invariant
from kafka_ordered_ops.core.strict_json import JsonError, Stored
from kafka_ordered_ops.disk.disk import Disk
from kafka_ordered_ops.spark.applications import guard
from kafka_ordered_ops.spark.applications.protocol import Place

#: After the grace period: the guard's own wait after SIGKILL, and a reserve for a loaded machine.
_END_WAIT_S: Final = 40.0
_LOOK_S: Final = 0.05

#: The limit of the guard's answer: how the program ended, and the processes that it could not end.
_ANSWER_BYTES_MAX: Final = 1024 * 1024

#: Carries the run's token to every process of the run, to distinguish them from all others.
RUN_VARIABLE: Final = "KAFKA_ORDERED_OPS_RUN"


class _Answer(Stored, frozen=True, forbid_unknown_fields=False):
    code: int | None
    left: list[int]


class Process:
    """One run of spark-submit. A context manager: at its end no process of the run is left.

    Args:
        command: the command to run.
        place: where the run's files are.
        environment: its environment.
        grace_s: how long to wait for its end before it is killed.
        what: the name of the program in messages.
        after: a sentence on what happens to its windows if it fails.
    """

    def __init__(
        self,
        command: Sequence[str],
        place: Place,
        environment: Mapping[str, str],
        *,
        grace_s: float,
        what: str,
        after: str,
    ) -> None:
        self._grace_s, self._what, self._log = grace_s, what, place.log
        self._after = after
        self._token = place.token
        self._answer = b""
        self._has_ended = False
        self._code = 0
        runner = [sys.executable, "-I", guard.__file__]
        with Disk().append(str(place.log)) as log:
            self._guard = subprocess.Popen(
                [*runner, place.for_guard(grace_s), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environment, RUN_VARIABLE: place.token},
                # Not reached by Ctrl-C in a terminal: the guard must end the other processes first.
                start_new_session=True,
                # The guard holds the files' locks as long as it lives.
                pass_fds=place.descriptors,
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.end()
        finally:
            self._close()

    @property
    def code(self) -> int:
        """The exit code of spark-submit after its end; a negative number is the signal that killed it."""
        invariant(self._has_ended, "asked for an exit code before the end")
        return self._code

    def has_ended(self, wait_s: float) -> bool:
        """Return whether the run has ended and none of its processes is left; wait up to `wait_s` for that.

        Raises:
            SinkError: its guard was killed, or some process of the run cannot be ended.
        """
        if not self._has_ended and self._has_answered(wait_s):
            # The guard answers once.
            self._has_ended = True
            self._code = self._judge()
        return self._has_ended

    def end(self) -> None:
        """End the run, and wait until none of its processes is left. Repeating it changes nothing.

        Raises:
            SinkError: some process of the run cannot be ended.
        """
        if self._has_ended or self._guard.stdin is None or self._guard.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(b"end\n")
            self._guard.stdin.flush()
        if not self.has_ended(self._grace_s + _END_WAIT_S):
            raise SinkError(
                f"{self._what}: its processes did not end within {self._grace_s + _END_WAIT_S:g} s "
                f"(process {self._guard.pid} is to end them). The log: {self._log}"
            )

    def _has_answered(self, wait_s: float) -> bool:
        """Return whether the guard has answered, or is gone."""
        stdout = self._guard.stdout
        if stdout is None:
            return True
        deadline = time.monotonic() + wait_s
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                content = os.read(stdout.fileno(), 65536)
                self._answer += content
                is_long = len(self._answer) > _ANSWER_BYTES_MAX
                if not content or is_long or self._answer.endswith(b"\n"):
                    return True
        return False

    def _judge(self) -> int:
        try:
            value = strict_json.loads(self._answer, limit_bytes=_ANSWER_BYTES_MAX)
            answer = _Answer.parse(value, "answer")
            code, left = answer.code, answer.left
        except JsonError:
            left = _end_orphans(self._token)
            self._close()
            raise JobFailedError(
                f"{self._what} was lost: the process {self._guard.pid} that guards it was killed"
                f"{_left_text(left)}. {self._after} The log: {self._log}"
            ) from None
        if left:
            raise SinkError(
                f"{self._what} has ended{_left_text(left)}. {self._after} The log: {self._log}"
            )
        if code is None:
            raise SinkError(f"{self._what} could not be started. The log: {self._log}")
        return code

    def _close(self) -> None:
        """Let the guard end, which deletes the folder."""
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._guard.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            # It hangs in the kernel, perhaps on the folder. No process of the run is left that could continue.
            self._guard.kill()


def processes_of(token: str) -> list[int]:
    """Return every living process of a run, wherever it is in the process tree; on Linux only, elsewhere none."""
    variable = f"{RUN_VARIABLE}={token}".encode()
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        # The environments of other users' and of ended processes cannot be read.
        with contextlib.suppress(OSError):
            if variable in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return pids


def _end_orphans(token: str) -> list[int]:
    """Kill the processes that a killed guard left behind; return those that remain."""
    deadline = time.monotonic() + _END_WAIT_S
    while (left := processes_of(token)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)
    return left


def _left_text(left: Sequence[int]) -> str:
    return f", and processes {', '.join(map(str, left))} of it cannot be ended" if left else ""
