"""Processes that fight for one group, under kill -9: no offset planned twice, no commit lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from kafka_ordered_ops import Earliest, Window
from kafka_ordered_ops.core.offset_set import EMPTY_SET
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets.committed_offsets import read_committed_offsets
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic
from tests.support.logs import LogWriter
from tests.support.windows_support import BASE_MS, at

SPAN_MS = 100_000
PARTITIONS = 3


class Fleet:
    """Two workers, each started again when it is killed, until it ends by itself."""

    def __init__(self, arguments: list[str], names: list[str], folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._started = 0
        self.running = {name: self._start(name) for name in names}
        self.kills = 0

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        self._started += 1
        with (self._folder / f"{self._started}.log").open("wb") as log:
            role = name.split("/")[0]
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.window_worker", *self._arguments, role],
                stdout=log,
            )

    def run(self, random: Random, *, kills: int, pause_s: tuple[float, float]) -> None:
        """Kills at random moments, then lets the workers come to their end."""
        try:
            while self.running:
                time.sleep(random.uniform(*pause_s))
                for name, worker in list(self.running.items()):
                    if worker.poll() is not None:
                        assert worker.returncode == 0, f"worker {name} ended with an error"
                        del self.running[name]
                if self.running and self.kills < kills:
                    name = random.choice(sorted(self.running))
                    self.running[name].kill()
                    self.running[name].wait()
                    self.running[name] = self._start(name)
                    self.kills += 1
        finally:
            for worker in self.running.values():
                worker.kill()
                worker.wait()

    def acknowledged(self) -> set[str]:
        """The ids of windows whose commit a worker was told of."""
        lines = [
            line
            for log in self._folder.glob("*.log")
            for line in log.read_text().splitlines(keepends=True)
        ]
        # A killed worker may leave half a line.
        return {json.loads(line)["window_id"] for line in lines if line.endswith("}\n")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "windows", "kills"),
    [
        pytest.param(["shared", "shared/again"], 10, 6, id="one-window"),
        pytest.param(["left", "right"], 10, 6, id="two-windows"),
        pytest.param(
            ["shared", "shared/again"], 100, 60, id="one-window-long", marks=pytest.mark.long
        ),
        pytest.param(["left", "right"], 50, 60, id="two-windows-long", marks=pytest.mark.long),
    ],
)
def test_two_processes_lose_nothing_and_plan_nothing_twice(
    bootstrap: str,
    topic: MakeTopic,
    group_id: str,
    tmp_path: Path,
    names: list[str],
    windows: int,
    kills: int,
) -> None:
    """Both on one window, or on two of one group at once, killed with -9 at random moments."""
    name = topic(partitions=PARTITIONS)
    random = Random(f"{names}-{windows}")
    writer = LogWriter(bootstrap, random)
    writer.write(
        [(name, partition) for partition in range(PARTITIONS)],
        count=2_000,
        low_ms=BASE_MS,
        high_ms=BASE_MS + SPAN_MS,
    )
    arguments = [bootstrap, group_id, name, str(BASE_MS), str(BASE_MS + SPAN_MS), str(windows)]
    fleet = Fleet(arguments, names, tmp_path)
    fleet.run(random, kills=kills, pause_s=(0.3, 1.5))
    assert fleet.kills > 0, "a kill storm without kills proves nothing"
    check_group(bootstrap, group_id, name, fleet.acknowledged())


def check_group(bootstrap: str, group_id: str, topic: str, acknowledged: set[str]) -> None:
    """No overlap, no gap, no lost commit, exact progress."""
    every = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as service:
        records = service.list()
        by_id = {record.plan.window_id: record for record in records}
        lost = {window_id for window_id in acknowledged if not by_id[window_id].status.is_done}
        assert acknowledged
        assert not lost
        state = service.state()
        assert state is not None
        for tp in every:
            taken = EMPTY_SET
            done = EMPTY_SET
            for record in records:
                offsets = record.plan.taken.get(tp, EMPTY_SET)
                assert not taken & offsets, f"{record.plan.window_id} took offsets of another"
                taken = taken | offsets
                done = done | offsets if record.status.is_done else done
            partition = state.partition(tp)
            assert partition is not None
            assert partition.done == done, "progress is what committed windows took"
        for record in records:
            if record.status.is_open:
                service.commit(service.plan(record.plan.window, record.plan.window_id))
        service.commit(
            service.plan(Window([topic], at(10_000), starting_offsets=Earliest()), "rest")
        )
        committed = read_committed_offsets(service.settings, group_id, every, timeout_s=30)
        with Lookup(service.settings) as lookup:
            ends = lookup.end_offsets(every, Isolation.READ_COMMITTED)
        assert {tp: one.offset if one else None for tp, one in committed.items()} == ends
