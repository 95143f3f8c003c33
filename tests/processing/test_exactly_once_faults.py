"""Exactly once on a real broker while processes are killed or frozen, and while the broker is away."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kafka_ordered_ops.embedded import EmbeddedKafka
from tests.ordered.test_ordered_kill import forget_members
from tests.support.broker_world import BrokerWorld
from tests.support.processing_groups import committed_places, places, wait_until
from tests.support.produced import Transformer, check_once_in_order, written
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

_TRANSFORMS = """
import sys, time
from pathlib import Path
from kafka_ordered_ops.processing import NewRecord, Processor
bootstrap, orders, out, group, path, interval_s = sys.argv[1:]
done = open(path, "ab", buffering=0)

def transform(record):
    time.sleep(0.005)
    done.write(b".")
    return NewRecord(out, record.key, b"%d:%d" % (record.partition, record.offset))

processor = Processor(bootstrap, max_concurrency=8)
results = processor.subscribe(
    orders,
    transform,
    group_id=group,
    produce="transactional",
    commit_interval_s=float(interval_s),
    # One that is killed while it joins cannot be removed by hand.
    session_timeout_s=6,
)
for result in results:
    pass
"""
_PARTITIONS = 4


def fill(world: World, count: int) -> None:
    """Writes records to each partition of `orders`, with some keys."""
    for number in range(_PARTITIONS):
        content = [(0.0, b"key-%d" % (one % 11), b"x", ()) for one in range(count)]
        world.write_content("orders", number, content)


@contextmanager
def transforming(
    world: World, notes: Path, *, interval_s: float = 0.1
) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that transforms `orders` to `out`, until it is killed; a byte in its notes for each record."""
    names = [world.named(one) for one in ("orders", "out", "live")]
    arguments = [world.settings.bootstrap_servers, *names, str(notes), str(interval_s)]
    with subprocess.Popen([sys.executable, "-c", _TRANSFORMS, *arguments]) as process:
        try:
            yield process
        finally:
            process.kill()


def done_by(notes: Path) -> int:
    """How many records a process has done."""
    return notes.stat().st_size if notes.exists() else 0


def until_committed(world: World, process: subprocess.Popen[bytes], count: int) -> None:
    """Waits until so many records are committed as done, while a process lives."""
    # The owner of a transaction may have died within it, and brokers wait for it.
    deadline = time.monotonic() + 3 * TIMEOUT_S
    while (found := len(committed_places(world))) < count:
        assert time.monotonic() < deadline, (found, count)
        assert process.poll() is None
        time.sleep(0.02)


@pytest.fixture
def filled(broker: BrokerWorld) -> BrokerWorld:
    """A broker with the topics."""
    broker.create("orders", partitions=_PARTITIONS)
    broker.create("out", partitions=3)
    return broker


@pytest.mark.long
def test_each_output_is_there_once_whoever_is_killed(filled: BrokerWorld, tmp_path: Path) -> None:
    """Two processes, of which one is killed about every second, at any moment of a transaction, and started again."""
    count, kills = 0, 20
    with ExitStack() as stack:
        running = [
            stack.enter_context(transforming(filled, tmp_path / f"first-{one}")) for one in (0, 1)
        ]
        for kill in range(kills):
            fill(filled, 100)
            count += 100
            until_committed(filled, running[0], len(committed_places(filled)) + 50)
            time.sleep(random.uniform(0, 0.3))
            os.kill(running[kill % 2].pid, signal.SIGKILL)
            forget_members(filled, filled.named("live"))
            notes = tmp_path / f"notes-{kill}"
            running[kill % 2] = stack.enter_context(transforming(filled, notes))
        everything = set(places(*[range(count)] * _PARTITIONS))
        until_committed(filled, running[0], len(everything))
    wait_until(lambda: len(written(filled)) >= len(everything))
    check_once_in_order(written(filled), everything)


@pytest.mark.long
def test_a_frozen_process_gets_nothing_in_once_others_have_its_partitions(
    filled: BrokerWorld, tmp_path: Path
) -> None:
    """Frozen with outputs that are not written; when it goes on, they are not written either, and it takes part again."""
    count = 0
    for turn, interval_s in enumerate((2.0, 0.05, 0.05)):
        fill(filled, 50)
        count += 50
        notes = tmp_path / f"notes-{turn}"
        with transforming(filled, notes, interval_s=interval_s) as zombie:
            wait_until(lambda: done_by(notes) > 40)  # noqa: B023 - called at once
            os.kill(zombie.pid, signal.SIGSTOP)
            forget_members(filled, filled.named("live"))
            everything = set(places(*[range(count)] * _PARTITIONS))
            with Transformer(filled) as heir:
                heir.until(lambda: committed_places(filled) == everything)  # noqa: B023
                os.kill(zombie.pid, signal.SIGCONT)
                had = done_by(notes)
                fill(filled, 5)
                count += 5
                everything = set(places(*[range(count)] * _PARTITIONS))
                heir.until(lambda: len(written(filled)) >= len(everything))  # noqa: B023
            fill(filled, 5)
            count += 5
            # On its own again.
            wait_until(lambda: done_by(notes) >= had + 5 * _PARTITIONS)  # noqa: B023
        forget_members(filled, filled.named("live"))
        everything = set(places(*[range(count)] * _PARTITIONS))
        with Transformer(filled) as heir:
            heir.until(lambda: committed_places(filled) == everything)  # noqa: B023
        check_once_in_order(written(filled), everything)


@pytest.mark.long
def test_a_broker_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    """Transactions fail meanwhile, and processing goes on; in the end each output is there once."""
    with EmbeddedKafka() as kafka, BrokerWorld(kafka.bootstrap) as world:
        world.create("orders", partitions=_PARTITIONS)
        world.create("out", partitions=3)
        with transforming(world, tmp_path / "notes", interval_s=0.05) as process:
            for turn in range(3):
                before = len(committed_places(world))
                fill(world, 200)
                until_committed(world, process, before + 100)
                kafka.kill()
                kafka.restart()
                until_committed(world, process, (turn + 1) * _PARTITIONS * 200)
        check_once_in_order(written(world), places(*[range(3 * 200)] * _PARTITIONS))
