"""Waiting reads of clients, and their answers."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple

from kafka_ordered_ops.core.errors import RelayUnavailableError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.relay.leases.handout import Handout
from kafka_ordered_ops.relay.leases.partition import Partition
from kafka_ordered_ops.relay.ports import Delivered, Reader

#: How long, after its own time, a read waits for its written leases to be read back.
GRACE_S: Final = 10.0
#: How long, after its own time, a read waits until the available records are known: a new group begins in less.
LOOK_S: Final = 10.0


class _Answer(NamedTuple):
    future: asyncio.Future[Any]
    value: Any
    error: BaseException | None
    unwanted: Callable[[], None] | None


class Answers:
    """Answers to calls on event loops, delivered together: waking a loop costs more than an answer."""

    def __init__(self) -> None:
        self._given: list[_Answer] = []

    def give(
        self, future: asyncio.Future[Any], value: Any, unwanted: Callable[[], None] | None = None
    ) -> None:
        """Answer a call; if its caller is gone by then, call `unwanted` in the event loop's thread."""
        self._given.append(_Answer(future, value, None, unwanted))

    def fail(self, future: asyncio.Future[Any], error: BaseException) -> None:
        """Answer a call with an error."""
        self._given.append(_Answer(future, None, error, None))

    def flush(self) -> None:
        """Deliver the answers."""
        if not self._given:
            return
        by_loop: dict[asyncio.AbstractEventLoop, list[Any]] = defaultdict(list)
        for answer in self._given:
            by_loop[answer.future.get_loop()].append(answer)
        self._given = []
        for loop, answers in by_loop.items():
            # Nobody waits on a closed loop.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: Iterable[_Answer]) -> None:
    for future, value, error, unwanted in answers:
        if future.done():
            if unwanted is not None:
                unwanted()
        elif error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


@dataclass(slots=True, eq=False)
class Read:
    """One call of `read`."""

    group: str
    records_max: int
    #: A `time.monotonic` time.
    ends_at: float
    lease_ms: int
    topics: frozenset[str] | None
    reader: Reader | None
    future: asyncio.Future[Any]
    #: Whether there were records, but the reader has reached its limit.
    is_limited: bool = False
    #: Whether there were records, but their leases could not be stored.
    is_unstored: bool = False
    #: The number of leases that are written, but not read back.
    open: int = 0
    records: list[Delivered] = field(default_factory=list)
    #: The ids and offsets of the delivered records' leases.
    leases: list[tuple[str, OffsetSet]] = field(default_factory=list)
    #: Whether the read has been answered.
    is_over: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether the caller still waits."""
        return not (self.is_over or self.future.cancelled())

    def wants(self, topic: str) -> bool:
        """Return whether it requests a topic."""
        return self.topics is None or topic in self.topics


@dataclass(slots=True)
class OpenLease:
    """A lease that is written, but not read back."""

    read: Read
    partition: Partition
    handout: Handout
    offsets: OffsetSet
    attempt: int
    until_ms: int


class Waiting:
    """The waiting reads by group, oldest first."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._by_group: dict[str, deque[Read]] = {}
        #: Reads whose leases are being written.
        self._leasing: dict[Read, None] = {}

    def add(self, read: Read, *, first: bool = False) -> None:
        """Add a waiting read."""
        queue = self._by_group.setdefault(read.group, deque())
        if first:
            queue.appendleft(read)
        else:
            queue.append(read)

    def groups(self) -> list[str]:
        """Return the groups with waiting reads."""
        return [group for group, queue in self._by_group.items() if queue]

    def of(self, group: str) -> deque[Read]:
        """Return the waiting reads of a group."""
        return self._by_group.get(group) or deque()

    def leasing(self, read: Read) -> None:
        """Record that a read waits for its leases."""
        self._leasing[read] = None

    def leased(self, read: Read) -> None:
        """Record that all leases of a read were read back."""
        self._leasing.pop(read, None)

    def overdue(self, is_known: Callable[[Read], bool]) -> list[Read]:
        """Remove the reads whose time is over or whose callers are gone; return those that still need an answer.

        Args:
            is_known: returns whether the available records for a read are known. If not, it waits longer.
        """
        now, over = time.monotonic(), []

        def is_over(read: Read) -> bool:
            return read.ends_at <= now and (read.ends_at + LOOK_S <= now or is_known(read))

        for group, queue in list(self._by_group.items()):
            waiting = [read for read in queue if read.is_wanted]
            ended = {read for read in waiting if is_over(read)}
            over += [read for read in waiting if read in ended]
            left = deque(read for read in waiting if read not in ended)
            if left:
                self._by_group[group] = left
            else:
                del self._by_group[group]
        return over

    def due_at(self) -> float:
        """Return the `time.monotonic` time when the next read times out."""
        now = time.monotonic()
        times = [read.ends_at + GRACE_S for read in self._leasing]
        for queue in self._by_group.values():
            # A late read ends as soon as new data makes its records known, or after `LOOK_S`.
            times += [read.ends_at + (LOOK_S if read.ends_at <= now else 0.0) for read in queue]
        return min(times, default=inf)

    def give_up(self) -> None:
        """Fail the reads whose leases are not read back in time: these may be stored, and expire."""
        now = time.monotonic()
        late = [read for read in self._leasing if read.ends_at + GRACE_S <= now]
        for read in late:
            del self._leasing[read]
            read.is_over = True
            if read.records:
                self._answers.give(read.future, (read.records, False))
            else:
                self._answers.fail(read.future, not_stored())


def not_stored() -> RelayUnavailableError:
    """Return the error of a read whose leases were not stored."""
    return RelayUnavailableError(
        "the leases of a read were not stored in time. The brokers may be away: read again"
    )
