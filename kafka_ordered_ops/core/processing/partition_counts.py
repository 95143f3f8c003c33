"""How far the processing of one partition is."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.progress import Snapshot
from kafka_ordered_ops.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """How far the processing of one partition is, in offsets."""

    topic: str
    partition: int
    #: All offsets below it are done: what a group commits.
    first_not_done: int
    #: Ranges that are not done, below the highest done offset.
    incomplete_ranges: int
    #: Not done, up to the end of the log or of the plan; None: not known yet.
    lag: int | None

    @classmethod
    def of(
        cls, tp: TopicPartition, snapshot: Snapshot, wanted: OffsetSet, end: int | None
    ) -> PartitionCounts:
        """Return the counts of a partition.

        Args:
            tp: which.
            snapshot: what is done.
            wanted: the offsets to process.
            end: of the log or of the plan; None: not known.
        """
        lag = None
        if end is not None:
            lag = (wanted.within(snapshot.base, max(end, snapshot.base)) - snapshot.beyond).count
        return cls(tp.topic, tp.partition, snapshot.base, len(snapshot.beyond), lag)
