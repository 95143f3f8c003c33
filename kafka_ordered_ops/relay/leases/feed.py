"""Read in a separate thread, for an owner that must never wait."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa

from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    RecordsLostError,
    TopicRecreatedError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The largest number of turns that the owner has not processed yet, which limits the memory.
_TURNS_WAITING_MAX: Final = 8
#: The interval between two attempts to open a reader.
_AGAIN_S: Final = 0.5
#: The interval between two checks whether the ends of logs are reached.
_LOOK_EVERY_S: Final = 0.05
#: A partition counts as at its end after this time at the log's end offset.
_SETTLED_S: Final = 0.1
#: So does a fetched partition without new records for this time, wherever its log ends: a transaction may be open.
_QUIET_S: Final = 1.0
#: The longest wait for orders while there is nothing to read.
_IDLE_S: Final = 60.0
#: How long closing waits for a turn to end.
_CLOSE_S: Final = 5.0

_log = logging.getLogger(__name__)


class Fed(NamedTuple):
    """The records of one partition from one turn."""

    tp: TopicPartition
    #: The number of the reading; see `Feed.add`.
    number: int
    records: pa.RecordBatch | None
    position: int
    #: Whether there are no more records at present.
    is_end: bool = False


#: Called in the reading thread; posts to the owner's thread. The owner calls the passed function once it has processed the turn.
OnTurn = Callable[[list[Fed], Callable[[], None]], None]
#: Called in the reading thread for a partition that is not read any more.
OnFailure = Callable[[TopicPartition, int, KafkaOrderedOpsError], None]


class Feed:
    """Read partitions, and pass the records on. `add`, `stop` and `close` are for one other thread.

    Args:
        settings: how to reach the cluster.
        group_id: the group to read for.
        isolation: which records are visible.
        columns: names of `RECORD_SCHEMA`; None for all columns.
        finds_ends: whether to report partitions without more records at present.
        on_turn: called with the records of a turn.
        on_failure: called when a partition cannot be read any further.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        isolation: Isolation,
        *,
        columns: Collection[str] | None = None,
        finds_ends: bool = False,
        on_turn: OnTurn,
        on_failure: OnFailure,
    ) -> None:
        self._settings, self._group, self._isolation = settings, group_id, isolation
        self._columns, self._finds_ends = columns, finds_ends
        self._on_turn, self._on_failure = on_turn, on_failure
        #: Partitions with the offsets to read from now on; None stops the partition.
        self._orders: deque[tuple[TopicPartition, int, OffsetSet | None]] = deque()
        #: Set when there are new orders, or the feed is closed.
        self._is_ordered = threading.Event()
        self._numbers: dict[TopicPartition, int] = {}
        self._left: dict[TopicPartition, OffsetSet] = {}
        #: Partitions whose ends are not reached, and the `time.monotonic` time of their last records.
        self._quiet_since: dict[TopicPartition, float] = {}
        self._look_at = 0.0
        self._room = threading.Semaphore(_TURNS_WAITING_MAX)
        self._is_closed = False
        self._count = 0
        self._thread = threading.Thread(target=self._run, name=f"relay-{group_id}", daemon=True)
        self._thread.start()

    def add(self, tp: TopicPartition, offsets: OffsetSet) -> int:
        """Start to read a partition, even if it is being read already; return the number of this reading."""
        self._count += 1
        self._order((tp, self._count, offsets))
        return self._count

    def stop(self, tp: TopicPartition) -> None:
        """Stop reading a partition."""
        self._order((tp, 0, None))

    def _order(self, order: tuple[TopicPartition, int, OffsetSet | None]) -> None:
        self._orders.append(order)
        self._is_ordered.set()

    def close(self, *, wait: bool = False) -> None:
        """Stop reading; may be called twice."""
        self._is_closed = True
        self._is_ordered.set()
        self._room.release()
        if wait:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._is_closed:
            try:
                with open_reader(
                    self._settings, self._group, self._isolation, self._left, columns=self._columns
                ) as reader:
                    self._read(reader)
            except KafkaOrderedOpsError as error:
                self._fail_all(error)
                time.sleep(_AGAIN_S)
            except Exception:
                # A bug: without this line, the relay would wait for records forever without a reason.
                _log.exception("reading for group %s failed", self._group)
                raise

    def _read(self, reader: ReaderDoor) -> None:
        while not self._is_closed:
            self._follow(reader)
            if not any(self._left.values()):
                self._is_ordered.wait(_IDLE_S)
                # Cleared before the orders are checked: a later order ends the next wait.
                self._is_ordered.clear()
                continue
            try:
                turns = reader.turn()
            except KafkaOrderedOpsError as error:
                if error.retriable:
                    _log.info("reading for group %s goes on later: %s", self._group, error)
                    time.sleep(_AGAIN_S)
                    continue
                self._fail(reader, error)
                continue
            fed = self._fed(turns)
            if not turns or time.monotonic() >= self._look_at:
                fed += self._ends(reader)
            self._hand_on(fed)

    def _fed(
        self, turns: Collection[tuple[TopicPartition, pa.RecordBatch | None, int]]
    ) -> list[Fed]:
        fed, now = [], time.monotonic()
        for tp, records, position in turns:
            number = self._numbers.get(tp)
            if number is not None:
                fed.append(Fed(tp, number, records, position))
                self._left[tp] = self._left[tp].within(position, INT64_MAX)
                self._moved(tp, now)
        return fed

    def _moved(self, tp: TopicPartition, now: float) -> None:
        if self._finds_ends:
            self._quiet_since[tp] = now

    def _ends(self, reader: ReaderDoor) -> list[Fed]:
        """Return the partitions that have reached their ends since the last check."""
        now = time.monotonic()
        self._look_at = now + _LOOK_EVERY_S
        if not self._quiet_since:
            return []
        try:
            ends, positions = reader.log_ends, reader.positions
        except KafkaOrderedOpsError:
            return []  # The next turn raises the error.
        reached = []
        for tp, since in list(self._quiet_since.items()):
            # Without a known end, nothing has been fetched yet. At first, the end may be that of an earlier reading.
            is_there = tp in ends and positions[tp] >= ends[tp]
            if tp in ends and now - since >= (_SETTLED_S if is_there else _QUIET_S):
                del self._quiet_since[tp]
                reached.append(Fed(tp, self._numbers[tp], None, positions[tp], is_end=True))
        return reached

    def _hand_on(self, fed: list[Fed]) -> None:
        if fed:
            self._room.acquire()
            if not self._is_closed:
                self._on_turn(fed, self._room.release)

    def _follow(self, reader: ReaderDoor) -> None:
        while self._orders:
            tp, number, offsets = self._orders.popleft()
            reader.stop(tp)
            self._forget(tp)
            if offsets:
                self._numbers[tp], self._left[tp] = number, offsets
                self._moved(tp, time.monotonic())
                reader.add(tp, offsets)

    def _forget(self, tp: TopicPartition) -> None:
        self._left.pop(tp, None)
        self._quiet_since.pop(tp, None)
        self._numbers.pop(tp, None)

    def _fail(self, reader: ReaderDoor, error: KafkaOrderedOpsError) -> None:
        """Stop the partitions that an error concerns, and report it for each of them."""
        for tp in _concerned(self._numbers, error):
            with suppress(KafkaOrderedOpsError):
                reader.stop(tp)
            number = self._numbers[tp]
            self._forget(tp)
            self._on_failure(tp, number, error)

    def _fail_all(self, error: KafkaOrderedOpsError) -> None:
        if error.retriable:
            _log.info("reading for group %s goes on later: %s", self._group, error)
            return
        for tp, number in list(self._numbers.items()):
            self._on_failure(tp, number, error)
        self._numbers.clear()
        self._left.clear()
        self._quiet_since.clear()


def _concerned(
    read: Collection[TopicPartition], error: KafkaOrderedOpsError
) -> list[TopicPartition]:
    """Return the partitions that an error concerns: all, if it names none of them."""
    partitions: list[TopicPartition] = []
    if isinstance(error, UnknownTopicError):
        partitions = [tp for tp in read if tp.topic in error.topics]
    elif isinstance(error, TopicRecreatedError):
        partitions = [tp for tp in read if tp.topic == error.topic]
    elif isinstance(error, RecordsLostError):
        partitions = [tp for tp in read if str(tp) in error.lost]
    elif (at := error.facts.get("at")) is not None:
        partitions = [tp for tp in read if str(at).startswith(f"{tp}@")]
    return partitions or list(read)
