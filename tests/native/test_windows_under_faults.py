"""Windows that the native reader reads while brokers are killed, frozen, restarted and elected: as a plain consumer reads."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import open_reader
from tests.native.test_lost_leaders import SMALL
from tests.support.examples import examples
from tests.support.readers import needs_native
from tests.support.three_brokers import NODES, ThreeBrokers
from tests.support.windows_support import BASE_MS

pytestmark = [needs_native, pytest.mark.native, pytest.mark.long, pytest.mark.timeout(7_200)]

PARTITIONS = 6
TRANSACTIONS = 120
#: Of each transaction, and of what is written after it without one, to each partition.
RECORDS = 10
READERS = 4
#: 264 by night.
WINDOWS = max(4 * READERS, examples(4))
FAULTS = ("kill", "pause", "end", "elect")
_TIMEOUT_S = 60.0

#: Partition and offset, and what is there.
Records = dict[tuple[int, int], tuple[bytes, bytes, int]]


def fill(brokers: ThreeBrokers, topic: str) -> Records:
    """Write transactions, each third of them aborted, and records without one; return what a plain consumer reads."""
    brokers.create(topic, PARTITIONS)
    config = {"bootstrap.servers": brokers.bootstrap, "linger.ms": 5}
    plain = Producer({**config, "compression.type": "lz4", "enable.idempotence": True})
    in_transactions = Producer({**config, "transactional.id": topic})
    in_transactions.init_transactions(_TIMEOUT_S)
    numbers = itertools.count()

    def produce(producer: Producer) -> None:
        for partition in list(range(PARTITIONS)) * RECORDS:
            number = next(numbers)
            key, value = b"%d" % number, b"%d" % number * (1 + number % 97)
            producer.produce(topic, value, key, partition, timestamp=BASE_MS + number)
        assert producer.flush(_TIMEOUT_S) == 0

    for number in range(TRANSACTIONS):
        in_transactions.begin_transaction()
        produce(in_transactions)
        is_aborted = number % 3 == 1
        (in_transactions.abort_transaction if is_aborted else in_transactions.commit_transaction)(
            _TIMEOUT_S
        )
        produce(plain)
    return plainly(brokers, topic)


def plainly(brokers: ThreeBrokers, topic: str) -> Records:
    """What a plain consumer reads of a whole cluster."""
    config = {
        "bootstrap.servers": brokers.bootstrap,
        "group.id": "plain",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer = Consumer(config)
    records: Records = {}
    ended: set[int] = set()
    try:
        consumer.assign([ClientPartition(topic, number, 0) for number in range(PARTITIONS)])
        while len(ended) < PARTITIONS:
            for message in consumer.consume(1_000, 1):
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if message.error():
                    ended.add(partition)
                    continue
                key, value = message.key(), message.value()
                assert isinstance(key, bytes)
                assert isinstance(value, bytes)
                records[partition, offset] = key, value, message.timestamp()[1]
    finally:
        consumer.close()
    return records


def draw_window(random: Random, ends: dict[int, int]) -> dict[int, OffsetSet]:
    """Some ranges of each partition: half of it, about."""
    window = {}
    for partition, end in ends.items():
        edges = sorted(random.sample(range(end + 1), 2 * random.randint(1, 6)))
        window[partition] = OffsetSet.of(*zip(edges[::2], edges[1::2], strict=True))
    return window


class Faults:
    """Counts faults, so that each window is read through one of them at least."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """How many there were."""
        return self._count

    def note(self) -> None:
        """Another one has begun."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def await_more_than(self, count: int) -> None:
        """Return once there were more."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._count > count, 2 * _TIMEOUT_S)


def read(
    brokers: ThreeBrokers, topic: str, window: dict[int, OffsetSet], faults: Faults
) -> list[tuple[int, int, bytes, bytes, int]]:
    """What the native reader hands out of a window, with a fault after its first batch."""
    by = ClientSettings.of({"bootstrap.servers": brokers.bootstrap, "reader": "native", **SMALL})
    wanted = {TopicPartition(topic, number): offsets for number, offsets in window.items()}
    columns = ("partition", "offset", "key", "value", "timestamp")
    rows: list[tuple[int, int, bytes, bytes, int]] = []
    with open_reader(by, "g", Isolation.READ_COMMITTED, wanted, columns=columns) as reader:
        for batch in reader.batches():
            if not rows:
                faults.await_more_than(faults.count)
            found: list[list[Any]] = [batch[name].to_pylist() for name in columns[:-1]]
            stamps: Any = batch["timestamp"].cast("int64")
            rows += zip(*found, stamps.to_pylist(), strict=True)
    return rows


def inject(
    brokers: ThreeBrokers, topic: str, fault: str, node: int, faults: Faults, random: Random
) -> int:
    """Bring a fault, and end it after some seconds; return how many partitions changed their leader."""

    def leaders() -> list[int]:
        parts = brokers.topics()[topic].partitions
        return [parts[number].leader for number in range(PARTITIONS)]

    before = leaders()
    if fault == "elect":
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        partitions = [ClientPartition(topic, number) for number in range(PARTITIONS)]
        # Those that the preferred broker leads anyway are errors of theirs.
        admin.elect_leaders(ElectionType.PREFERRED, partitions).result(_TIMEOUT_S)
        faults.note()
        return sum(one != other for one, other in zip(before, leaders(), strict=True))
    getattr(brokers, fault)(node)
    faults.note()
    # Some shorter and some longer than it takes until others lead.
    threading.Event().wait(random.uniform(1, 8))
    try:
        after = leaders()
    except KafkaException:
        # The frozen one was asked.
        after = before
    brokers.heal()
    return sum(one != other for one, other in zip(before, after, strict=True))


def order_of_faults(random: Random) -> Iterator[str]:
    """Each kind as often as the others; an election follows, which gives leaders back."""
    while True:
        for fault in random.sample(FAULTS[:-1], len(FAULTS) - 1):
            yield fault
            yield FAULTS[-1]


def test_windows_are_exact_under_faults(brokers: ThreeBrokers) -> None:
    """No record is lost, doubled or another one; leaders have moved under the reads."""
    topic = f"faults-{uuid.uuid4().hex[:8]}"
    seed = uuid.uuid4().int
    random = Random(seed)
    expected = fill(brokers, topic)
    ends = {
        number: 1 + max(offset for partition, offset in expected if partition == number)
        for number in range(PARTITIONS)
    }
    faults = Faults()
    windows = [draw_window(random, ends) for _ in range(WINDOWS)]

    def check(window: dict[int, OffsetSet]) -> tuple[int, int]:
        rows = read(brokers, topic, window, faults)
        offsets = Counter((row[0], row[1]) for row in rows)
        wanted = {at for at in expected if window[at[0]].covers(at[1], at[1])}
        assert all(row[2:] == expected.get((row[0], row[1])) for row in rows)
        return len(wanted - offsets.keys()), sum(offsets.values()) - len(offsets)

    moved: Counter[str] = Counter()
    times: Counter[str] = Counter()
    with ThreadPoolExecutor(READERS) as pool:
        reads = [pool.submit(check, window) for window in windows]
        kinds: Callable[[], str] = order_of_faults(random).__next__
        while not all(one.done() for one in reads):
            kind = kinds()
            moved[kind] += inject(brokers, topic, kind, random.choice(NODES), faults, random)
            times[kind] += 1
            if any(one.done() and one.exception() for one in reads):
                pool.shutdown(cancel_futures=True, wait=False)
                break
        wait(reads)
    outcomes = [one.result() for one in reads if not one.cancelled()]
    said = (
        f"seed {seed}, {len(outcomes)} windows, faults {dict(times)}, leaders moved {dict(moved)}"
    )
    print(said)
    assert (sum(lost for lost, _ in outcomes), sum(more for _, more in outcomes)) == (0, 0), said
    assert len(outcomes) == WINDOWS
    # Else they would have been no faults.
    assert moved["kill"] + moved["end"] > 0, said
    assert moved["elect"] > 0, said
