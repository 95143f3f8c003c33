"""The progress of reading one partition, and the selection of its wanted records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Final

import confluent_kafka as ck
import numpy as np
from confluent_kafka import Message

from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.types import TopicPartition

#: A gap of at least this many offsets is skipped with a seek; reading through a smaller gap is cheaper.
JUMP_OFFSETS_MIN: Final = 10_000


class Progress:
    """The progress of one partition in one assignment."""

    __slots__ = ("_taken_to", "has_own_position", "position", "sought", "tp", "wanted")

    def __init__(self, tp: TopicPartition, wanted: OffsetSet, *, has_own_position: bool) -> None:
        self.tp = tp
        self.wanted = wanted
        #: All wanted records below it have been returned.
        self.position = self._taken_to = wanted.first
        #: The last offset at which the client was started.
        self.sought = wanted.first
        #: Whether the client's position, if it has one, belongs to this assignment.
        self.has_own_position = has_own_position

    @property
    def is_done(self) -> bool:
        """Whether all wanted records have been returned."""
        return self.position >= self.wanted.end

    @property
    def key(self) -> tuple[str, int]:
        """The topic and partition, as in the client's messages."""
        return self.tp.topic, self.tp.partition

    @property
    def start(self) -> ck.TopicPartition:
        """The partition with the next offset to read, for the client."""
        return ck.TopicPartition(self.tp.topic, self.tp.partition, self.position)

    def advance(self, position: int) -> bool:
        """Move the position forward, at most to the end; return whether it moved."""
        position = min(position, self.wanted.end)
        moved = position > self.position
        self.position = max(position, self.position)
        return moved

    def take(
        self, records: Sequence[Message], offsets: Int64Array
    ) -> tuple[Sequence[Message], Int64Array]:
        """Return the wanted records of a run, without those that were taken before."""
        self.has_own_position = True
        taken_to = max(self._taken_to, self.position)
        first, last = int(offsets[0]), int(offsets[-1])
        if first >= taken_to and self.wanted.covers(first, last):
            # By far the most common case, without a check of each record.
            self._taken_to = last + 1
            return records, offsets
        mask = self.wanted.mask(offsets)
        if first < taken_to:
            # Records in flight at a jump arrive a second time after it.
            mask &= offsets >= taken_to
        self._taken_to = max(taken_to, last + 1)
        if mask.all():
            return records, offsets
        return list(compress(records, mask.tolist())), offsets[mask]

    def next_wanted(self) -> int:
        """Return the first wanted offset that was not returned yet."""
        return self.wanted.within(self.position, self.wanted.end).first

    def jump(self) -> int | None:
        """Return the offset to seek to if the position is in a large gap."""
        if self.wanted.covers(self.position, self.position):
            return None
        boundaries = self.wanted.boundaries
        index = int(np.searchsorted(boundaries, self.position, side="right"))
        if index % 2 or index == boundaries.size:
            return None
        start = int(boundaries[index])
        return start if start - self.position >= JUMP_OFFSETS_MIN else None


def runs_of_partitions(
    messages: Sequence[Message], topic_numbers: Mapping[str | None, int]
) -> Iterator[tuple[Sequence[Message], Int64Array]]:
    """Divide messages into runs of one partition, each with its offsets; the client delivers long runs anyway."""
    count = len(messages)
    if not count:
        return
    keys = np.fromiter(map(Message.partition, messages), np.int64, count)
    if len(topic_numbers) > 1:
        names = map(Message.topic, messages)
        keys += np.fromiter(map(topic_numbers.__getitem__, names), np.int64, count) << 32
    offsets = np.fromiter(map(Message.offset, messages), np.int64, count)
    starts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        yield messages[start:end], offsets[start:end]
