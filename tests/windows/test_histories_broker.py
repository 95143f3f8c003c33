"""Random histories on a real broker: the very steps of those in memory, and workers that are killed with -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic
from tests.support.broker_world import BrokerWorld
from tests.support.logs import LogWriter
from tests.support.oracle.histories import history
from tests.support.oracle.journal import Journal, Recorder
from tests.support.oracle.life import problems_of
from tests.support.oracle.plain import BrokerPlain
from tests.support.oracle.truth import Truth
from tests.support.oracle.verdict import settle, verdict
from tests.support.windows_support import BASE_MS, at

PARTITIONS = 2
SPAN_MS = 600_000


def check_history(bootstrap: str, seed: int) -> None:
    """Lives through a history on a broker; nothing may be wrong in it."""
    told = history(seed)
    transcript: list[str] = []
    with BrokerWorld(bootstrap) as world:
        problems = problems_of(told, world, BrokerPlain(bootstrap), transcript=transcript)
    assert not problems, "\n".join([*problems, str(told), *transcript])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_random_history_keeps_every_promise(bootstrap: str, seed: int) -> None:
    """Anything that can happen to a group, in any order, also between a look and its claim."""
    check_history(bootstrap, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_more_random_histories_keep_every_promise(bootstrap: str, seed: int) -> None:
    """The same, for longer."""
    check_history(bootstrap, seed)


class Storm:
    """Workers on one group that are killed at random and replaced at once, while records are written."""

    def __init__(self, told: dict[str, Any], size: int, folder: Path) -> None:
        self._told = told
        self._folder = folder
        self._started = 0
        self._running = [self._start() for _ in range(size)]
        self.kills = 0

    def run(self, random: Random, writer: LogWriter, kills: int) -> None:
        """Kills so often, writes meanwhile, and lets the last ones finish what they are at."""
        over = threading.Event()
        writing = threading.Thread(target=self._write, args=(writer, over))
        writing.start()
        try:
            for _ in range(kills):
                which = random.randrange(len(self._running))
                self._await_lines(which, random.randrange(3, 25))
                # Anywhere in what it is at by now.
                over.wait(random.uniform(0, 0.3))
                self._kill(self._running[which][1])
                self.kills += 1
                self._running[which] = self._start()
        finally:
            over.set()
            writing.join()
            for _, worker in self._running:
                self._kill(worker)

    def _await_lines(self, which: int, count: int) -> None:
        """Until a worker has begun or ended so many calls."""
        journal, worker = self._running[which]
        deadline = time.monotonic() + 60
        while not journal.exists() or journal.read_text().count("\n") < count:
            assert worker.poll() is None, f"{journal.stem} ended by itself"
            assert time.monotonic() < deadline, f"{journal.stem} has not made {count} steps"
            time.sleep(0.05)

    def journal(self) -> Journal:
        """What everybody was told."""
        return Journal.read(*self._folder.glob("*.jsonl"))

    def _start(self) -> tuple[Path, subprocess.Popen[bytes]]:
        self._started += 1
        journal = self._folder / f"worker{self._started}.jsonl"
        told = {
            **self._told,
            "seed": self._started,
            "seconds": 600,
            "journal": str(journal),
        }
        command = [sys.executable, "-m", "tests.support.oracle.worker", json.dumps(told)]
        return journal, subprocess.Popen(command, start_new_session=True)

    def _kill(self, worker: subprocess.Popen[bytes]) -> None:
        # With what it has forked.
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def _write(self, writer: LogWriter, over: threading.Event) -> None:
        places = [(name, number) for name in self._told["topics"] for number in range(PARTITIONS)]
        while not over.is_set():
            writer.write(places, count=30, low_ms=BASE_MS, high_ms=BASE_MS + SPAN_MS)
            over.wait(0.2)


@pytest.fixture
def storm(bootstrap: str, topic: MakeTopic, group_id: str) -> dict[str, Any]:
    """What a storm's workers are told, but for their mode."""
    return {
        "bootstrap": bootstrap,
        "group": group_id,
        "topics": [topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)],
        "low_ms": BASE_MS,
        "high_ms": BASE_MS + SPAN_MS,
    }


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("in_intervals", "out_of_orderness_ms", "kills"),
    [
        pytest.param(True, None, 3, id="intervals"),
        pytest.param(True, 20_000, 20, id="lateness-long", marks=pytest.mark.long),
        pytest.param(False, None, 20, id="catching-up-long", marks=pytest.mark.long),
    ],
)
def test_killed_workers_keep_every_promise(
    storm: dict[str, Any],
    tmp_path: Path,
    in_intervals: bool,
    out_of_orderness_ms: int | None,
    kills: int,
) -> None:
    """Killed with -9 at random moments, forks among them: each record once, in the right window, flagged exactly."""
    random = Random(f"{in_intervals} {out_of_orderness_ms}")
    writer = LogWriter(storm["bootstrap"], random)
    places = [(name, number) for name in storm["topics"] for number in range(PARTITIONS)]
    writer.write(places, count=200, low_ms=BASE_MS, high_ms=BASE_MS + SPAN_MS)
    told = {**storm, "in_intervals": in_intervals, "out_of_orderness_ms": out_of_orderness_ms}
    workers = Storm(told, 3, tmp_path)
    workers.run(random, writer, kills)
    truth = Truth(BrokerPlain(storm["bootstrap"]), storm["topics"]).look()
    with OrderedWindows({"bootstrap.servers": storm["bootstrap"]}, storm["group"]) as service:
        recorder = Recorder(service, "the end", journal=Journal())
        windows = settle(recorder, storm["topics"], at(10_000), in_intervals=in_intervals)
    journal = workers.journal()
    commits = sum(call.name == "commit" and call.went_well for call in journal)
    assert commits, "a storm in which nothing is committed proves nothing"
    assert not verdict(truth.look(), journal, windows)
