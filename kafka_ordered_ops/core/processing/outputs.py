"""Outputs of done records, until a transaction has stored them in Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from kafka_ordered_ops.core.errors import CallbackError
from kafka_ordered_ops.core.processing.failures import error_text
from kafka_ordered_ops.core.processing.new_record import NewRecord
from kafka_ordered_ops.core.processing.record import RecordMetadata, Result
from kafka_ordered_ops.core.types import TopicPartition

#: With more outputs, they are written at once, not at the next interval. A transaction that takes 10 s is aborted.
RECORDS_MAX: Final = 10_000
BYTES_MAX: Final = 4 * 1024**2
#: At this multiple of the limits, no new record is started: the cluster is slower than the function, or unreachable.
_HOLD_FACTOR: Final = 2
#: The approximate memory of a record besides its contents.
_RECORD_BYTES: Final = 300

#: Outputs by the offset of their record, in the order in which the records were done.
Pending: TypeAlias = Mapping[int, Sequence[NewRecord]]
#: Where outputs are stored, by the offset of their record.
Written: TypeAlias = Mapping[int, Sequence[RecordMetadata]]


class Outputs:
    """Done records whose outputs are not stored, by partition. Not thread-safe: its owner locks it.

    Args:
        outputs_of: returns the outputs of a done record.
    """

    def __init__(self, outputs_of: Callable[[Result], Sequence[NewRecord]]) -> None:
        self._outputs_of = outputs_of
        self._held: dict[TopicPartition, dict[int, tuple[Result, Sequence[NewRecord]]]] = {}
        self._records = self._bytes = 0

    def add(self, tp: TopicPartition, results: Sequence[Result]) -> list[Result]:
        """Take done records; return the results without outputs."""
        without: list[Result] = []
        for result in results:
            if outputs := self._outputs_of(result):
                self._held.setdefault(tp, {})[result.record.offset] = (result, outputs)
                self._count(outputs, 1)
            else:
                without.append(result)
        return without

    def pending(self) -> dict[TopicPartition, Pending]:
        """Return the outputs that are not stored yet."""
        return {
            tp: {offset: outputs for offset, (_, outputs) in held.items()}
            for tp, held in self._held.items()
        }

    def stored(self, tp: TopicPartition, written: Written) -> list[Result]:
        """Forget the stored outputs of records; return the results with the places of the outputs."""
        held = self._held[tp]
        results: list[Result] = []
        for offset, produced in written.items():
            result, outputs = held.pop(offset)
            self._count(outputs, -1)
            results.append(result._replace(produced=tuple(produced)))
        return results

    def drop(self, tp: TopicPartition) -> None:
        """Forget a partition."""
        for _, outputs in self._held.pop(tp, {}).values():
            self._count(outputs, -1)

    @property
    def is_full(self) -> bool:
        """Whether the outputs should be written now."""
        return self._exceeds(1)

    @property
    def is_far_above(self) -> bool:
        """Whether no record should be started until some outputs are written."""
        return self._exceeds(_HOLD_FACTOR)

    def _exceeds(self, factor: int) -> bool:
        return self._records >= factor * RECORDS_MAX or self._bytes >= factor * BYTES_MAX

    def _count(self, outputs: Sequence[NewRecord], sign: int) -> None:
        self._records += sign * len(outputs)
        self._bytes += sign * sum(output.content_bytes + _RECORD_BYTES for output in outputs)


def call_on_produced(
    on_produced: Callable[[Result], object] | None, results: Sequence[Result]
) -> None:
    """Call a user's callback with results whose outputs are stored; raise `CallbackError`."""
    if on_produced is None:
        return
    for result in results:
        try:
            on_produced(result)
        except BaseException as error:
            raise CallbackError(
                f"on_produced raised {type(error).__name__} for {result.record}: {error_text(error)}. Its outputs are "
                "stored",
                callback="on_produced",
                partitions=[str(result.record.tp)],
            ) from error
