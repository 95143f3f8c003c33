"""The places of a history: clusters with topics and ledgers, and roots that readers read."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from kafka_ordered_ops import OrderedWindows
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import read_committed_offsets
from tests.support.oracle.outputs.steps import Actor
from tests.support.oracle.plain import Plain
from tests.support.oracle.truth import Truth
from tests.support.windows_support import BASE_MS, TIMEOUT_S
from tests.support.worlds import World

HOUR_MS: Final = 3_600_000
#: The first hour that windows ask for.
START_MS: Final = BASE_MS // HOUR_MS * HOUR_MS
#: What the services take for now when a history begins: every hour that windows ask for is over.
NOW_MS: Final = START_MS + 100 * HOUR_MS
PARTITIONS: Final = {"t": 2, "u": 1}

#: Makes the world of a cluster, with names that end alike in all clusters, and its plain clients.
MakeCluster = Callable[[str], tuple[World, Plain]]


def moment(ms: int) -> datetime:
    """Return a time of the tests as the package takes it."""
    return datetime.fromtimestamp(ms / 1000, UTC)


@dataclass(frozen=True)
class Produced:
    """A record that a producer has written; its value is its name."""

    name: str
    cluster: str
    topic: str
    partition: int
    time_ms: int


@dataclass
class Cluster:
    """One cluster: its topics, and all that was ever in them."""

    world: World
    truth: Truth
    #: By name.
    produced: dict[str, Produced] = field(default_factory=dict)

    def ledger_id(self, ledger: str) -> str | None:
        """Return the id of a ledger topic; None while there is none."""
        name = self.world.named(ledger)
        found = self.world._lookup.existing([name])
        return found[name].topic_id if name in found else None

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed, on topics that exist."""
        name = self.world.named(group)
        return {
            TopicPartition(*place): offset
            for place, offset in self.truth.plain.committed(name).items()
        }


class Clusters:
    """The clusters of a history, and a clock that all services share."""

    def __init__(self, make: MakeCluster, names: set[str], suffix: str, stack: ExitStack) -> None:
        self.now_ms = NOW_MS
        self._stack = stack
        self._numbers = itertools.count()
        self._clusters: dict[str, Cluster] = {}
        self._observers: dict[tuple[Actor, str], OrderedWindows] = {}
        for name in sorted(names):
            world, plain = make(suffix)
            stack.enter_context(world)
            for topic, partitions in PARTITIONS.items():
                world.create(topic, partitions)
            truth = Truth(plain, [world.named(topic) for topic in PARTITIONS])
            self._clusters[name] = Cluster(world, truth)

    def __iter__(self) -> Iterator[Cluster]:
        return iter(self._clusters.values())

    def __getitem__(self, name: str) -> Cluster:
        return self._clusters[name]

    def open(self, actor: Actor) -> OrderedWindows:
        """Return the service of a new process."""
        world = self[actor.cluster].world
        return OrderedWindows(
            world.settings,
            world.named(actor.group),
            ledger_topic=world.named(actor.ledger),
            timeout_s=60,
            stall_timeout_s=world.stall_timeout_s,
            clock=lambda: self.now_ms / 1000,
        )

    def observer(self, actor: Actor, ledger_id: str) -> OrderedWindows:
        """Return the service of a process that only looks, at one ledger."""
        key = actor, ledger_id
        if key not in self._observers:
            self._observers[key] = self._stack.enter_context(self.open(actor))
        return self._observers[key]

    # --- what happens to topics and groups --------------------------------------------------------

    def produce(self, cluster: str, topic: str, partition: int, times_ms: list[int]) -> None:
        """Write records with these timestamps."""
        found = self[cluster]
        records = []
        for time_ms in times_ms:
            name = f"{cluster}:{topic}{partition}:{next(self._numbers)}"
            found.produced[name] = Produced(
                name, cluster, found.world.named(topic), partition, time_ms
            )
            records.append(((time_ms - BASE_MS) / 1000, None, name.encode(), ()))
        found.world.write_content(topic, partition, records)
        found.truth.look()

    def delete_before(self, cluster: str, topic: str, partition: int, share: float) -> None:
        """Let retention take a share of what is left of a partition."""
        found = self[cluster]
        tp = found.world.tp(topic, partition)
        bounds = found.truth.look().bounds()
        start, end = next(
            (start, end)
            for key, (start, _, end) in bounds.items()
            if (key.topic, key.partition) == (tp.topic, tp.partition)
        )
        found.world.delete_before(topic, partition, start + round((end - start) * share))
        found.truth.look()

    def recreate(self, cluster: str, topic: str, groups: set[str]) -> None:
        """Delete a topic, and create it again."""
        found = self[cluster]
        found.truth.look()
        found.world.delete(topic)
        self._await_no_commits(found, topic, groups)
        found.world.create(topic, PARTITIONS[topic])
        found.truth.look()

    def move_offset(self, actor: Actor, topic: str, partition: int, offset: int) -> None:
        """Let another program commit an offset of a group."""
        self[actor.cluster].world.foreign_commit(actor.group, topic, {partition: offset})

    def lose_ledger(self, actor: Actor) -> None:
        """Delete a ledger topic, if there is one."""
        if self[actor.cluster].ledger_id(actor.ledger) is not None:
            self[actor.cluster].world.delete(actor.ledger)

    def lose_commits(self, actor: Actor) -> None:
        """Let all committed offsets of a group expire."""
        found = self[actor.cluster]
        by_topic: dict[str, list[int]] = defaultdict(list)
        for tp in found.committed(actor.group):
            by_topic[tp.topic].append(tp.partition)
        for topic in PARTITIONS:
            if numbers := by_topic.get(found.world.named(topic)):
                found.world.expire(actor.group, topic, *numbers)

    def _await_no_commits(self, found: Cluster, topic: str, groups: set[str]) -> None:
        """A broker forgets some time later what groups have committed on a topic that was deleted."""
        tps = [found.world.tp(topic, number) for number in range(PARTITIONS[topic])]
        deadline = time.monotonic() + TIMEOUT_S
        for group in groups:
            name = found.world.named(group)
            while any(
                read_committed_offsets(
                    found.world.settings, name, tps, timeout_s=TIMEOUT_S
                ).values()
            ):
                assert time.monotonic() < deadline, f"{group} still has offsets of {topic}"
                time.sleep(0.05)


@dataclass(eq=False)
class Place:
    """One root, and what its readers saw. It stays the same place when the root is moved."""

    name: str
    path: str
    #: What readers must see from now on: the names of records that they have seen.
    must: set[str] = field(default_factory=set)
    #: What somebody took away by hand, or was allowed to take away.
    by_hand: set[str] = field(default_factory=set)
    #: What a replacement that died has hidden, until somebody uses the root.
    hidden: set[str] = field(default_factory=set)
    #: The ledger that the root belongs to, or those that it may belong to; none until somebody has published to it.
    owners: set[str] = field(default_factory=set)
    #: Whether somebody took away what was staged beside it.
    is_bereft: bool = False

    def lose_hidden(self) -> None:
        """Take in that what a replacement that died has set aside is gone."""
        self.by_hand |= self.hidden
        self.must -= self.hidden
        self.hidden = set()

    def __str__(self) -> str:
        return self.name
