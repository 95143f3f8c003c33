"""Continue reading after unreadable records, if their loss is accepted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from kafka_ordered_ops.core.cluster.reading import unreadable_in
from kafka_ordered_ops.core.errors import CorruptRecordError, ReadError, RecordTooLargeError
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import TopicPartition

if TYPE_CHECKING:
    from kafka_ordered_ops.kafka.ports import ReaderDoor

_log = logging.getLogger("kafka_ordered_ops.read")

_Batch = TypeVar("_Batch")


class Skipping:
    """Read with one reader, and record which of its offsets cannot be read."""

    def __init__(
        self,
        reader: ReaderDoor,
        to_read: Mapping[TopicPartition, OffsetSet],
        *,
        kinds: tuple[type[ReadError], ...] = (CorruptRecordError, RecordTooLargeError),
    ) -> None:
        self._reader = reader
        self._wanted = to_read
        self._kinds = kinds
        #: Wanted offsets that cannot be read.
        self.unreadable: dict[TopicPartition, OffsetSet] = {}

    def through(self, read: Callable[[], Iterator[_Batch]]) -> Iterator[_Batch]:
        """Yield what `read` yields; after each unreadable batch, `read` is called again."""
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
        to_read = self._wanted[tp]
        self.unreadable[tp] = self.unreadable.get(tp, EMPTY_SET) | (offsets & to_read)
        self._reader.stop(tp)
        self._reader.add(tp, to_read.within(offsets.end, to_read.end))
