"""Read on after records that cannot be read, where their loss is accepted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from kafka_ordered_ops.core.errors import CorruptRecordError, ReadError, RecordTooLargeError
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.reading import unreadable_in
from kafka_ordered_ops.core.types import TopicPartition

if TYPE_CHECKING:
    from kafka_ordered_ops.kafka.ports import ReaderDoor

_log = logging.getLogger("kafka_ordered_ops.read")

_Batch = TypeVar("_Batch")


class Skipping:
    """Reads by one reader, and notes which of its offsets cannot be read."""

    def __init__(
        self,
        reader: ReaderDoor,
        wanted: Mapping[TopicPartition, OffsetSet],
        *,
        kinds: tuple[type[ReadError], ...] = (CorruptRecordError, RecordTooLargeError),
    ) -> None:
        self._reader = reader
        self._wanted = wanted
        self._kinds = kinds
        #: Wanted offsets that cannot be read.
        self.unreadable: dict[TopicPartition, OffsetSet] = {}

    def through(self, read: Callable[[], Iterator[_Batch]]) -> Iterator[_Batch]:
        """Yield what `read` yields, called again after each batch of records that cannot be read."""
        while True:
            try:
                yield from read()
                return
            except self._kinds as error:
                lost = unreadable_in(error, self._wanted)
                if not lost:
                    raise
                _log.warning("passed over: %s", error)
                for tp, offsets in lost.items():
                    self._pass_over(tp, offsets)

    def _pass_over(self, tp: TopicPartition, offsets: OffsetSet) -> None:
        wanted = self._wanted[tp]
        self.unreadable[tp] = self.unreadable.get(tp, EMPTY_SET) | (offsets & wanted)
        self._reader.stop(tp)
        self._reader.add(tp, wanted.within(offsets.end, wanted.end))
