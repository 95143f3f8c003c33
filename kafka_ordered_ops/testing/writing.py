"""The model's doors for writing records: `kafka.record_writer.RecordWriter`, `kafka.transactions.MemberTransactions`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.processing.new_record import REFUSED_RECORD, NewRecord, OnStored, Report
from kafka_ordered_ops.core.processing.record import RecordMetadata
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing.appending import append_record
from kafka_ordered_ops.testing.log import TransactionFate, TransactionState
from kafka_ordered_ops.testing.membership import MemoryMember
from kafka_ordered_ops.testing.registry import reach


class MemoryWriter:
    """Write records to a model. A context manager; see `kafka.record_writer.RecordWriter`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sent: deque[tuple[NewRecord, Report, OnStored | None]] = deque()

    def __enter__(self) -> MemoryWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the records that are not reported yet."""
        self._sent.clear()

    @property
    def waiting(self) -> int:
        """The number of records that are not reported yet."""
        return len(self._sent)

    def send(self, record: NewRecord, report: Report, on_stored: OnStored | None = None) -> bool:
        """Take a record to write; there is always room."""
        self._sent.append((record, report, on_stored))
        return True

    def poll(self, timeout_s: float) -> None:
        """Write the sent records, and report them."""
        while self._sent:
            record, report, on_stored = self._sent.popleft()
            try:
                stored = append_record(reach(self._name), record)
            except KafkaOrderedOpsError as error:
                report(error)
            else:
                if on_stored is not None:
                    on_stored(stored)
                report(None)


class MemoryTransactions:
    """Transactions of a member of a model's group; see `kafka.transactions.MemberTransactions` for the errors."""

    def __init__(self, name: str, member: MemoryMember) -> None:
        self._name = name
        self._member = member
        self.written: Sequence[RecordMetadata] = ()

    def __enter__(self) -> MemoryTransactions:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no transaction outlives its call."""

    def commit(
        self,
        records: Sequence[NewRecord],
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        timeout_s: float,
    ) -> None:
        """Write records and store offsets of assigned partitions, all or nothing."""
        self._member.check_may_commit(offsets)
        cluster = reach(self._name)
        written: list[RecordMetadata] = []
        with cluster.changed:
            transaction = TransactionFate()
            try:
                for record in records:
                    try:
                        written.append(append_record(cluster, record, transaction))
                    except KafkaOrderedOpsError as error:
                        setattr(error, REFUSED_RECORD, record)
                        raise
                cluster.commit(self._member.group_id, offsets, transaction)
            except BaseException:
                cluster.end(transaction, TransactionState.ABORTED)
                raise
            cluster.end(transaction, TransactionState.COMMITTED)
        self.written = written

    def is_stored(
        self, offsets: Mapping[TopicPartition, CommittedOffset], *, timeout_s: float
    ) -> bool:
        """Return whether these offsets are committed."""
        stored = self._member.committed(sorted(offsets))
        return all(stored[tp] == committed for tp, committed in offsets.items())
