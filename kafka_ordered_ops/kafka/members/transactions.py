"""Write records and a member's offsets in one transaction: consume, transform, produce, exactly once.

A transaction is opened, filled and committed within one call, so an owner that dies rarely leaves one open. Two fences
protect the work of others: the broker refuses offsets of a replaced member, by its generation; and a producer that replaces
this one after a fault first ends the open transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import confluent_kafka as ck

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import (
    AuthenticationError,
    AuthorizationError,
    CommitRefusedError,
    CommitUnknownError,
    ConfigError,
    GroupInUseError,
    KafkaOrderedOpsError,
    OffsetMapTooLargeError,
    RecordTooLargeError,
    TlsError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.processing.new_record import REFUSED_RECORD, NewRecord
from kafka_ordered_ops.core.processing.record import RecordMetadata
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.client.calls import Deadline, within
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client, translate
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.members.membership import GroupMember
from kafka_ordered_ops.kafka.offsets.committed_offsets import send_offsets_to_transaction
from kafka_ordered_ops.kafka.record_writer import (
    PROPAGATION_S,
    is_of_records,
    metadata_of,
    produce,
    unwritten,
)
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The timeout for the first contact with the transaction coordinator.
OPEN_TIMEOUT_S: Final = 30.0
#: Waits are sliced, because the client ignores signals while it waits.
_SLICE_S: Final = 0.2
#: The time for aborting a failed transaction: otherwise readers wait for its timeout.
_ABORT_S: Final = 2.0

#: The client's own default of ``batch.size``.
_BATCH_BYTES: Final = 1_000_000
#: Batches become smaller by this factor until their records fit; below `_ALONE_BYTES`, each record is its own batch.
_LESS: Final = 4
_ALONE_BYTES: Final = 2_000

#: Faults that another attempt cannot fix.
_FINAL: Final = (
    AuthenticationError,
    AuthorizationError,
    ConfigError,
    OffsetMapTooLargeError,
    RecordTooLargeError,
    TlsError,
    UnknownTopicError,
)
#: The reports of records that were dropped because another record was refused.
_DROPPED: Final = frozenset({ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT})


class MemberTransactions:
    """Transactions of one member of a live group. A context manager, for the member's thread.

    The transactional id is the group's name with a random suffix: grant WRITE on the group's name as a prefix.

    Args:
        settings: how to reach the cluster.
        member: an open member; its generation fences the offsets.
    """

    def __init__(self, settings: ClientSettings, member: GroupMember) -> None:
        self._member = member
        self._id = f"{member.group_id}-{uuid.uuid4().hex}"
        config = settings.producer(
            transactional_id=self._id,
            # Before the transaction's timeout, which would hide the reason.
            topic_metadata_propagation_max_ms=round(PROPAGATION_S * 1_000),
        )
        self._config: dict[str, Any] = dict(config)
        self._reasons = FaultReasons(settings.secret_values())
        self._producer: ck.Producer | None = None
        self._home = Home()
        #: The positions of the last transaction's records, in their order, if it is stored.
        self.written: Sequence[RecordMetadata] = ()
        #: Whether the last fault was a broker's refusal of a batch, which may contain several records.
        self._is_batch_refused = False

    def __enter__(self) -> MemberTransactions:
        """Connect to the transaction coordinator.

        Raises the `BrokerError` family.
        """
        try:
            self._ready(within(OPEN_TIMEOUT_S))
        except ck.KafkaException as error:
            raise self._translated(error.args[0], "opening transactions", self._where) from error
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the producer; may be called twice."""
        self._producer = None

    def commit(
        self,
        records: Sequence[NewRecord],
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        timeout_s: float,
    ) -> None:
        """Write records and commit offsets of assigned partitions, all or nothing; return when they are stored.

        Raises:
            CommitRefusedError: nothing is stored: a partition is not this member's, the member was replaced, or the
                transaction failed with a temporary error.
            CommitUnknownError: there was no answer in time; `is_stored` finds out.
            UnknownTopicError, AuthorizationError, RecordTooLargeError, BrokerError: a record is refused, and nothing is
                stored. The error's ``refused_record`` is the record.
            BrokerError: the cluster refuses, or cannot be reached, or too many of the client's calls hang; nothing is
                stored.
        """
        self._home.check("a producer")
        while True:
            try:
                self._commit_once(records, offsets, timeout_s)
                return
            except KafkaOrderedOpsError:
                if not self._sends_less():
                    raise

    def _sends_less(self) -> bool:
        """Make batches smaller after a broker has refused one; return False if it had a single record.

        A broker refuses a batch as a whole: its records together may exceed the topic's limit, though none does alone; or
        one of them is invalid, and the broker does not report which. The batches stay small afterwards.
        """
        if not self._is_batch_refused:
            return False
        size = int(self._config.get("batch.size", _BATCH_BYTES))
        if size <= 1:
            return False
        self._config["batch.size"] = size // _LESS if size > _ALONE_BYTES else 1
        return True

    def _commit_once(
        self,
        records: Sequence[NewRecord],
        offsets: Mapping[TopicPartition, CommittedOffset],
        timeout_s: float,
    ) -> None:
        deadline = within(timeout_s)
        self._is_batch_refused = False
        consumer = self._member.client_for(offsets)
        is_asked = False
        try:
            producer = self._ready(deadline)
            producer.begin_transaction()
            self._write(producer, records, deadline)
            send_offsets_to_transaction(producer, consumer, offsets, timeout_s=deadline.left_s)
            is_asked = True
            self._commit(producer, deadline)
        except BaseException as error:
            fault = error.args[0] if isinstance(error, ck.KafkaException) else None
            if is_asked and not (fault is not None and fault.txn_requires_abort()):
                # It may still be committed: the first call of the next producer settles that.
                self._producer = None
                raise self._unknown(error, timeout_s) from error
            self._abort()
            if fault is None:
                raise
            raise self._judged(
                self._translated(fault, "committing a transaction", self._where)
            ) from error

    def is_stored(
        self, offsets: Mapping[TopicPartition, CommittedOffset], *, timeout_s: float
    ) -> bool:
        """Return whether the transaction of a `CommitUnknownError` was committed.

        Args:
            offsets: the transaction's offsets of partitions that this member has had without interruption since.
            timeout_s: the time limit for the answer.

        Raises `CommitUnknownError` if there is no answer in time.
        """
        deadline = within(timeout_s)
        try:
            self._ready(deadline)
            committed = self._member.committed(sorted(offsets))
        except (ck.KafkaException, KafkaOrderedOpsError) as error:
            raise self._unknown(error, timeout_s) from error
        return all(committed[tp] == expected for tp, expected in offsets.items())

    def _ready(self, deadline: Deadline) -> ck.Producer:
        if self._producer is None:
            producer = open_client(ck.Producer, self._config, self._reasons)
            while True:
                # This runs the error callback, which reports a wrong password.
                producer.poll(0)
                self._reasons.raise_if_hopeless(doing="opening transactions", where=self._where)
                try:
                    producer.init_transactions(min(1.0, max(deadline.left_s, _SLICE_S)))
                    break
                except ck.KafkaException as error:
                    if deadline.is_over or not error.args[0].retriable():
                        raise
            self._producer = producer
        return self._producer

    def _write(
        self, producer: ck.Producer, records: Sequence[NewRecord], deadline: Deadline
    ) -> None:
        refused: list[tuple[NewRecord, ck.KafkaError]] = []

        written: list[RecordMetadata | None] = [None] * len(records)

        def reported(number: int, error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is None:
                written[number] = metadata_of(message)
            elif error.code() not in _DROPPED:
                refused.append((records[number], error))

        for number, record in enumerate(records):
            on_delivery = partial(reported, number)
            while not deadline.is_over:
                try:
                    produce(producer, record, on_delivery)
                    break
                except BufferError:
                    producer.poll(_SLICE_S)
                except ck.KafkaException as error:
                    raise self._refused(record, error.args[0]) from error
        while producer.flush(min(_SLICE_S, max(deadline.left_s, 0.01))) and not refused:
            if deadline.is_over:
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))
        if refused:
            record, fault = refused[0]
            self._is_batch_refused = is_of_records(fault)
            raise self._refused(record, fault)
        self.written = [where for where in written if where is not None]

    def _commit(self, producer: ck.Producer, deadline: Deadline) -> None:
        while True:
            try:
                producer.commit_transaction(max(deadline.left_s, _SLICE_S))
                return
            except ck.KafkaException as error:
                if deadline.is_over or not error.args[0].retriable():
                    raise

    def _abort(self) -> None:
        # The producer cannot be used again: dropped records leave a gap in its sequence numbers, and brokers then refuse
        # the next record. The first call of the next producer ends a transaction that this one leaves open.
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(ck.KafkaException):
                producer.abort_transaction(_ABORT_S)

    def _refused(self, record: NewRecord, error: ck.KafkaError) -> KafkaOrderedOpsError:
        fault = unwritten(error, record, doing="writing in a transaction", reasons=self._reasons)
        if not is_of_records(error):
            fault = self._judged(fault)
        setattr(fault, REFUSED_RECORD, record)
        return fault

    def _judged(self, fault: KafkaOrderedOpsError) -> KafkaOrderedOpsError:
        """Return the error to raise for an aborted transaction."""
        if isinstance(fault, _FINAL) or (
            fault.retriable and not isinstance(fault, GroupInUseError)
        ):
            return fault
        return CommitRefusedError(
            f"{self._where}: a transaction was aborted, and nothing of it is stored: {fault}. The member was replaced, the "
            "group is rebalancing, or the transaction exceeded its timeout. Poll, and commit again",
            group_id=self._member.group_id,
        )

    def _unknown(self, error: BaseException, timeout_s: float) -> CommitUnknownError:
        return CommitUnknownError(
            f"{self._where}: no answer to the commit of a transaction within {timeout_s:g} s ({error}): it may have been "
            "stored. Ask for the committed offsets before the next one"
        )

    def _translated(self, error: ck.KafkaError, doing: str, where: str) -> KafkaOrderedOpsError:
        return translate(error, doing=doing, where=where, reasons=self._reasons)

    @property
    def _where(self) -> str:
        return f"group {self._member.group_id}"
