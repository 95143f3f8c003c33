"""A worker's turn: its records, those that it has started, and their results."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Lock

from kafka_ordered_ops.core.processing.record import Record, Result
from kafka_ordered_ops.core.processing.scheduling import Lane


class Turn:
    """Records that a worker took, to process one batch after another. Safe for threads.

    Another thread may take out the results and the records that are not started, so that nothing waits for a slow record.
    It may also fence the worker, so that the results of its current call are ignored.

    Deques are thread-safe by themselves. A lock and a clock for each record would cost more than everything else, and only
    timeouts need them.

    Args:
        lane: the lane of the records.
        records: the records, in the order in which they are started.
        batch_size: the maximum number of records for one call.
        is_timed: whether calls have a timeout. If not, a worker is fenced only when processing is over.
    """

    __slots__ = (
        "_batch",
        "_batch_began_at",
        "_batch_size",
        "_finished",
        "_is_timed",
        "_left",
        "_lock",
        "_results",
        "began_at",
        "is_fenced",
        "lane",
    )

    def __init__(
        self, lane: Lane, records: Sequence[Record], batch_size: int, *, is_timed: bool
    ) -> None:
        self.lane = lane
        self.began_at = self._batch_began_at = time.monotonic()
        self.is_fenced = False
        self._batch_size = batch_size
        self._is_timed = is_timed
        self._left = deque(records)
        #: Being processed.
        self._batch: list[Record] = []
        self._results: deque[Result] = deque()
        self._finished = 0
        self._lock = Lock()

    def batches(self) -> Iterator[list[Record]]:
        """Yield the records to start now, until none is left or may be started; pass the results of each batch to `note`."""
        lane, left, size = self.lane, self._left, self._batch_size
        try:
            while not self.is_fenced:
                batch: list[Record] = []
                try:
                    while len(batch) < size and left[0].offset < lane.below:
                        batch.append(left.popleft())
                except IndexError:
                    # None is left, or another thread took them out between two lines.
                    pass
                if not batch:
                    return
                if self._is_timed:
                    self._batch_began_at = time.monotonic()
                self._batch = batch
                yield batch
        finally:
            self._batch = []

    def note(self, results: Sequence[Result]) -> None:
        """Add the results of the last batch, unless the worker is fenced."""
        self._finished += len(results)
        if not self._is_timed:
            self._results.extend(results)
            return
        with self._lock:
            if not self.is_fenced:
                self._batch = []
                self._results.extend(results)

    def take_out(self) -> tuple[list[Result], list[Record]]:
        """Return the results, and the records that were not started: other workers continue with these."""
        with self._lock:
            # Meanwhile the worker adds to the results, and takes from the records.
            results = [self._results.popleft() for _ in range(len(self._results))]
            left: list[Record] = []
            with suppress(IndexError):
                while self._left:
                    left.append(self._left.popleft())
            return results, left

    def fence(self, began_before: float) -> list[Record]:
        """Fence the worker if its call started before a time; return the records of the call, whose results are ignored."""
        with self._lock:
            if not self._batch or self.is_fenced or self._batch_began_at >= began_before:
                return []
            self.is_fenced = True
            return self._batch

    @property
    def records(self) -> list[Record]:
        """The records that are being processed or not started yet."""
        with self._lock:
            return [*self._batch, *self._left.copy()]

    @property
    def seconds_each(self) -> float | None:
        """The average duration of a record so far, in seconds; `None` before the first result."""
        if not self._finished:
            return None
        return (time.monotonic() - self.began_at) / self._finished
