"""Runs the real command line, and reads what it published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conftest import MakeTopic, Produce, Record
from tests.support import kill_points
from tests.support.kill_points import KillPoint

_TIMEOUT_S = 180.0

#: A port that nobody listens on: the connection is refused at once.
NOWHERE = "127.0.0.1:1"

#: Time zero of the records.
T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)

#: Seconds after `T0`, by partition, in the order of writing. The 30 in partition 0 is an out-of-order record of the
#: window that ends at 60: it was written behind the 70.
SECONDS = ((0, 10, 20, 70, 30, 80), (5, 15, 65))
FIRST_WINDOW = [0, 5, 10, 15, 20, 30]
SECOND_WINDOW = [65, 70, 80]


@dataclass(frozen=True)
class Outcome:
    """How one command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout; anything else there is an error."""
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        return value

    @property
    def error(self) -> dict[str, Any]:
        """The error that the JSON object tells of."""
        error = self.json["error"]
        assert isinstance(error, dict)
        return error


def arguments(*words: object, kill_at: KillPoint | None = None) -> list[str]:
    """The command line of one command; with a point, of one that dies there."""
    program = (
        ["-m", "kafka_ordered_ops.cli"] if kill_at is None else [kill_points.__file__, kill_at]
    )
    return [sys.executable, *program, *map(str, words)]


def cli(
    *words: object, env: Mapping[str, str] | None = None, kill_at: KillPoint | None = None
) -> Outcome:
    """Runs one command in a process of its own."""
    done = subprocess.run(
        arguments(*words, kill_at=kill_at),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def at(seconds: int) -> str:
    """A time as the command line takes it."""
    return (T0 + timedelta(seconds=seconds)).isoformat()


def fill(produce: Produce, topic: str) -> None:
    """Writes the records of `SECONDS`; the value is the number of seconds."""
    start_ms = int(T0.timestamp() * 1000)
    records: list[Record] = [
        (topic, partition, None, b"%d" % second, start_ms + second * 1000, [])
        for partition, seconds in enumerate(SECONDS)
        for second in seconds
    ]
    produce(records)


def values(folder: str | Path) -> list[int]:
    """The values of a published window, in the order of the files' names."""
    return [
        int(value)
        for file in sorted(Path(folder).glob("part-*.parquet"))
        for value in pq.read_table(file)["value"].to_pylist()
        if value is not None
    ]


def visible(root: Path) -> list[str]:
    """The folders that readers see."""
    return sorted(path.name for path in root.iterdir())


def committed(bootstrap: str, group_id: str, topic: str) -> dict[int, int]:
    """The group's committed offsets, as any other program sees them."""
    # Not the admin client's listing: it can crash the process while the group's coordinator is unsettled.
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        answer = consumer.committed([TopicPartition(topic, number) for number in partitions], 30)
    finally:
        consumer.close()
    return {one.partition: one.offset for one in answer if one.offset >= 0}


def topics(bootstrap: str) -> set[str]:
    """The names of all topics but the broker's own, which come when they are needed; asking creates none."""
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics
    return set(listed) - {"__consumer_offsets", "__transaction_state"}


def commit_elsewhere(bootstrap: str, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Moves the group's committed offsets, as any other program may."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id})
    try:
        wanted = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        consumer.commit(offsets=wanted, asynchronous=False)
    finally:
        consumer.close()


class Cluster:
    """A topic, a group, and a folder for what its windows hold."""

    def __init__(self, bootstrap: str, topic: str, group_id: str, output: Path) -> None:
        self.bootstrap, self.topic, self.group_id, self.output = bootstrap, topic, group_id, output

    @property
    def where(self) -> tuple[str, ...]:
        return ("-b", self.bootstrap, "-g", self.group_id)

    def question(self, seconds: int) -> tuple[str, ...]:
        return ("-t", self.topic, "--cutoff", at(seconds), "--starting-offsets", "earliest")

    def sink(self, engine: str = "local") -> tuple[object, ...]:
        return ("--output", self.output, "--engine", engine)

    def run(self, seconds: int, *more: object, engine: str = "local") -> Outcome:
        words = (*self.where, *self.question(seconds), *self.sink(engine))
        return cli("run", *words, "--json", *more)

    def windows(self, word: str, *more: object) -> Outcome:
        return cli("windows", word, *self.where, "--json", *more)

    @property
    def committed(self) -> dict[int, int]:
        return committed(self.bootstrap, self.group_id, self.topic)


@pytest.fixture
def cluster(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> Cluster:
    """The known records in a topic of two partitions."""
    name = topic(partitions=2)
    fill(produce, name)
    return Cluster(bootstrap, name, group_id, tmp_path / "out")
