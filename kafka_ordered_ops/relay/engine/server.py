"""What the parts of a server share, all of it in one thread."""

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

#: To those who call before it is known how much there is to read.
STARTING: Final = "this server is starting. Call again, or call another server"


@dataclass
class Server:
    """One server of the relay."""

    settings: ClientSettings
    options: RelayOptions
    #: Unique, also among the servers that were.
    server_id: str
    #: Runs a function in the server's thread.
    post: Callable[[Callable[[], None]], None]
    requests: Requests
    log: LogWriter
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)
    waiting: Waiting = field(init=False)
    leasing: Leasing = field(init=False)
    #: Groups in which something may be handed out, or is done, since they were served last.
    dirty: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.waiting = Waiting(self.answers)
        self.leasing = Leasing(self.partitions, self.log, self.waiting, self.answers, self.post)

    @property
    def is_replayed(self) -> bool:
        """Whether the logs of all partitions were read to the ends that they had at the start."""
        return all(one.is_replayed for one in self.partitions.values())

    def not_ready(self) -> NotReadyError:
        """Return the error of a call that comes while logs are still being read, with the progress."""
        partitions = list(self.partitions.values())
        read = sum(one.replayed for one in partitions)
        of = sum(one.replayed_of or 0 for one in partitions)
        if read >= of or any(one.replayed_of is None for one in partitions):
            return NotReadyError(STARTING)
        return NotReadyError(
            f"this server has read {read:,} of {of:,} records of its logs. Call again, or call another server"
        )

    def stop_serving(self, partition: Partition) -> None:
        """Hand out no more records of a partition."""
        partition.drop()
        self.leasing.drop(partition)


def now_ms() -> int:
    """Return the time of day, ms since the epoch."""
    return int(time.time() * 1_000)
