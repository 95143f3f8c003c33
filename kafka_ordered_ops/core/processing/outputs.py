"""What done records write to Kafka, until a transaction has stored it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

from kafka_ordered_ops.core.processing.new_record import NewRecord
from kafka_ordered_ops.core.processing.record import Result
from kafka_ordered_ops.core.types import TopicPartition

#: With more, they are written at once, and not at the next interval. A transaction that takes 10 s is aborted.
RECORDS_MAX: Final = 10_000
BYTES_MAX: Final = 4 * 1024**2
#: With so many times more, no record is begun: the cluster is slower than the function, or away.
_HOLD_FACTOR: Final = 2
#: A record costs about so much memory beside its contents.
_RECORD_BYTES: Final = 300

#: By the offset of the record that they are of, in the order in which those records were done.
Pending: TypeAlias = Mapping[int, Sequence[NewRecord]]


class Outputs:
    """The outputs of done records, by partition. Not safe for threads; its owner locks it.

    Args:
        outputs_of: returns what is to be written for a record that is done.
    """

    def __init__(self, outputs_of: Callable[[Result], Sequence[NewRecord]]) -> None:
        self._outputs_of = outputs_of
        self._held: dict[TopicPartition, dict[int, Sequence[NewRecord]]] = {}
        self._records = self._bytes = 0

    def add(self, tp: TopicPartition, results: Sequence[Result]) -> None:
        """Take the outputs of records that are done."""
        for result in results:
            if outputs := self._outputs_of(result):
                self._held.setdefault(tp, {})[result.record.offset] = outputs
                self._count(outputs, 1)

    def pending(self) -> dict[TopicPartition, Pending]:
        """Return what is not stored yet."""
        return {tp: dict(one) for tp, one in self._held.items()}

    def stored(self, tp: TopicPartition, offsets: Collection[int]) -> None:
        """Forget the outputs of some records: they are stored."""
        held = self._held[tp]
        for offset in offsets:
            self._count(held.pop(offset), -1)

    def drop(self, tp: TopicPartition) -> None:
        """Forget a partition."""
        for outputs in self._held.pop(tp, {}).values():
            self._count(outputs, -1)

    @property
    def is_full(self) -> bool:
        """Whether they should be written now."""
        return self._exceeds(1)

    @property
    def is_far_above(self) -> bool:
        """Whether no record should be begun until some are written."""
        return self._exceeds(_HOLD_FACTOR)

    def _exceeds(self, factor: int) -> bool:
        return self._records >= factor * RECORDS_MAX or self._bytes >= factor * BYTES_MAX

    def _count(self, outputs: Sequence[NewRecord], sign: int) -> None:
        self._records += sign * len(outputs)
        self._bytes += sign * sum(one.content_bytes + _RECORD_BYTES for one in outputs)
