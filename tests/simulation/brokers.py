"""What Kafka adds to the package's Kafka in memory when requests are late: the coordinator of transactions.

A producer with a transactional id has an epoch, and requests of earlier epochs are refused. The end of a transaction is
decided first, and its markers are written later, when readers see its records and the group's offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import UnknownTopicError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.settings import TRANSACTION_TIMEOUT_MS
from kafka_ordered_ops.testing.cluster import Cluster
from kafka_ordered_ops.testing.log import TransactionFate, TransactionState
from tests.simulation.scheduler import Scheduler


class Refused(Exception):
    """The answer of a broker that has not done what was asked."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Fate(Enum):
    """What becomes of a request whose answer matters."""

    ANSWERED = auto()
    #: It never arrives.
    LOST = auto()
    #: It arrives, and its answer does not.
    UNANSWERED = auto()
    #: It arrives after its sender has given up.
    LATE = auto()
    #: It arrives, and once more after its answer.
    TWICE = auto()


@dataclass
class _Producer:
    """What the coordinator knows of one transactional id."""

    epoch: int = -1
    open: TransactionFate | None = None
    #: How the open transaction ends, once that is decided.
    decided: TransactionState | None = None
    #: How the last one ended, in this epoch.
    last: TransactionState | None = None


class Coordinator:
    """The coordinator of all transactions of a cluster."""

    def __init__(self, cluster: Cluster, scheduler: Scheduler, *, marker_delay_s: float) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        #: The longest time between the end of a transaction and its markers.
        self.marker_delay_s = marker_delay_s
        self._producers: dict[str, _Producer] = {}

    def init(self, name: str) -> int:
        """Give a producer the next epoch: the one before is fenced, and its open transaction is aborted."""
        producer = self._producers.setdefault(name, _Producer())
        self._end_open(producer)
        producer.epoch += 1
        producer.last = None
        return producer.epoch

    def write(
        self,
        name: str,
        epoch: int,
        tp: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]],
    ) -> int:
        """Write a record in the producer's transaction, which begins if there is none."""
        fate = self._transaction(name, epoch)
        return self._cluster.append(
            tp, key=key, value=value, timestamp_ms=None, headers=headers, transaction=fate
        )

    def send_offsets(
        self,
        name: str,
        epoch: int,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        """Let a group's offsets be committed with the producer's transaction."""
        fate = self._transaction(name, epoch)
        try:
            self._cluster.commit(group_id, offsets, fate)
        except UnknownTopicError:
            raise Refused("UNKNOWN_TOPIC_OR_PART") from None

    def end(self, name: str, epoch: int, *, is_commit: bool) -> None:
        """Decide how the producer's transaction ends; its markers follow."""
        state = TransactionState.COMMITTED if is_commit else TransactionState.ABORTED
        producer = self._checked(name, epoch)
        if producer.open is None or producer.decided is not None:
            if state is (producer.decided or producer.last):
                return
            raise Refused("INVALID_TXN_STATE")
        producer.decided = state
        fate = producer.open
        if self.marker_delay_s:
            delay_s = self._scheduler.random.random() * self.marker_delay_s
            self._scheduler.later(
                delay_s, f"markers of {name} are written", lambda: self._mark(producer, fate)
            )
        else:
            self._mark(producer, fate)

    def expire(self, name: str, epoch: int, fate: TransactionFate) -> None:
        """Abort a transaction that takes too long, and fence its producer."""
        producer = self._producers[name]
        if producer.open is fate and producer.decided is None and producer.epoch == epoch:
            self._end_open(producer)
            producer.epoch += 1

    def _checked(self, name: str, epoch: int) -> _Producer:
        producer = self._producers[name]
        if producer.epoch != epoch:
            raise Refused("FENCED")
        return producer

    def _transaction(self, name: str, epoch: int) -> TransactionFate:
        producer = self._checked(name, epoch)
        if producer.decided is not None:
            raise Refused("CONCURRENT_TRANSACTIONS")
        if producer.open is None:
            fate = producer.open = TransactionFate()
            self._scheduler.later(
                TRANSACTION_TIMEOUT_MS / 1000,
                f"the time of {name} is over",
                lambda: self.expire(name, epoch, fate),
                exact=True,
            )
        return producer.open

    def _end_open(self, producer: _Producer) -> None:
        if producer.open is not None:
            producer.decided = producer.decided or TransactionState.ABORTED
            self._mark(producer, producer.open)

    def _mark(self, producer: _Producer, fate: TransactionFate) -> None:
        if producer.open is not fate or producer.decided is None:
            return
        self._cluster.end(fate, producer.decided)
        producer.last, producer.decided, producer.open = producer.decided, None, None


class Condition:
    """A condition of a cluster whose clients take turns: it waits on the clock of the history."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def __enter__(self) -> Condition:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Do nothing: nobody else runs."""

    def notify_all(self) -> None:
        """Do nothing: who waits looks again."""

    def wait(self, timeout: float) -> bool:
        """Wait a moment."""
        self._scheduler.sleep(timeout)
        return True

    def wait_for(self, predicate: Callable[[], Any], timeout: float) -> bool:
        """Wait until something holds."""
        return self._scheduler.wait_for(lambda: bool(predicate()), timeout)
