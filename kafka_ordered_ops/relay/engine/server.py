"""The shared state of a server's parts, all in one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kafka_ordered_ops.core.errors import NotReadyError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.relay.engine.requests import Requests
from kafka_ordered_ops.relay.leases.leasing import Leasing
from kafka_ordered_ops.relay.leases.partition import Partition
from kafka_ordered_ops.relay.leases.reads import Answers, Waiting
from kafka_ordered_ops.relay.log import LogWriter
from kafka_ordered_ops.relay.options import RelayOptions

#: The answer to calls before it is known how much there is to read.
STARTING: Final = "this server is starting. Call again, or call another server"


@dataclass
class Server:
    """One server of the relay."""

    settings: ClientSettings
    options: RelayOptions
    #: A unique id, never used by an earlier server.
    server_id: str
    #: Runs a function in the server's thread.
    post: Callable[[Callable[[], None]], None]
    requests: Requests
    log: LogWriter
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)
    waiting: Waiting = field(init=False)
    leasing: Leasing = field(init=False)
    #: Groups with a change since they were served last: records to hand out, or a window that is done.
    dirty: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.waiting = Waiting(self.answers)
        self.leasing = Leasing(
            self.partitions,
            self.log,
            self.waiting,
            self.answers,
            self.post,
            lambda group: self.dirty.add(group),
        )

    @property
    def is_replayed(self) -> bool:
        """Whether the logs of all partitions were read to the end offsets that they had at the start."""
        return all(partition.is_replayed for partition in self.partitions.values())

    def not_ready(self) -> NotReadyError:
        """Return the error of a call while logs are still being read, with the progress."""
        partitions = list(self.partitions.values())
        read = sum(partition.replayed for partition in partitions)
        of = sum(partition.replayed_of or 0 for partition in partitions)
        if read >= of or any(partition.replayed_of is None for partition in partitions):
            return NotReadyError(STARTING)
        return NotReadyError(
            f"this server has read {read:,} of {of:,} records of its logs. Call again, or call another server"
        )

    def stop_serving(self, partition: Partition) -> None:
        """Stop handing out records of a partition."""
        partition.drop()
        self.leasing.drop(partition)


def now_ms() -> int:
    """Return the current time in ms since the epoch."""
    return int(time.time() * 1_000)
