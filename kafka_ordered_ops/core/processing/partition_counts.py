"""The progress of processing in one partition."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.progress import Snapshot
from kafka_ordered_ops.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """The progress of processing in one partition, in offsets."""

    topic: str
    partition: int
    #: All offsets below it are done. A group commits this offset.
    first_not_done: int
    #: Ranges that are not done, below the highest done offset.
    incomplete_ranges: int
    #: Offsets that are not done, up to the end of the log or of the plan; None if unknown.
    lag: int | None

    @classmethod
    def of(
        cls, tp: TopicPartition, snapshot: Snapshot, wanted: OffsetSet, end: int | None
    ) -> PartitionCounts:
        """Return the counts of a partition.

        Args:
            tp: the partition.
            snapshot: the done offsets.
            wanted: the offsets to process.
            end: the end of the log or of the plan; None if unknown.
        """
        lag = None
        if end is not None:
            lag = (wanted.within(snapshot.base, max(end, snapshot.base)) - snapshot.beyond).count
        return cls(tp.topic, tp.partition, snapshot.base, len(snapshot.beyond), lag)
