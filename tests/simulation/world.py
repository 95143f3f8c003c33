"""The world of one history: a Kafka, a store, a folder, their faults, and what is written meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import ClassVar, Final

from kafka_ordered_ops.core.errors import BrokerUnreachableError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing import InMemoryKafka, Transaction
from kafka_ordered_ops.testing.cluster import Topic
from tests.simulation.brokers import Condition, Coordinator, Fate
from tests.simulation.folder import SimulatedFolder
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
    #: The topic is deleted, and another one of its name is created.
    recreation: bool = False


class World:
    """All that processes of a history share. A context manager."""

    #: The world whose turn it is: one at a time in each process.
    running: ClassVar[World | None] = None

    def __init__(
        self, seed: int, partitions: int, chances: Chances, faults: Faults, *, exchanges: bool
    ) -> None:
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
        self.folder = SimulatedFolder(self.scheduler, exchanges=exchanges)
        #: The topics that had the name, one after the other.
        self.lives: list[Topic] = []
        self._partitions = partitions
        self._open: list[Transaction] = []

    def __enter__(self) -> World:
        self.folder.__enter__()
        self.kafka.__enter__()
        self._create(self._partitions)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        World.running = None
        self.kafka.__exit__(kind, error, traceback)
        self.folder.__exit__(kind, error, traceback)

    @property
    def life(self) -> int:
        """The number of the newest topic of the name."""
        return len(self.lives) - 1

    @property
    def has_been_recreated(self) -> bool:
        """Whether the topic is not the first one of its name, or is gone."""
        return self.life > 0 or not self.is_there

    @property
    def is_there(self) -> bool:
        """Whether the topic exists."""
        return TOPIC in self.cluster.topics

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
        """Write a few records: plain, or of a transaction that is committed, aborted or left open.

        Each record has the number of its topic.
        """
        if not self.is_there:
            return
        place = self.random.randrange(len(self.lives[-1].logs))
        times = [self.random.randrange(greatest_s) for _ in range(self.random.randrange(1, 4))]
        kind = self.random.choice(["plain", "plain", "committed", "aborted", "open"])
        if kind == "plain":
            for second in times:
                self._produce(self.kafka, place, second)
            return
        transaction = self.kafka.transaction()
        for second in times:
            self._produce(transaction, place, second)
        if kind == "open":
            self._open.append(transaction)
            self.scheduler.later(
                self.random.random() * 20, "a producer ends its transaction", transaction.commit
            )
        else:
            transaction.commit() if kind == "committed" else transaction.abort()

    def remove(self) -> None:
        """Move the start of a log, as retention does."""
        if not self.is_there:
            return
        place = self.random.randrange(len(self.lives[-1].logs))
        log = self.cluster.log(TopicPartition(TOPIC, place))
        before = self.random.randint(log.log_start, log.last_stable_offset)
        self.kafka.expire_records(TOPIC, place, before)

    def recreate(self, greatest_s: int) -> None:
        """Delete the topic; later, another one of its name is created, which gets records."""
        if not self.is_there:
            return
        self.kafka.delete_topic(TOPIC)

        def create() -> None:
            self._create(self.random.randint(1, 2))
            for _ in range(self.random.randrange(4)):
                self.write(greatest_s)

        self.scheduler.later(self.random.random() * 3, "the topic is created again", create)

    def _create(self, partitions: int) -> None:
        self.kafka.create_topic(TOPIC, partitions, {"segment.ms": "10000000000"})
        self.lives.append(self.cluster.topic(TOPIC))

    def _produce(self, to: InMemoryKafka | Transaction, place: int, second: int) -> None:
        time_ms = BASE_MS + second * 1000
        to.produce(TOPIC, partition=place, timestamp_ms=time_ms, value=b"%d" % self.life)


def world_named(name: str) -> World:
    """Return the world of a Kafka in memory."""
    world = World.running
    if world is None or world.kafka.name != name:
        raise AssertionError(f"the history of {name} is over")
    return world
