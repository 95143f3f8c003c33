"""The frontier: the lowest place in the order that a future record may have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.release.lanes import EVERYTHING, Bound
from kafka_ordered_ops.core.types import INT64_MIN, TopicPartition


@dataclass(slots=True)
class Source:
    """One partition: which records have arrived, and which may still arrive."""

    tp: TopicPartition
    #: Its index in the order in which partitions were added.
    lane: int
    #: The greatest timestamp so far, ms.
    greatest_ms: int | None = None
    #: No record stamped below it is expected; None if records of any time may arrive.
    floor_ms: int | None = None
    is_waited_for: bool = True
    late: int = 0

    def raise_floor(self, timestamp_ms: int) -> None:
        """Expect no more records stamped below a time."""
        least = INT64_MIN if self.floor_ms is None else self.floor_ms
        self.floor_ms = max(least, timestamp_ms)


class Frontier:
    """The partitions, in the order in which they were added."""

    def __init__(self) -> None:
        self._sources: dict[TopicPartition, Source] = {}
        self._ranks: Int64Array | None = None

    def __iter__(self) -> Iterator[Source]:
        # A copy: another thread may add a partition meanwhile.
        return iter(list(self._sources.values()))

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._sources

    def __getitem__(self, tp: TopicPartition) -> Source:
        return self._sources[tp]

    def add(self, tp: TopicPartition) -> Source:
        """Wait for a partition: for the first time, or again after it was finished."""
        source = self._sources.get(tp)
        if source is None:
            source = self._sources[tp] = Source(tp, len(self._sources))
            self._ranks = None
        source.is_waited_for = True
        source.greatest_ms = source.floor_ms = None
        return source

    @property
    def ranks(self) -> Int64Array:
        """The place of each lane's partition among all partitions, by (topic, partition)."""
        if self._ranks is None:
            by_name = sorted(self._sources.values(), key=lambda source: source.tp)
            self._ranks = np.empty(len(by_name), dtype=np.int64)
            self._ranks[[source.lane for source in by_name]] = np.arange(len(by_name))
        return self._ranks

    def holding_back(self) -> Source | None:
        """Return the partition that holds the others back; None if no partition is waited for."""
        waited_for = [source for source in self if source.is_waited_for]
        unknown = (source for source in waited_for if source.floor_ms is None)
        return min(unknown, key=lambda source: source.tp, default=None) or min(
            waited_for, key=lambda source: (source.floor_ms, source.tp), default=None
        )

    def bound(self) -> Bound | None:
        """Return the bound below which records may be released; None if no record may be released yet."""
        source = self.holding_back()
        if source is None:
            return EVERYTHING
        if source.floor_ms is None:
            return None
        # The partition's next record has a higher offset than all of its held records.
        return Bound(source.floor_ms, int(self.ranks[source.lane]))
