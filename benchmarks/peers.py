"""Other ordered readers from Python: kafkars, and its successor kafkarrow, which has the same engine and interface.

``requirements/bench.txt`` has their versions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, Final

from benchmarks.order_breaks import OrderBreaks
from benchmarks.usage import peak_memory_bytes
from benchmarks.values import Outcome, Place, Work

_POLL_MS: Final = 100

#: A read that gets stuck is cut off. At their usual speed they read 5 million records in half of it.
TIMEOUT_S: Final = 60.0


class Peer(StrEnum):
    """A package that reads in order of time."""

    KAFKARS = "kafkars"
    KAFKARROW = "kafkarrow"


class PeerSettings(StrEnum):
    """How a peer is set up, as a part of its name."""

    DEFAULT = ""
    #: ``fetch.queue.backoff.ms=5``, as the package's own client has it. Theirs is the client's default, 1,000.
    FAST_QUEUE = ", fast queue"
    #: And ten times its default batch: it holds more records, and gets stuck less.
    LARGE_BATCHES = ", fast queue, large batches"

    @property
    def client(self) -> dict[str, str]:
        """Settings of its Kafka client."""
        return {} if self is PeerSettings.DEFAULT else {"fetch.queue.backoff.ms": "5"}

    @property
    def batch_records(self) -> int:
        """At most so many records in a batch; it holds up to five times as many."""
        return 100_000 if self is PeerSettings.LARGE_BATCHES else 10_000


@dataclass(frozen=True)
class PeerRead:
    """Reads a topic from its earliest record until every record has come."""

    peer: Peer
    topic: str
    records: int
    settings: PeerSettings
    timeout_s: float = TIMEOUT_S

    def start(self, place: Place) -> Work:
        """Imports the package."""
        package = import_module(self.peer)
        config = {
            "bootstrap.servers": place.bootstrap,
            "group.id": f"bench-{self.peer}",
            **self.settings.client,
        }

        def run(_: int) -> Outcome:
            breaks = OrderBreaks()
            started = time.perf_counter()
            topics = [package.SourceTopic.from_earliest(self.topic)]
            manager = package.ConsumerManager(config, topics, self.settings.batch_records)
            is_complete = self._read(manager, breaks, started + self.timeout_s)
            seconds = time.perf_counter() - started
            return Outcome(
                seconds=seconds,
                records=breaks.records,
                memory_bytes=peak_memory_bytes(),
                order_breaks=breaks.count,
                is_complete=is_complete,
            )

        return Work(run)

    def _read(self, manager: Any, breaks: OrderBreaks, deadline: float) -> bool:
        """Return whether all records came before the deadline."""
        # Their own sign of the end, `is_live()`, never comes where a partition's last record is not its greatest.
        while breaks.records < self.records:
            if time.perf_counter() > deadline:
                return False
            breaks.look(manager.poll(_POLL_MS))
        return True
