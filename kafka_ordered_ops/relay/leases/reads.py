"""Clients' reads that wait for records, and their answers."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kafka_ordered_ops.core.errors import RelayUnavailableError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.relay.leases.handout import Handout
from kafka_ordered_ops.relay.leases.partition import Partition
from kafka_ordered_ops.relay.ports import Delivered, Reader

#: A read whose leases are written waits so long beyond its time for them to be read back.
GRACE_S: Final = 10.0
#: A read waits so long beyond its time until it is known what there is: a new group begins in less.
LOOK_S: Final = 10.0


class _Answer(NamedTuple):
    future: asyncio.Future[Any]
    value: Any
    error: BaseException | None
    unwanted: Callable[[], None] | None


class Answers:
    """Answers to calls on event loops, given together: waking a loop costs more than an answer."""

    def __init__(self) -> None:
        self._given: list[_Answer] = []

    def give(
        self, future: asyncio.Future[Any], value: Any, unwanted: Callable[[], None] | None = None
    ) -> None:
        """Answer a call; if its caller is gone by then, call `unwanted`, in the event loop's thread."""
        self._given.append(_Answer(future, value, None, unwanted))

    def fail(self, future: asyncio.Future[Any], error: BaseException) -> None:
        """Let a call raise."""
        self._given.append(_Answer(future, None, error, None))

    def flush(self) -> None:
        """Hand over what was given."""
        if not self._given:
            return
        by_loop: dict[asyncio.AbstractEventLoop, list[Any]] = defaultdict(list)
        for one in self._given:
            by_loop[one.future.get_loop()].append(one)
        self._given = []
        for loop, some in by_loop.items():
            # A closed loop has nobody who waits.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, some)


def _resolve(given: Iterable[_Answer]) -> None:
    for future, value, error, unwanted in given:
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
    #: Of `time.monotonic`.
    ends_at: float
    lease_ms: int
    topics: frozenset[str] | None
    reader: Reader | None
    future: asyncio.Future[Any]
    #: Records were there, and its reader has as many as it may.
    is_limited: bool = False
    #: Records were there, and their leases could not be stored.
    is_unstored: bool = False
    #: Leases that are written, and not read back.
    open: int = 0
    found: list[Delivered] = field(default_factory=list)
    #: The ids and offsets of their leases.
    leases: list[tuple[str, OffsetSet]] = field(default_factory=list)
    #: Nobody waits for it any more.
    is_over: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether the caller still waits."""
        return not (self.is_over or self.future.cancelled())

    def wants(self, topic: str) -> bool:
        """Return whether it is about a topic."""
        return self.topics is None or topic in self.topics


@dataclass(slots=True)
class OpenLease:
    """A lease that is written, and not read back."""

    read: Read
    partition: Partition
    handout: Handout
    offsets: OffsetSet
    attempt: int
    until_ms: int


class Waiting:
    """The reads that wait for records, by group, the oldest first."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._by_group: dict[str, deque[Read]] = {}
        #: Those with leases under way.
        self._leasing: dict[Read, None] = {}

    def add(self, read: Read, *, first: bool = False) -> None:
        """Let a read wait."""
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
        """A read waits for its leases."""
        self._leasing[read] = None

    def leased(self, read: Read) -> None:
        """All its leases were read back."""
        self._leasing.pop(read, None)

    def overdue(self, is_known: Callable[[Read], bool]) -> list[Read]:
        """Take out the reads whose time is over, or whose callers are gone.

        Args:
            is_known: whether it is known what there is for a read. If not, it waits longer.
        """
        now, over = time.monotonic(), []

        def is_over(one: Read) -> bool:
            return one.ends_at <= now and (one.ends_at + LOOK_S <= now or is_known(one))

        for group, queue in list(self._by_group.items()):
            wanted = [one for one in queue if one.is_wanted]
            ended = {one for one in wanted if is_over(one)}
            over += [one for one in wanted if one in ended]
            left = deque(one for one in wanted if one not in ended)
            if left:
                self._by_group[group] = left
            else:
                del self._by_group[group]
        return over

    def give_up(self) -> None:
        """Fail the reads whose leases are not read back in time: they may be stored, and end by themselves."""
        now = time.monotonic()
        for read in [one for one in self._leasing if one.ends_at + GRACE_S <= now]:
            del self._leasing[read]
            read.is_over = True
            if read.found:
                self._answers.give(read.future, (read.found, False))
            else:
                self._answers.fail(read.future, not_stored())


def not_stored() -> RelayUnavailableError:
    """Return the error of a read for which there are records."""
    return RelayUnavailableError(
        "the leases of a read were not stored in time. The brokers may be away: read again"
    )
