"""Run the user's function: the common part of all workers, and workers that are threads."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Final

from kafka_ordered_ops.core.errors import FunctionTimeoutError, HungFunctionsError
from kafka_ordered_ops.core.processing.record import Record
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.processing.work_queue import WorkQueue
from kafka_ordered_ops.processing.workers.calls import Call, failed
from kafka_ordered_ops.processing.workers.turns import Turn

#: The interval between two checks of the workers.
LOOK_S: Final = 0.02
#: Each check has a cost for each worker: with more workers, checks are less frequent.
_LOOK_S_EACH: Final = 1e-5
#: This many calls may hang, with any concurrency.
_HUNG_MIN: Final = 16


class Workers(ABC):
    """Workers that process records.

    Args:
        concurrency: how many records, or batches of them, are processed at the same time.
        queue: the source of the records.
        batch_size: the maximum number of records for one call.
        timeout_s: how long a call may take. `None` means no limit.
    """

    def __init__(
        self, concurrency: int, queue: WorkQueue, *, batch_size: int, timeout_s: float | None
    ) -> None:
        self._concurrency, self._queue = concurrency, queue
        self._batch_size, self._timeout_s = batch_size, timeout_s
        #: The turn of each worker, by its number. Each worker sets and removes its own. Other threads read a copy, because
        #: iterating over the items may be interrupted.
        self._turns: dict[int, Turn] = {}
        self._numbers = count()
        #: Fenced workers whose call has not ended.
        self._hung: set[int] = set()
        self._look_s = max(LOOK_S, concurrency * _LOOK_S_EACH)
        self._home = Home()
        #: Called after each turn with its partition and the average seconds for each record.
        self.on_turn: Callable[[TopicPartition, float], None] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start the workers."""

    @abstractmethod
    def join(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until all workers have ended, once the queue is stopped; return whether they have.

        The results of calls that have not ended are ignored.
        """

    @abstractmethod
    def _replace(self, worker: int) -> None:
        """Replace a worker whose call takes too long; end the call if that is possible."""

    def in_flight(self) -> list[Record]:
        """Return the records that workers have taken; for any thread."""
        return [record for turn in self._turns.copy().values() for record in turn.records]

    def _guarded(self, run: Callable[..., None], *args: int) -> None:
        """Run a thread; an error in it ends processing, which would otherwise wait for it for ever."""
        try:
            run(*args)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that takes the results
            self._queue.stop(error)

    def _look(self) -> None:
        """Enforce timeouts, and give records and results that wait behind a slow record back to the queue."""
        now = time.monotonic()
        for worker, turn in self._turns.copy().items():
            if self._timeout_s is not None:
                self._fence(worker, turn, now - self._timeout_s)
            if now - turn.began_at > self._look_s:
                results, left = turn.take_out()
                if results or left:
                    self._queue.finish(turn.lane, results, left)
        self._queue.look()

    def _fence(self, worker: int, turn: Turn, began_before: float) -> None:
        # Before the fence: the call may end at the same moment, and the worker then removes itself from the set.
        self._hung.add(worker)
        if not (records := turn.fence(began_before)):
            self._hung.discard(worker)
            return
        results, left = turn.take_out()
        error = FunctionTimeoutError(
            f"the function took longer than {self._timeout_s:g} s for {records[0]}"
            + (f" and {len(records) - 1} more" if len(records) > 1 else "")
            + ": speed it up, or give a longer timeout_s",
            timeout_s=self._timeout_s,
        )
        self._turns.pop(worker, None)
        self._replace(worker)
        self._queue.finish(turn.lane, results + failed(records, error), left)
        if len(self._hung) > (most := max(_HUNG_MIN, self._concurrency)):
            hung = len(self._hung)
            self._queue.stop(
                HungFunctionsError(
                    f"{hung} calls of the function exceeded their timeout of {self._timeout_s:g} s and still run; the "
                    f"limit is {most}, because a thread cannot be ended from outside. Set timeouts inside the function, "
                    "or use workers='processes'",
                    hung=hung,
                )
            )

    def _take(self, worker: int, *, wait: bool = True) -> Turn | None:
        if not self._home.is_here:
            # Forked by an async function: each `await` in it resumes this event loop.
            os._exit(1)
        if (batch := self._queue.take(wait=wait)) is None:
            return None
        is_timed = self._timeout_s is not None
        turn = self._turns[worker] = Turn(*batch, self._batch_size, is_timed=is_timed)
        return turn

    def _finish(self, worker: int, turn: Turn) -> bool:
        """Return a worker's results and remaining records to the queue; return whether the worker may take more."""
        if turn.is_fenced:
            self._hung.discard(worker)
            return False
        del self._turns[worker]
        seconds_each = turn.seconds_each
        self._queue.finish(turn.lane, *turn.take_out(), seconds_each)
        if seconds_each is not None and self.on_turn is not None:
            self.on_turn(turn.lane.tp, seconds_each)
        return True

    def _abandon(self) -> None:
        """Fence all workers: the results of calls that have not ended are ignored."""
        for turn in self._turns.copy().values():
            turn.fence(float("inf"))


class Threads(Workers):
    """Workers that are threads, or that are each fed by a thread."""

    def __init__(
        self, concurrency: int, queue: WorkQueue, *, batch_size: int, timeout_s: float | None
    ) -> None:
        super().__init__(concurrency, queue, batch_size=batch_size, timeout_s=timeout_s)
        self._threads: dict[int, threading.Thread] = {}
        self._is_joined = threading.Event()

    def start(self) -> None:
        """Start the threads."""
        for _ in range(self._concurrency):
            self._start_one()
        threading.Thread(
            target=self._guarded, args=(self._watch,), name="process-watch", daemon=True
        ).start()

    def join(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until all workers have ended, once the queue is stopped; return whether they have."""
        ends_at = time.monotonic() + timeout_s
        for worker, thread in self._threads.copy().items():
            while thread.is_alive() and worker not in self._hung:
                if (left_s := ends_at - time.monotonic()) <= 0:
                    break
                thread.join(min(left_s, 10 * LOOK_S))
        self._is_joined.set()
        self._abandon()
        return not any(thread.is_alive() for thread in self._threads.copy().values())

    def _replace(self, worker: int) -> None:
        if not self._queue.is_stopped:
            self._start_one()

    def _start_one(self) -> None:
        worker = next(self._numbers)
        thread = self._threads[worker] = threading.Thread(
            target=self._guarded, args=(self._run, worker), name=f"process-{worker}", daemon=True
        )
        thread.start()

    def _watch(self) -> None:
        while not self._is_joined.wait(self._look_s):
            self._look()

    @abstractmethod
    def _run(self, worker: int) -> None:
        """Run one worker: call `_work` with a way to call the function."""

    def _work(self, worker: int, call: Call) -> None:
        queue = self._queue
        while (turn := self._take(worker)) is not None:
            for records in turn.batches():
                turn.note(call(records))
                if queue.is_stopped:
                    break
            if not self._finish(worker, turn):
                break


class ThreadWorkers(Threads):
    """A thread for each record that is processed at the same time."""

    def __init__(
        self,
        call: Call,
        concurrency: int,
        queue: WorkQueue,
        *,
        batch_size: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(concurrency, queue, batch_size=batch_size, timeout_s=timeout_s)
        self._call = call

    def _run(self, worker: int) -> None:
        self._work(worker, self._call)
        self._threads.pop(worker, None)
