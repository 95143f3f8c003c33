"""Run an async function as coroutines, on the event loop of one thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import closing, suppress
from typing import Final

from kafka_ordered_ops.core.errors import HungFunctionsError
from kafka_ordered_ops.processing.work_queue import WorkQueue
from kafka_ordered_ops.processing.workers.calls import AsyncCall
from kafka_ordered_ops.processing.workers.turns import Turn
from kafka_ordered_ops.processing.workers.workers import Workers

#: How late a busy event loop may be before it counts as blocked.
_LOOP_GRACE_S: Final = 2.0


class AsyncWorkers(Workers):
    """A coroutine for each record that is processed at the same time, on an event loop in a thread."""

    def __init__(
        self,
        call: AsyncCall,
        concurrency: int,
        queue: WorkQueue,
        *,
        batch_size: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(concurrency, queue, batch_size=batch_size, timeout_s=timeout_s)
        self._call = call
        self._thread = threading.Thread(
            target=self._guarded, args=(self._run,), name="process-async", daemon=True
        )
        self._looked_at = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._tasks: dict[int, asyncio.Task[None]] = {}
        #: Coroutines without work.
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_notified = self._is_given_up = False

    def start(self) -> None:
        """Start the event loop."""
        self._loop = asyncio.new_event_loop()
        self._queue.on_change(self._on_change)
        self._looked_at = time.monotonic()
        self._thread.start()
        if self._timeout_s is not None:
            threading.Thread(
                target=self._watch, args=(self._timeout_s,), name="process-watch", daemon=True
            ).start()

    def join(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until all workers have ended, once the queue is stopped; return whether they have."""
        self._thread.join(timeout_s)
        self._abandon()
        self._is_given_up = True
        # Cancelled coroutines end at once, unless they suppress the cancellation.
        self._thread.join(10 * self._look_s)
        return not self._thread.is_alive()

    def _replace(self, worker: int) -> None:
        self._tasks[worker].cancel()
        if not self._queue.is_stopped:
            self._start_one()

    def _start_one(self) -> None:
        worker = next(self._numbers)
        self._tasks[worker] = self._loop.create_task(self._work(worker))

    def _on_change(self) -> None:
        """Wake the event loop for new work, or for the end; called by any thread."""
        if not self._is_notified:
            self._is_notified = True
            with suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_notified = False
        for _ in range(len(self._idle) if self._queue.is_stopped else self._queue.turns_ready()):
            if not self._idle:
                break
            if not (future := self._idle.popleft()).done():
                future.set_result(None)

    def _run(self) -> None:
        with closing(self._loop):
            self._loop.run_until_complete(self._run_all())

    def _watch(self, timeout_s: float) -> None:
        """End processing if the event loop is blocked, from outside of it."""
        while self._thread.is_alive() and not self._queue.is_stopped:
            self._thread.join(self._look_s)
            if time.monotonic() - self._looked_at > timeout_s + _LOOP_GRACE_S:
                self._queue.stop(
                    HungFunctionsError(
                        f"the async function blocks its event loop for longer than {timeout_s:g} s, and cannot be "
                        "cancelled: await slow operations, run blocking calls with asyncio.to_thread, or make it a plain "
                        "function",
                        hung=1,
                    )
                )

    async def _run_all(self) -> None:
        for _ in range(self._concurrency):
            self._start_one()
        # Fenced workers that suppress the cancellation are left behind.
        while any(worker not in self._hung for worker in self._tasks) and not self._is_given_up:
            with suppress(asyncio.CancelledError):  # Cancelled by a function, as below.
                await asyncio.sleep(self._look_s)
            self._looked_at = time.monotonic()
            self._look()
            self._wake()
        # Including tasks that the function started and did not await.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._look_s)

    async def _work(self, worker: int) -> None:
        queue = self._queue
        try:
            while not queue.is_stopped:
                if (turn := self._take(worker, wait=False)) is not None:
                    await self._work_through(turn, self._tasks[worker])
                    if not self._finish(worker, turn):
                        break
                    # Otherwise functions that never wait would prevent others from running.
                    await asyncio.sleep(0)
                elif not queue.is_stopped:
                    waiting = self._loop.create_future()
                    self._idle.append(waiting)
                    await waiting
        except asyncio.CancelledError:
            # By a function that cancels a task of another. A fenced worker ends above.
            if not queue.is_stopped:
                self._start_one()
        except Exception as error:  # noqa: BLE001 - raised in the thread that takes the results
            # Its records would never be done.
            queue.stop(error)
        finally:
            del self._tasks[worker]

    async def _work_through(self, turn: Turn, task: asyncio.Task[None]) -> None:
        call = self._call
        for records in turn.batches():
            turn.note(await call(records))
            if task.cancelling():
                await _uncancel(task)
            if self._queue.is_stopped:
                return


async def _uncancel(task: asyncio.Task[None]) -> None:
    """Undo the cancellation of a task by its own function, so that the next call is not interrupted."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()
