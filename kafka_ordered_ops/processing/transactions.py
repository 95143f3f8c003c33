"""A group's commits as transactions: each contains the outputs of the records that it marks as done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.dead_letter_headers import PREFIX
from kafka_ordered_ops.core.errors import CommitUnknownError, KafkaOrderedOpsError
from kafka_ordered_ops.core.processing.new_record import REFUSED_RECORD
from kafka_ordered_ops.core.processing.outputs import Pending, Written
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import TransactionsDoor
from kafka_ordered_ops.processing.work_queue import WorkQueue

#: Long enough to write as many outputs as may be held, on a slow network. Nothing is read meanwhile.
_TRANSACTION_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Sent:
    """A transaction with an unknown outcome."""

    offsets: dict[TopicPartition, CommittedOffset]
    #: The positions of its records' outputs, if the transaction is stored.
    written: dict[TopicPartition, Written]


class GroupTransactions:
    """The transactions of one member of a group; for the member's thread.

    The queue holds outputs until they are stored: after a refusal, the next transaction writes them again.
    """

    def __init__(self, door: TransactionsDoor, queue: WorkQueue) -> None:
        self._door, self._queue = door, queue
        self._unknown: _Sent | None = None
        #: An error that another attempt does not fix.
        self._failure: KafkaOrderedOpsError | None = None

    def settle(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Resolve a transaction with an unknown outcome; return the offsets that it stored.

        Call this before the next `commit`, which would otherwise write the outputs again.

        Raises:
            CommitUnknownError: there was no answer again.
        """
        sent = self._unknown
        if sent is None:
            return {}
        is_stored = self._door.is_stored(sent.offsets, timeout_s=_TRANSACTION_TIMEOUT_S)
        self._unknown = None
        if not is_stored:
            return {}
        self._queue.stored(sent.written)
        return sent.offsets

    def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        outputs: Mapping[TopicPartition, Pending],
    ) -> None:
        """Write outputs and store offsets, all or nothing; raises like `MemberTransactions.commit`."""
        if self._failure is not None:
            raise self._failure
        records = [
            record
            for pending in outputs.values()
            for new_records in pending.values()
            for record in new_records
        ]
        try:
            self._door.commit(records, offsets, timeout_s=_TRANSACTION_TIMEOUT_S)
        except CommitUnknownError:
            self._unknown = _Sent(dict(offsets), self._written(outputs))
            raise
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                self._failure = error
                _name_source(error, outputs)
            raise
        self._queue.stored(self._written(outputs))

    def _written(self, outputs: Mapping[TopicPartition, Pending]) -> dict[TopicPartition, Written]:
        """Return the positions of the last transaction's outputs, by the record that they belong to."""
        places = iter(self._door.written)
        return {
            tp: {offset: tuple(islice(places, len(records))) for offset, records in pending.items()}
            for tp, pending in outputs.items()
        }

    def forget(self, tp: TopicPartition) -> None:
        """Forget a lost partition: its commits from now on prove nothing about this member's transactions."""
        if self._unknown is not None:
            self._unknown.offsets.pop(tp, None)
            self._unknown.written.pop(tp, None)


def _name_source(error: KafkaOrderedOpsError, outputs: Mapping[TopicPartition, Pending]) -> None:
    """Add a note with the record whose output was refused; for a dead letter, also the error of the function."""
    refused = getattr(error, REFUSED_RECORD, None)
    for tp, pending in outputs.items():
        for offset, records in pending.items():
            if refused is None or not any(record is refused for record in records):
                continue
            why = ": ".join(
                (value or b"").decode(errors="replace")
                for name, value in refused.headers
                if name in (f"{PREFIX}error_type", f"{PREFIX}error")
            )
            error.add_note(
                f"{tp}@{offset} is not done: its output is refused"
                f"{f'. Its function failed with {why}' if why else ''}"
            )
