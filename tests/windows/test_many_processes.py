"""Many processes on one group, under kill -9: nothing twice, nothing lost, and everybody gets through."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_ordered_ops import ClientSettings, Earliest, OrderedWindows, Window, WindowPlan
from kafka_ordered_ops.core.group.ledger_rules import transactional_id
from kafka_ordered_ops.kafka.facts.window_facts import Snapshot, SnapshotReader
from kafka_ordered_ops.kafka.ledger import queue
from kafka_ordered_ops.kafka.ledger.ledger import Ledger
from kafka_ordered_ops.kafka.ledger.transaction import FencedTransaction
from kafka_ordered_ops.kafka.lookup import Lookup
from tests.conftest import MakeTopic
from tests.support.logs import LogWriter
from tests.support.windows_support import BASE_MS, at
from tests.windows.test_contention import PARTITIONS, SPAN_MS, check_group

#: No change of the group may take a living process longer than this, however many others there are: it
#: is the `timeout_s` of every worker, and passing it would end that worker with an error.
STARVATION_BOUND_S = 90


class Crowd:
    """Workers that are killed at random and replaced at once."""

    def __init__(self, arguments: list[str], size: int, folder: Path, seconds: float) -> None:
        self._arguments = arguments
        self._folder = folder
        self._over = time.monotonic() + seconds
        self._started = 0
        self.running = [self._start() for _ in range(size)]
        self.kills = 0

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        left_s = max(self._over - time.monotonic(), 0)
        with (self._folder / f"{self._started}.log").open("wb") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.crowd_worker",
                    *self._arguments,
                    f"{left_s:.1f}",
                    str(STARVATION_BOUND_S),
                    f"worker{self._started}",
                ],
                stdout=log,
            )

    def run(self, random: Random, *, pause_s: tuple[float, float]) -> None:
        """Kills until the time is over, then waits until everybody has finished what they were at."""
        try:
            while time.monotonic() < self._over:
                time.sleep(random.uniform(*pause_s))
                at = random.randrange(len(self.running))
                if self.running[at].poll() is None:
                    self.running[at].kill()
                    self.kills += 1
                    self.running[at].wait()
                    self.running[at] = self._start()
            codes = [worker.wait(3 * STARVATION_BOUND_S) for worker in self.running]
            assert codes == [0] * len(codes), "a worker starved, or failed otherwise"
        finally:
            for worker in self.running:
                worker.kill()
                worker.wait()

    def told(self) -> list[dict[str, float | str]]:
        """What the workers were told, killed ones included."""
        lines = [
            line
            for log in self._folder.glob("*.log")
            for line in log.read_text().splitlines(keepends=True)
        ]
        # A killed worker may leave half a line.
        return [json.loads(line) for line in lines if line.endswith("}\n")]


@pytest.mark.long
def test_a_plan_that_was_overtaken_keeps_its_place_in_the_line(
    bootstrap: str,
    topic: MakeTopic,
    group_id: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixteen plans at once: each reads its facts again when it is its turn, and then gets through."""
    # However slow the machine is that does sixteen things at once.
    monkeypatch.setattr(queue, "_LIVE_S", 60.0)
    name, size = topic(partitions=PARTITIONS), 16
    places = [(name, partition) for partition in range(PARTITIONS)]
    low_ms, high_ms = BASE_MS, BASE_MS + size * 1_000
    LogWriter(bootstrap, Random(7)).write(places, count=2_000, low_ms=low_ms, high_ms=high_ms)
    start = threading.Barrier(size)

    def plan(number: int) -> None:
        with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
            start.wait()
            windows.plan(_second(name, number), str(number))

    with caplog.at_level("INFO", "kafka_ordered_ops.windows"), ThreadPoolExecutor(size) as pool:
        assert len(list(pool.map(plan, range(size)))) == size
    again = Counter(one.threadName for one in caplog.records if "starting over" in one.message)
    assert again, "nobody was overtaken"
    assert max(again.values()) == 1


@pytest.mark.long
def test_a_plan_is_drafted_while_the_change_before_it_goes_on(
    bootstrap: str, topic: MakeTopic, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next in line reads its facts and connects without fencing the one at it, and drafts only once."""
    monkeypatch.setattr(queue, "_LIVE_S", 60.0)
    name = topic(partitions=PARTITIONS)
    times = {"low_ms": BASE_MS, "high_ms": BASE_MS + 3_000}
    LogWriter(bootstrap, Random(3)).write([(name, 0)], count=50, **times)
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    lookup, drafts, is_ready = Lookup(settings), Counter[str](), threading.Event()
    connect, draft = FencedTransaction.connect, SnapshotReader.read

    def counted(self: SnapshotReader, *args: Any, **more: Any) -> Snapshot:
        drafts[threading.current_thread().name] += 1
        return draft(self, *args, **more)

    def connected(self: FencedTransaction) -> Producer:
        producer = connect(self)
        is_ready.set()
        return producer

    def plan() -> WindowPlan:
        with OrderedWindows(settings, group_id) as windows:
            return windows.plan(_second(name, 1), "second")

    with OrderedWindows(settings, group_id) as windows:
        windows.plan(_second(name, 0), "first")
    with Ledger(settings, lookup) as ledger, ledger.turn(group_id) as turn:
        ledger.read(group_id)
        turn.take(overtaken=True, early=False)
        one_id = transactional_id(lookup.cluster_id(), group_id)
        at_it = Producer(settings.producer(transactional_id=one_id))
        at_it.init_transactions(30)
        monkeypatch.setattr(SnapshotReader, "read", counted)
        monkeypatch.setattr(FencedTransaction, "connect", connected)
        with ThreadPoolExecutor(1, "next") as pool:
            planned = pool.submit(plan)
            assert is_ready.wait(60), "it waits for its turn before it begins"
            assert list(drafts.values()) == [1]
            at_it.begin_transaction()
            at_it.produce(name, b"not fenced", partition=1, timestamp=BASE_MS + 1_500)
            at_it.commit_transaction(30)
            assert not planned.done()
            turn.leave()
            assert planned.result(60).offsets
    assert list(drafts.values()) == [1]


def _second(topic: str, number: int) -> Window:
    return Window(topic, at(number + 1), since=at(number), starting_offsets=Earliest())


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "seconds", "pause_s"),
    [
        pytest.param(6, 12.0, (0.8, 2.0), id="six"),
        pytest.param(
            32,
            120.0,
            (0.3, 1.5),
            id="thirty-two",
            marks=[pytest.mark.long, pytest.mark.timeout(900)],
        ),
    ],
)
def test_a_crowd_on_one_group(
    bootstrap: str,
    topic: MakeTopic,
    group_id: str,
    tmp_path: Path,
    size: int,
    seconds: float,
    pause_s: tuple[float, float],
) -> None:
    """Planning and committing at once, killed with -9: no overlap, no gap, no lost commit, nobody starves."""
    name = topic(partitions=PARTITIONS)
    random = Random(size)
    arguments = [bootstrap, group_id, name, str(BASE_MS), str(BASE_MS + SPAN_MS)]
    crowd = Crowd(arguments, size, tmp_path, seconds)
    over = threading.Event()
    writer = threading.Thread(target=_write, args=(bootstrap, name, over))
    writer.start()
    try:
        crowd.run(random, pause_s=pause_s)
    finally:
        over.set()
        writer.join()
    told = crowd.told()
    assert crowd.kills > 0, "a kill storm without kills proves nothing"
    assert sum(int(one["offsets"]) for one in told), "windows without records prove nothing"
    check_group(bootstrap, group_id, name, {str(one["window_id"]) for one in told})
    # For whoever measures: run with -s.
    for step in ("plan_s", "commit_s"):
        seconds_taken = sorted(float(one[step]) for one in told)
        print(
            f"{step}: {len(told)} windows, {crowd.kills} kills, median "
            f"{seconds_taken[len(told) // 2]:.2f}, greatest {seconds_taken[-1]:.2f}"
        )


def _write(bootstrap: str, topic: str, over: threading.Event) -> None:
    """Goes on writing records of all times, in transactions and without."""
    writer = LogWriter(bootstrap, Random(topic))
    partitions = [(topic, partition) for partition in range(PARTITIONS)]
    while not over.is_set():
        writer.write(partitions, count=60, low_ms=BASE_MS, high_ms=BASE_MS + SPAN_MS)
        over.wait(0.3)
