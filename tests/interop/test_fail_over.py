"""A group fails over to a cluster that the real MirrorMaker 2 has filled, and comes back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import Earliest, LedgerLostError, OrderedWindows
from kafka_ordered_ops.core.group.decisions.failing_over import FailOver
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.kafka.facts.mirror_syncs import read_syncs
from kafka_ordered_ops.kafka.ports import open_lookup, read_committed_offsets
from kafka_ordered_ops.output import files
from kafka_ordered_ops.windows import ClientSettings
from tests.support.cli_support import cli
from tests.support.mirror_maker import IDENTITY, PREFIXED, MirrorMaker
from tests.support.windows_support import BASE_MS, TIMEOUT_S, before, wait_until_gone

_GROUP = "hourly"
_PARTITIONS = 2
#: MirrorMaker starts three connectors, and balances them first.
_MIRROR_TIMEOUT_S = 120.0
_PAUSE_S = 0.2

#: The partition and offset of a record, by its value.
Log = dict[bytes, tuple[TopicPartition, int]]


class World:
    """Two clusters, a root of outputs, and what was written to a topic."""

    def __init__(self, folder: Path, brokers: Sequence[EmbeddedKafka]) -> None:
        self.folder, self.brokers = folder, brokers
        self.root = folder / "lake"
        #: The values of all records that were written by an application.
        self.written: list[bytes] = []

    def windows(self, number: int) -> OrderedWindows:
        """The group on a cluster."""
        return OrderedWindows(self.brokers[number].bootstrap, _GROUP, timeout_s=60)

    def create(self, number: int, topic: str) -> None:
        """Make the topic, in which nothing expires."""
        admin = AdminClient({"bootstrap.servers": self.brokers[number].bootstrap})
        new = NewTopic(topic, _PARTITIONS, 1, config={"retention.ms": "-1"})
        admin.create_topics([new])[topic].result(TIMEOUT_S)

    def write(self, number: int, topic: str, partition: int, *seconds: float) -> None:
        """Write records stamped with these times."""
        producer = Producer({"bootstrap.servers": self.brokers[number].bootstrap})
        for second in seconds:
            value = f"{partition}-{len(self.written)}@{second:g}".encode()
            self.written.append(value)
            time_ms = BASE_MS + int(second * 1000)
            producer.produce(topic, value=value, partition=partition, timestamp=time_ms)
        assert producer.flush(TIMEOUT_S) == 0

    def log(self, number: int, topic: str) -> Log:
        """Read a topic to its end."""
        consumer = Consumer(
            {"bootstrap.servers": self.brokers[number].bootstrap, "group.id": "reader"}
        )
        found: Log = {}
        try:
            places = [Place(topic, partition, 0) for partition in range(_PARTITIONS)]
            left = sum(consumer.get_watermark_offsets(place, TIMEOUT_S)[1] for place in places)
            consumer.assign(places)
            while left:
                messages = consumer.consume(left, TIMEOUT_S)
                assert messages
                left -= len(messages)
                for message in messages:
                    value, at, offset = message.value(), message.partition(), message.offset()
                    assert value is not None
                    assert at is not None
                    assert offset is not None
                    found[value] = TopicPartition(topic, at), offset
        finally:
            consumer.close()
        return found

    def delivered(self) -> Counter[bytes]:
        """Count the values in the output."""
        return Counter(
            value
            for path in files(self.root)
            for value in pq.read_table(path).column("value").to_pylist()
            if value is not None
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two brokers, for this test alone."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(EmbeddedKafka()) for _ in "AB"]
        yield World(tmp_path, brokers)


def wait(mirror: MirrorMaker, holds: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait until the mirror has brought something about."""
    deadline = time.monotonic() + _MIRROR_TIMEOUT_S
    while not holds():
        mirror.check()
        assert time.monotonic() < deadline, (what(), mirror.said())
        time.sleep(_PAUSE_S)


class Flow:
    """MirrorMaker between two clusters, inside the `with` block."""

    def __init__(
        self, world: World, source: int, target: int, copy: str, policy: str, lag_max: int
    ) -> None:
        self._world, self._source, self._target, self._copy = world, source, target, copy
        there, here = (
            ("AB"[number], world.brokers[number].bootstrap) for number in (source, target)
        )
        self._from, self._to = ClientSettings.of(there[1]), ClientSettings.of(here[1])
        self._syncs = f"mm2-offset-syncs.{there[0]}.internal" if lag_max == 0 else None
        self._mirror = MirrorMaker(
            there,
            here,
            world.folder,
            topics="orders",
            group_id=_GROUP,
            policy=policy,
            lag_max=lag_max,
        )

    def __enter__(self) -> Flow:
        self._mirror.__enter__()
        admin = AdminClient({"bootstrap.servers": self._to.bootstrap_servers})
        self._wait(lambda: self._copy in admin.list_topics(timeout=10).topics, lambda: "no topic")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._mirror.__exit__(*exc_info)

    def wait(self) -> None:
        """Wait for all records, their pairs of offsets, and the newest commits.

        MirrorMaker translates only offsets above the pairs that it found when it started: the first call needs a group that
        has done everything.
        """
        wanted = len(self._world.log(self._source, "orders"))
        self._wait(lambda: self._copied() == wanted, self._copied)
        if self._syncs is not None:
            # It notes each record, a moment after it has copied it.
            self._wait(lambda: sum(self._last_pairs()) == wanted - _PARTITIONS, self._last_pairs)
        newest = self._maps(self._from, "orders")
        # Of partitions whose offset has not risen, it keeps the older one.
        self._wait(lambda: bool({*newest} & {*self._maps(self._to, self._copy)}), lambda: newest)

    def _copied(self) -> int:
        return len(self._world.log(self._target, self._copy))

    def _last_pairs(self) -> list[int]:
        assert self._syncs is not None
        places = [TopicPartition(self._copy, partition) for partition in range(_PARTITIONS)]
        with open_lookup(self._to) as lookup:
            found = read_syncs(self._to, _GROUP, lookup, self._syncs, places)
        return [syncs[-1].here for syncs in found.values()]

    def _maps(self, settings: ClientSettings, topic: str) -> list[bytes | None]:
        places = [TopicPartition(topic, partition) for partition in range(_PARTITIONS)]
        found = read_committed_offsets(settings, _GROUP, places)
        return [None if commit is None else commit.metadata for commit in found.values()]

    def _wait(self, holds: Callable[[], bool], what: Callable[[], object]) -> None:
        wait(self._mirror, holds, what)


def announced(found: FailOver, log: Log) -> set[bytes]:
    """Return the values of the records that may come twice."""
    offsets = {partition.tp: partition.may_repeat for partition in found.partitions}
    return {value for value, (tp, offset) in log.items() if offset in offsets[tp]}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", [IDENTITY, PREFIXED])
def test_only_the_announced_records_come_twice(world: World, policy: str) -> None:
    """Without pairs of offsets, also some records come again that A had delivered; none is missed."""
    copy = "orders" if policy == IDENTITY else "A.orders"
    delivered_there = over(world, "orders", copy, policy, lag_max=100)
    with world.windows(1) as windows:
        with pytest.raises(LedgerLostError, match="`groups fail-over`"):
            windows.plan(before(copy, 30, Earliest()))
        foreseen = windows.fail_over(dry_run=True)
        done = windows.fail_over()
        assert done == foreseen
        assert done.delivered_before_ms == BASE_MS + 20_000
        windows.adopt_output(world.root)
        may_repeat = announced(done, world.log(1, copy))
        # Three were late on the first cluster, or came here since.
        assert windows.run(before(copy, 30, Earliest()), world.root).late == len(may_repeat)
        windows.run(before(copy, 40), world.root)
    counts = world.delivered()
    assert set(counts) == set(world.written)
    twice = {value for value, count in counts.items() if count > 1}
    # Of the announced ones, those that A had not delivered come once.
    assert twice == may_repeat & delivered_there.keys()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_record_comes_once_over_and_back(world: World) -> None:
    """With pairs of offsets; back, the topic is a new one, and the first cluster's ledger knows the former one."""
    delivered_there = over(world, "orders", "orders", IDENTITY, lag_max=0)
    assert max(delivered_there.values()) == 1
    fail_over(world, 1, "mm2-offset-syncs.A.internal")
    with world.windows(1) as windows:
        assert windows.run(before("orders", 30, Earliest()), world.root).late == 3

    world.brokers[0].restart()
    admin = AdminClient({"bootstrap.servers": world.brokers[0].bootstrap})
    admin.delete_topics(["orders"])["orders"].result(TIMEOUT_S)
    wait_until_gone(world.brokers[0].bootstrap, "orders")
    with Flow(world, 1, 0, "orders", IDENTITY, lag_max=0) as flow:
        with world.windows(1) as windows:
            windows.run(before("orders", 40), world.root)
            flow.wait()
            world.write(1, "orders", 0, 41, 47, 42)
            windows.run(before("orders", 45), world.root)
        # Not delivered on B: a late one, and others of the next window.
        world.write(1, "orders", 0, 48, 21)
        world.write(1, "orders", 1, 49)
        flow.wait()
    world.brokers[1].kill()
    with world.windows(0) as windows, pytest.raises(LedgerLostError, match="`groups fail-over`"):
        windows.plan(before("orders", 50))
    fail_over(world, 0, "mm2-offset-syncs.B.internal")
    with world.windows(0) as windows:
        assert windows.run(before("orders", 50), world.root).late == 1
    assert world.delivered() == dict.fromkeys(world.written, 1)


def over(world: World, topic: str, copy: str, policy: str, lag_max: int) -> Counter[bytes]:
    """Deliver two windows on A, mirror it with late records, kill it and go on writing to B; return what was delivered."""
    world.create(0, topic)
    flow = Flow(world, 0, 1, copy, policy, lag_max)
    with ExitStack() as stack:
        windows = stack.enter_context(world.windows(0))
        if lag_max == 0:
            stack.enter_context(flow)
        world.write(0, topic, 0, 1)
        world.write(0, topic, 1, 2)
        windows.run(before(topic, 10, Earliest()), world.root)
        if lag_max == 0:
            flow.wait()
        # The first partition has done offsets beyond a record of the next window, and late ones after them.
        world.write(0, topic, 0, 12, 3, 14, 5, 25, 16, 26, 7)
        world.write(0, topic, 1, 11, 4)
        windows.run(before(topic, 20), world.root)
        delivered = world.delivered()
        world.write(0, topic, 0, 8, 27)
        world.write(0, topic, 1, 9, 28)
        if lag_max > 0:
            # With few pairs of offsets, it rounds a later commit to the same offset, and does not copy it.
            stack.enter_context(flow)
        flow.wait()
    world.brokers[0].kill()
    world.write(1, copy, 0, 29, 6, 35)
    world.write(1, copy, 1, 36)
    return delivered


def fail_over(world: World, number: int, syncs: str) -> None:
    """Run the verb: nothing may come twice, and the root is taken over."""
    where = ("-b", world.brokers[number].bootstrap, "-g", _GROUP)
    verb = ("groups", "fail-over", *where, "--offset-syncs", syncs, "--output", str(world.root))
    foreseen = cli(*verb, "--dry-run", "--json").json
    done = cli(*verb, "--json").json
    [output] = done.pop("outputs")
    assert [done[name] for name in ("partitions", "abandoned")] == [
        foreseen[name] for name in ("partitions", "abandoned")
    ]
    assert done["may_repeat"] == 0, done
    assert output["former"] is not None
    assert output["not_published"] == []
