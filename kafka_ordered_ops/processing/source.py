"""Sources of records, which also store the progress: a plan, or a group's partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kafka_ordered_ops.core.errors import UnknownTopicError
from kafka_ordered_ops.core.offset_map.reading import DecodePolicy
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.commits import CommitMode
from kafka_ordered_ops.core.processing.progress import Progress
from kafka_ordered_ops.core.types import GroupProtocol, Isolation, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.core.window.decoding import Decoding
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.processing.work_queue import WorkQueue


class Share(NamedTuple):
    """A partition to read."""

    progress: Progress
    wanted: OffsetSet


class Changes(NamedTuple):
    """Changes since the last poll: partitions that were lost, partitions that were gained, and changed limits."""

    lost: frozenset[TopicPartition]
    gained: Mapping[TopicPartition, Share]
    #: The offset from which no record may be started; `None` removes the limit.
    limits: Mapping[TopicPartition, int | None]


class Source(Protocol):
    """A source of records."""

    group_id: str
    isolation: Isolation
    #: The ids of the topics, by name, once the source is open.
    topic_ids: Mapping[str, str]
    #: Says how values and keys are encoded; `None` leaves bytes.
    window: Window | None
    #: Whether the source has no end.
    is_endless: bool
    #: Called after each commit with its duration in seconds, and its error.
    on_commit: Callable[[float, BaseException | None], None] | None
    #: The error of the last commit; `None` if the commit is stored.
    commit_error: BaseException | None

    def open(self, stack: ExitStack, queue: WorkQueue) -> Mapping[TopicPartition, Share]:
        """Return the first partitions to read; the queue holds their progress."""

    def reads(self, topic: str) -> bool:
        """Return whether the source reads a topic."""

    def leave_deleted(self, error: UnknownTopicError) -> frozenset[TopicPartition]:
        """Return the partitions of deleted topics that the source can leave out; raise the error if there are none."""

    def poll(self) -> Changes | None:
        """Return the changes since the last call."""

    def commit_if_due(self) -> None:
        """Store the progress if a commit is due."""

    def commit_at_end(self, timeout_s: float) -> None:
        """Store the progress for the last time; wait at most `timeout_s` for other members that delay it."""

    def report(self) -> None:
        """Call the user's progress callback, if there is one; called several times a second, and at the end."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of a member of a group; see `Processor.subscribe` for the meaning of each field."""

    group_id: str
    #: Names or patterns.
    topics: Sequence[str]
    starting_offsets: Bound
    isolation: Isolation
    on_invalid_metadata: DecodePolicy
    commit_interval_s: float
    session_timeout_s: float
    protocol: GroupProtocol
    commit: CommitMode = CommitMode.PERIODIC_ASYNC
    exclude: Sequence[str] = ()
    decoding: Decoding | None = None
