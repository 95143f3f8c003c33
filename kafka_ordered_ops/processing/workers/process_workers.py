"""Run a function in separate processes, for functions that compute."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError, WorkerDiedError
from kafka_ordered_ops.core.processing.record import Record, Result
from kafka_ordered_ops.processing.work_queue import WorkQueue
from kafka_ordered_ops.processing.workers.calls import Decode, Function, failed
from kafka_ordered_ops.processing.workers.worker_process import READY, serve
from kafka_ordered_ops.processing.workers.workers import Threads

#: How long a process may take to load the function.
START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 2.0


class ProcessWorkers(Threads):
    """Processes, each fed by a thread. If one dies, its current records fail, and another process takes its place."""

    def __init__(
        self,
        function: bytes,
        concurrency: int,
        queue: WorkQueue,
        *,
        in_batches: bool,
        produces: bool = False,
        batch_size: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(concurrency, queue, batch_size=batch_size, timeout_s=timeout_s)
        self._function = function
        self._in_batches, self._produces = in_batches, produces
        self._processes: dict[int, _Process] = {}

    def join(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until all workers have ended, once the queue is stopped; kill the others."""
        super().join(timeout_s)
        for process in self._processes.copy().values():
            process.kill()
        return super().join(_END_TIMEOUT_S)

    def _replace(self, worker: int) -> None:
        super()._replace(worker)
        if (process := self._processes.get(worker)) is not None:
            process.kill()

    def _run(self, worker: int) -> None:
        process = self._processes[worker] = _Process(
            self._function, self._in_batches, self._produces
        )
        try:
            process.start()
            self._work(worker, process.call)
        except WorkerDiedError:
            if not process.is_killed:
                raise
        finally:
            process.close()
            self._processes.pop(worker, None)
            self._threads.pop(worker, None)


class _Process:
    """One process at a time, driven by one thread; `kill` is for any thread."""

    _starting = threading.Lock()

    def __init__(self, function: bytes, in_batches: bool, produces: bool) -> None:
        self._arguments = function, in_batches, produces
        self._process: SpawnProcess | None = None
        #: Whether it was killed for good: no process takes its place.
        self.is_killed = False
        self._pipe: Connection

    def start(self) -> None:
        """Start the process, and wait until it has loaded the function.

        Raises:
            WorkerDiedError: the process ended before, or took too long.
        """
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        with self._starting:  # Starting is not safe for threads.
            process = context.Process(
                target=serve,
                args=(theirs, *self._arguments),
                name="process-records",
                daemon=True,
            )
            process.start()
            self._process = process
        # So that the pipe ends when the process dies.
        theirs.close()
        try:
            if self._pipe.poll(START_TIMEOUT_S) and self._pipe.recv_bytes() == READY:
                return
        except (EOFError, OSError):
            pass
        raise WorkerDiedError(
            f"a worker process {self._ended()} before its first record. Check that the function is in a module that the "
            'process can import, that the script starts under `if __name__ == "__main__":`, and the standard error',
            exit_code=process.exitcode,
        )

    def call(self, records: Sequence[Record]) -> list[Result]:
        """Return the results of records; if the process dies, they fail, and another process is started."""
        try:
            self._pipe.send_bytes(pickle.dumps(records))
            answered = self._pipe.recv_bytes()
        except (EOFError, OSError):
            ended = self._ended()
            error = WorkerDiedError(
                f"the worker process {ended} while it processed {records[0]}"
                + (f" and {len(records) - 1} more" if len(records) > 1 else ""),
                exit_code=None if self._process is None else self._process.exitcode,
            )
            if not self.is_killed:
                self.close()
                self.start()
            return failed(records, error)
        try:
            answers = pickle.loads(answered)
        except BaseException as error:  # noqa: BLE001 - the user's values; their records fail
            return failed(records, error)
        return [Result(record, *answer) for record, answer in zip(records, answers, strict=True)]

    def kill(self) -> None:
        """Kill the process for good."""
        self.is_killed = True
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        if self._process is None:
            return
        self._pipe.close()
        self._process.join(_END_TIMEOUT_S)
        self._process.kill()

    def _ended(self) -> str:
        if self._process is None:
            return "ended"
        self._process.join(_END_TIMEOUT_S)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            return "did not answer"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def usable_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pickled(function: Function, decode: Decode | None) -> bytes:
    """Return the pickled function for processes, and what decodes; raise `ConfigError` if it cannot be pickled."""
    try:
        data = pickle.dumps((function, decode))
        pickle.loads(data)
    except Exception as error:
        raise ConfigError(
            f"the function cannot be sent to a worker process: {error}. Define it with `def` at the top level of a module, "
            "or use workers='threads'"
        ) from error
    return data
