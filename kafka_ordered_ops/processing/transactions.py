"""A group's commits as transactions, each together with the outputs of the records that it counts as done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import CommitUnknownError, KafkaOrderedOpsError
from kafka_ordered_ops.core.processing.new_record import REFUSED_RECORD
from kafka_ordered_ops.core.processing.outputs import Pending
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import TransactionsDoor
from kafka_ordered_ops.processing.dead_letters import PREFIX
from kafka_ordered_ops.processing.work_queue import WorkQueue

#: Long enough for the outputs that are held at most, on a slow network. Meanwhile nothing is read.
_TRANSACTION_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Sent:
    """A transaction whose outcome is not known."""

    offsets: dict[TopicPartition, CommittedOffset]
    #: The records whose outputs are in it.
    written: dict[TopicPartition, Collection[int]]


class GroupTransactions:
    """The transactions of one member of a group. For the member's thread.

    The queue holds outputs until they are stored: after a refusal, the next transaction writes them again.
    """

    def __init__(self, door: TransactionsDoor, queue: WorkQueue) -> None:
        self._door, self._queue = door, queue
        self._unknown: _Sent | None = None
        #: A fault that another attempt does not end.
        self._failure: KafkaOrderedOpsError | None = None

    def settle(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Find out what became of a transaction without an answer; return the offsets that it has stored.

        Call it before the next `commit`, which would write its outputs again.

        Raises:
            CommitUnknownError: no answer again.
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
        """Write outputs and store offsets, all or nothing; raise as `MemberTransactions.commit` does."""
        if self._failure is not None:
            raise self._failure
        written: dict[TopicPartition, Collection[int]] = {tp: tuple(outputs[tp]) for tp in outputs}
        records = [one for pending in outputs.values() for some in pending.values() for one in some]
        try:
            self._door.commit(records, offsets, timeout_s=_TRANSACTION_TIMEOUT_S)
        except CommitUnknownError:
            self._unknown = _Sent(dict(offsets), written)
            raise
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                self._failure = error
                _name_source(error, outputs)
            raise
        self._queue.stored(written)

    def forget(self, tp: TopicPartition) -> None:
        """A partition is lost: what is committed of it from now on says nothing about this member's transactions."""
        if self._unknown is not None:
            self._unknown.offsets.pop(tp, None)
            self._unknown.written.pop(tp, None)


def _name_source(error: KafkaOrderedOpsError, outputs: Mapping[TopicPartition, Pending]) -> None:
    """Add the record whose output was refused, and the error of the function where the output is its dead letter."""
    refused = getattr(error, REFUSED_RECORD, None)
    for tp, pending in outputs.items():
        for offset, some in pending.items():
            if refused is None or not any(one is refused for one in some):
                continue
            why = ": ".join(
                (value or b"").decode(errors="replace")
                for name, value in refused.headers
                if name in (f"{PREFIX}error_type", f"{PREFIX}error")
            )
            error.add_note(
                f"{tp}@{offset} is not done: what was to be written for it is refused"
                f"{f'. Its function failed with {why}' if why else ''}"
            )
