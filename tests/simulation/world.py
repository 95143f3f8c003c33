"""The world of one history: a Kafka, a store, their faults, and what is written meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import ClassVar, Final

from kafka_ordered_ops.core.errors import BrokerUnreachableError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing import InMemoryKafka, Transaction
from tests.simulation.brokers import Condition, Coordinator, Fate
from tests.simulation.scheduler import CALM, Chances, Scheduler
from tests.simulation.store import SimulatedStore
from tests.support.windows_support import BASE_MS

TOPIC: Final = "orders"


@dataclass(frozen=True)
class Faults:
    """How often requests go wrong."""

    #: A transaction's request or its answer is lost, late or doubled.
    fates: float
    #: A question to the cluster is not answered.
    unreachable: float
    #: The longest time between the end of a transaction and its markers, s.
    marker_delay_s: float
    #: Committed offsets of a group expire.
    expiry: bool = False
    #: The start of a log moves.
    retention: bool = False


class World:
    """All that processes of a history share. A context manager."""

    #: The world whose turn it is: one at a time in each process.
    running: ClassVar[World | None] = None

    def __init__(self, seed: int, partitions: int, chances: Chances, faults: Faults) -> None:
        self.random = Random(seed)
        self.faults = faults
        self.scheduler = Scheduler(self.random, chances)
        World.running = self
        self.kafka = InMemoryKafka(f"simulated-{seed}")
        self.cluster = self.kafka._cluster
        self.cluster.changed = Condition(self.scheduler)  # type: ignore[assignment]
        self.coordinator = Coordinator(
            self.cluster, self.scheduler, marker_delay_s=faults.marker_delay_s
        )
        self.store = SimulatedStore(self.scheduler)
        self.store.lost_answers = faults.fates
        self.partitions = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self._open: list[Transaction] = []

    def __enter__(self) -> World:
        self.kafka.__enter__()
        self.kafka.create_topic(TOPIC, len(self.partitions), {"segment.ms": "10000000000"})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        World.running = None
        self.kafka.__exit__(kind, error, traceback)

    def clock(self) -> float:
        """Return the time, s since the epoch."""
        return self.scheduler.now_s

    def command(self, what: str) -> None:
        """Come to a command of a process."""
        self.scheduler.command(what)

    def request(self, what: str) -> None:
        """Come to a question to the cluster, which may not be answered."""
        self.command(what)
        if self.faults.unreachable and self.random.random() < self.faults.unreachable:
            self.scheduler.told.append("          no answer")
            raise BrokerUnreachableError("no answer", code="_TRANSPORT")

    def fate(self) -> Fate:
        """Return what becomes of a request whose answer matters."""
        if not self.faults.fates or self.random.random() >= self.faults.fates:
            return Fate.ANSWERED
        return self.random.choice([Fate.LOST, Fate.UNANSWERED, Fate.LATE, Fate.TWICE])

    def heal(self) -> None:
        """Let everything that is late arrive, and nothing fail any more."""
        self.faults = Faults(fates=0.0, unreachable=0.0, marker_delay_s=0.0)
        self.coordinator.marker_delay_s = 0.0
        self.store.lost_answers = 0.0
        self.scheduler.chances = CALM
        self.scheduler.settle()
        for transaction in self._open:
            transaction.commit()

    # --- what producers write ---------------------------------------------------------------------

    def write(self, greatest_s: int) -> None:
        """Write a few records: plain, or of a transaction that is committed, aborted or left open."""
        place = self.random.randrange(len(self.partitions))
        times = [self.random.randrange(greatest_s) for _ in range(self.random.randrange(1, 4))]
        kind = self.random.choice(["plain", "plain", "committed", "aborted", "open"])
        if kind == "plain":
            for second in times:
                self.kafka.produce(TOPIC, partition=place, timestamp_ms=BASE_MS + second * 1000)
            return
        transaction = self.kafka.transaction()
        for second in times:
            transaction.produce(TOPIC, partition=place, timestamp_ms=BASE_MS + second * 1000)
        if kind == "open":
            self._open.append(transaction)
            self.scheduler.later(
                self.random.random() * 20, "a producer ends its transaction", transaction.commit
            )
        else:
            transaction.commit() if kind == "committed" else transaction.abort()

    def remove(self) -> None:
        """Move the start of a log, as retention does."""
        tp = self.random.choice(self.partitions)
        log = self.cluster.log(tp)
        before = self.random.randint(log.log_start, log.last_stable_offset)
        self.kafka.expire_records(TOPIC, tp.partition, before)


def world_named(name: str) -> World:
    """Return the world of a Kafka in memory."""
    world = World.running
    if world is None or world.kafka.name != name:
        raise AssertionError(f"the history of {name} is over")
    return world
