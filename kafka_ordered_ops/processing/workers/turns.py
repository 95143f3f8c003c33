"""What one worker is at: its records, which of them it has begun, and what came of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Lock

from kafka_ordered_ops.core.processing.record import Record, Result
from kafka_ordered_ops.core.processing.scheduling import Lane


class Turn:
    """Records that a worker took, worked through one batch after the other. Safe for threads.

    Somebody else may take out what is finished and what is not begun, so that nothing waits for a slow record; and may
    fence the worker off, so that what it is at counts for nothing any more.

    Deques are safe for threads by themselves. A lock and a clock for each record would cost more than all the rest, and only
    time-outs need them.

    Args:
        lane: where the records are from.
        records: to be begun in this order.
        batch_size: how many at once, at most.
        is_timed: whether calls have a time-out. If not, a worker is fenced off only when processing is over.
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
        """Yield the records to begin now, until none is left, or none may be begun; `note` what came of each batch."""
        lane, left, size = self.lane, self._left, self._batch_size
        try:
            while not self.is_fenced:
                batch: list[Record] = []
                try:
                    while len(batch) < size and left[0].offset < lane.below:
                        batch.append(left.popleft())
                except IndexError:
                    # None is left, or somebody took them out between two lines.
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
        """Take note of what came of the last batch, unless the worker was fenced off."""
        self._finished += len(results)
        if not self._is_timed:
            self._results.extend(results)
            return
        with self._lock:
            if not self.is_fenced:
                self._batch = []
                self._results.extend(results)

    def take_out(self) -> tuple[list[Result], list[Record]]:
        """Return what came of records and those that were not begun: others go on with them."""
        with self._lock:
            # The worker adds to the one meanwhile, and takes from the other.
            results = [self._results.popleft() for _ in range(len(self._results))]
            left: list[Record] = []
            with suppress(IndexError):
                while self._left:
                    left.append(self._left.popleft())
            return results, left

    def fence(self, began_before: float) -> list[Record]:
        """Return the records being processed since before a time, if any; what comes of them counts for nothing."""
        with self._lock:
            if not self._batch or self.is_fenced or self._batch_began_at >= began_before:
                return []
            self.is_fenced = True
            return self._batch

    @property
    def seconds_each(self) -> float | None:
        """How long each record took so far; None: none was finished."""
        if not self._finished:
            return None
        return (time.monotonic() - self.began_at) / self._finished
