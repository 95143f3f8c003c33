"""Processing of a live group when things fail: killed processes, brokers that are away, functions slower than the group allows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import Member, OrderedReader
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.kafka.members import membership
from kafka_ordered_ops.processing import Processor
from kafka_ordered_ops.testing.membership import expire_members
from tests.interop.conftest import Consume
from tests.interop.conftest import consume as consume
from tests.ordered.test_ordered_kill import forget_members
from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.parallel_consumer import offsets_done
from tests.support.processing_groups import (
    Place,
    Worker,
    committed_places,
    places,
    twice,
    wait_until,
)
from tests.support.windows_support import TIMEOUT_S

_WORKS = """
import sys, time
from kafka_ordered_ops.processing.processor import Processor
bootstrap, topic, group, path = sys.argv[1:]
begun = open(path + "-begun", "ab", buffering=0)
done = open(path + "-done", "ab", buffering=0)

def work(record):
    begun.write(f"{record.partition} {record.offset}\\n".encode())
    time.sleep(0.2 if record.offset % 50 == 7 else 0.001)
    done.write(f"{record.partition} {record.offset}\\n".encode())

processor = Processor(bootstrap, ordering="unordered", max_concurrency=8)
for result in processor.subscribe(topic, work, group_id=group, commit_interval_s=0.05):
    pass
"""


@pytest.fixture
def broker(bootstrap: str) -> Iterator[BrokerWorld]:
    """A real broker."""
    made = BrokerWorld(bootstrap)
    with made:
        yield made


def noted(path: Path) -> list[Place]:
    """The whole lines of a process's notes."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    found = [line.split() for line in lines]
    return [(int(partition), int(offset)) for partition, offset in found]


@pytest.mark.long
def test_killed_processes_lose_nothing_and_repeat_nothing_committed(
    broker: BrokerWorld, tmp_path: Path
) -> None:
    """Killed anywhere: all records are done in the end, and those committed as done are not begun again."""
    broker.create("orders", partitions=2)
    for number in range(2):
        broker.write_content("orders", number, [(0, None, b"x", ())] * 1_500)
    everything = set(places(range(1_500), range(1_500)))
    done: set[Place] = set()
    arguments = [broker.settings.bootstrap_servers, broker.named("orders"), broker.named("live")]
    for number in range(5):
        before = committed_places(broker)
        path = tmp_path / f"notes-{number}"
        wanted = len(everything) * (number + 1) // 5
        with subprocess.Popen([sys.executable, "-c", _WORKS, *arguments, str(path)]) as process:
            try:
                deadline = time.monotonic() + 2 * TIMEOUT_S
                while len(done | set(noted(Path(f"{path}-done")))) < wanted:
                    assert time.monotonic() < deadline, (number, len(done))
                    assert process.poll() is None
                    time.sleep(0.005)
            finally:
                os.kill(process.pid, signal.SIGKILL)
        done |= set(noted(Path(f"{path}-done")))
        begun = noted(Path(f"{path}-begun"))
        assert not before & set(begun)
        assert len(begun) == len(set(begun))
        assert committed_places(broker) <= done
        forget_members(broker, broker.named("live"))
    assert done == everything


@pytest.mark.long
def test_a_function_slower_than_the_group_allows_keeps_its_partitions(
    broker: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is polled by a thread of its own, so that max.poll.interval.ms is not exceeded."""
    sharing = membership._sharing

    def impatient(*arguments: Any) -> dict[str, str]:
        short = {"session_timeout_ms": "6000", "max_poll_interval_ms": "6000"}
        return sharing(*arguments) | short

    monkeypatch.setattr(membership, "_sharing", impatient)
    broker.create("orders")
    broker.write("orders", 0, *range(3))
    with Worker(broker, holds=lambda one: one.offset == 0, group_id="live") as worker:
        worker.until(lambda: (0, 0) in worker.begun)
        time.sleep(9)
        worker.release()
        worker.until_done(*places(range(3)))
        worker.until(lambda: committed_places(broker) == set(places(range(3))))
    assert not twice(worker)


def test_a_member_that_was_thrown_out_goes_on_from_the_last_commit() -> None:
    """What it had in flight is fenced off, and processed again by whoever gets the partition."""
    world = MemoryWorld()
    with world:
        world.create("orders")
        world.write("orders", 0, *range(5))
        with Worker(
            world, holds=lambda one: one.offset == 2, processor={"ordering": "unordered"}
        ) as worker:
            expected = {(0, 0), (0, 1), (0, 3), (0, 4)}
            worker.until(lambda: committed_places(world) == expected)
            expire_members(world.kafka.name, world.named("live"))
            worker.until(lambda: worker.begun.count((0, 2)) == 2)
            worker.release()
            worker.until(lambda: committed_places(world) == set(places(range(5))))
        assert worker.done.count((0, 2)) == 1
        assert twice(worker) == {(0, 2)}


@pytest.mark.long
def test_brokers_that_are_away_and_come_back() -> None:
    """Held records are processed meanwhile; commits are made later, and nothing is processed twice by this member."""
    with EmbeddedKafka() as kafka, BrokerWorld(kafka.bootstrap) as world:
        world.create("orders", partitions=2)
        for number in range(2):
            world.write_content("orders", number, [(0, None, b"x", ())] * 200)
        with Worker(world, function_s=0.01, processor={"max_concurrency": 2}) as worker:
            worker.until(lambda: len(worker.done) > 50 and bool(committed_places(world)))
            kafka.kill()
            worker.until(lambda: len(worker.done) == 400)
            kafka.restart()
            world.write_content("orders", 1, [(0, None, b"x", ())] * 5)
            worker.until_done(*places(range(0), range(205)))
        assert not twice(worker)
        assert committed_places(world) == set(places(range(200), range(205)))


@pytest.mark.long
def test_a_frozen_coordinator_delays_commits_and_no_work() -> None:
    """Its answers come when it wakes up."""
    with EmbeddedKafka() as kafka, BrokerWorld(kafka.bootstrap) as world:
        world.create("orders")
        world.write_content("orders", 0, [(0, None, b"x", ())] * 300)
        with Worker(world, function_s=0.01, processor={"max_concurrency": 2}) as worker:
            worker.until(lambda: len(worker.done) > 20 and bool(committed_places(world)))
            kafka.pause()
            try:
                worker.until(lambda: len(worker.done) == 300)
            finally:
                kafka.resume()
            worker.until(lambda: committed_places(world) == set(places(range(300))))
        assert not twice(worker)


@pytest.mark.long
def test_readers_stop_while_a_broker_is_silent() -> None:
    """Within 5 s, though commits are due that cannot be made."""
    with EmbeddedKafka() as kafka, BrokerWorld(kafka.bootstrap) as world:
        world.create("orders")
        world.write_content("orders", 0, [(0, None, b"x", ())] * 20)
        topic, rarely = world.named("orders"), 600.0
        processor = Processor(kafka.bootstrap)
        results = processor.subscribe(
            topic, lambda _: None, group_id="one", commit_interval_s=rarely
        )
        assert len([next(results) for _ in range(20)]) == 20
        reader = OrderedReader(
            kafka.bootstrap, topic, group_id=Member("other", commit_interval_s=rarely), follow=True
        )
        with reader:
            rows = 0
            while rows < 20:
                batch = reader.poll(1)
                rows += 0 if batch is None else batch.num_rows
            kafka.pause()
            try:
                began = time.monotonic()
                processor.stop()
                assert list(results) == []
                stopped = time.monotonic()
                reader.close()
                took_s = [stopped - began, time.monotonic() - stopped]
            finally:
                kafka.resume()
    # More than the promise, for a busy machine; without it, 15 to 28 s.
    assert max(took_s) < 9, took_s


@pytest.mark.long
def test_a_group_is_taken_over_from_the_library_and_handed_back(
    broker: BrokerWorld, consume: Consume, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parallel Consumer, this package, Parallel Consumer: each begins exactly what the others have not done."""
    topic = broker.named("orders")
    monkeypatch.setattr(broker, "named", {"orders": topic, "live": group_id}.__getitem__)
    broker.create("orders", partitions=2)
    for number in range(2):
        broker.write_content("orders", number, [(0, None, b"x", ())] * 100)
    held = {(0, 3), (0, 40), (1, 0), (1, 77)}
    everything = set(places(range(100), range(100)))
    with consume(topic, held=held) as library:
        library.wait_committed(lambda found: _places(offsets_done(found)) == everything - held)
        library.kill()
    options: dict[str, Any] = {
        "group_id": "live",
        "processor": {"ordering": "unordered", "stop_timeout_s": 0.3},
    }
    with Worker(broker, holds=lambda one: one.offset in (40, 0), **options) as worker:
        rest = {(0, 40), (1, 0)}
        worker.until(lambda: committed_places(broker) == everything - rest)
        worker.stop()
    assert set(worker.begun) == held
    with consume(topic) as library:
        library.wait_committed(lambda found: _places(offsets_done(found)) == everything)
        processed = library.processed()
        library.close()
    assert {(number, offset) for number, found in processed.items() for offset in found} == rest
    broker.write("orders", 0, 1)
    with Worker(broker, group_id="live") as worker:
        worker.until_done((0, 100))
    assert worker.begun == [(0, 100)]


def _places(done: dict[int, Any]) -> set[Place]:
    return {
        (number, offset)
        for number, offsets in done.items()
        for start, end in offsets
        for offset in range(start, end)
    }


@pytest.mark.long
def test_a_paused_member_stays_in_its_group(broker: BrokerWorld) -> None:
    """For longer than its session: no record is begun, and its partition does not move."""
    session_s = 6.0
    broker.create("orders", partitions=2)
    with Worker(broker, session_timeout_s=session_s) as first, Worker(broker) as second:
        wait_until(lambda: [len(one.processor.partitions) for one in (first, second)] == [1, 1])
        [held] = first.processor.partitions
        first.processor.pause()
        for number in range(2):
            broker.write("orders", number, *range(10))
        second.until_done(*[(1 - held.partition, offset) for offset in range(10)])
        resumed_at = time.monotonic() + 1.5 * session_s
        first.until(lambda: time.monotonic() > resumed_at)
        assert [one.partition for one in first.processor.partitions] == [held.partition]
        assert not first.begun
        first.processor.resume()
        first.until_done(*[(held.partition, offset) for offset in range(10)])
        assert not twice(first, second)
