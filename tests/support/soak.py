"""One use of the package, again and again in one process, which says what it holds: memory, threads, descriptors.

python -m tests.support.soak windows BOOTSTRAP TOPIC ROUNDS FOLDER
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from kafka_ordered_ops import Member, OrderedReader, OrderedWindows, Window
from kafka_ordered_ops.processing import Processor
from kafka_ordered_ops.relay import RelayClient

#: Of one round.
RECORDS: Final = 100
#: Samples of one run, evenly spaced.
SAMPLES: Final = 40
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_TIMEOUT_S: Final = 60.0

#: Does one round, of this number.
Round = Callable[[int], None]


class Topic:
    """A topic that gets an hour of records in each round."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def cutoff(self, number: int) -> datetime:
        """Where a round's hour ends."""
        return _START + timedelta(hours=number + 1)

    def write(self, number: int) -> None:
        """Write the records of a round."""
        start_ms = int((_START + timedelta(hours=number)).timestamp() * 1_000)
        for record in range(RECORDS):
            key, at_ms = str(record % 10), start_ms + record
            self._producer.produce(self.name, bytes(200), key, timestamp=at_ms)
        assert self._producer.flush(_TIMEOUT_S) == 0


def held(pid: int) -> dict[str, int]:
    """What a process holds now: KB of memory, threads, descriptors."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    return {
        "memory_kb": pages * os.sysconf("SC_PAGE_SIZE") // 1_024,
        "threads": len(list((folder / "task").iterdir())),
        "descriptors": len(list((folder / "fd").iterdir())),
    }


@contextmanager
def windows(topic: Topic, folder: str) -> Iterator[tuple[int, Round]]:
    """Windows of an hour each, into files; some of them run twice."""
    run = OrderedWindows(topic.bootstrap, group_id=topic.name)

    def one(number: int) -> None:
        topic.write(number)
        hour = Window(topic.name, cutoff=topic.cutoff(number), starting_offsets="earliest")
        assert run.run(hour, folder).records == RECORDS
        if number % 10 == 0:
            run.run(hour, folder)

    yield os.getpid(), one


@contextmanager
def follow(topic: Topic, folder: str) -> Iterator[tuple[int, Round]]:
    """One reader that follows the topic and commits after each round."""
    with OrderedReader(
        topic.bootstrap,
        topic.name,
        follow=True,
        group_id=Member(topic.name),
        starting_offsets="earliest",
    ) as reader:

        def one(number: int) -> None:
            topic.write(number)
            # The last record waits for one that is stamped later.
            left = RECORDS - 1 if number == 0 else RECORDS
            while left > 0:
                batch = reader.poll(_TIMEOUT_S)
                assert batch is not None
                left -= batch.num_rows
            reader.commit()

        yield os.getpid(), one


@contextmanager
def processing(topic: Topic, folder: str) -> Iterator[tuple[int, Round]]:
    """The records of windows one by one, keys side by side."""
    run = OrderedWindows(topic.bootstrap, group_id=topic.name)
    processor = Processor(topic.bootstrap, ordering="key", max_concurrency=10)

    def one(number: int) -> None:
        topic.write(number)
        hour = Window(topic.name, cutoff=topic.cutoff(number), starting_offsets="earliest")
        with run.open(hour) as window:
            assert sum(1 for _ in processor.run(window.plan, lambda _: None)) == RECORDS

    yield os.getpid(), one


@contextmanager
def relay(topic: Topic, folder: str) -> Iterator[tuple[int, Round]]:
    """A relay's server, and a client that acknowledges, and cancels now and then."""
    serve = [sys.executable, "-m", "kafka_ordered_ops.cli", "relay", "serve", topic.name]
    options = ["-b", topic.bootstrap, "--bind", "127.0.0.1:0"]
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen([*serve, *options], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(server.send_signal, signal.SIGTERM)
        assert server.stdout is not None
        client = stack.enter_context(RelayClient(server.stdout.readline().strip()))

        def one(number: int) -> None:
            topic.write(number)
            left, is_cancelled = RECORDS, number % 10 > 0
            while left > 0:
                for lease in client.read("billing", records_max=50, wait_s=10, lease_s=120):
                    if is_cancelled:
                        client.acknowledge(lease)
                        left -= len(lease.records)
                    else:
                        client.cancel(lease)
                        is_cancelled = True

        yield server.pid, one


USES: Final = {use.__name__: use for use in (windows, follow, processing, relay)}


def main(name: str, bootstrap: str, topic: str, rounds: int, folder: str) -> None:
    """Print a sample a line, as JSON, as the rounds go on."""
    every = max(rounds // SAMPLES, 1)
    with USES[name](Topic(bootstrap, topic), folder) as (pid, one):
        for number in range(rounds):
            one(number)
            if (number + 1) % every == 0:
                gc.collect()
                print(json.dumps({"round": number + 1, **held(pid)}), flush=True)


if __name__ == "__main__":
    use, address, name, rounds, folder = sys.argv[1:]
    main(use, address, name, int(rounds), folder)
