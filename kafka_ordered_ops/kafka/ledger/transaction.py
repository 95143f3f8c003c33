"""One attempt to change the ledger: a producer that fences earlier ones, with at most one transaction."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaException, Producer

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.group.ledger.records import LedgerMessage
from kafka_ordered_ops.core.group.ledger_rules import CALL_TIMEOUT_S, transactional_id
from kafka_ordered_ops.core.processing.new_record import NewRecord
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.client.calls import waits_for
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client
from kafka_ordered_ops.kafka.ledger.topic import LedgerTopic
from kafka_ordered_ops.kafka.ledger.writing import produce, warm_up, write_all
from kafka_ordered_ops.kafka.offsets.committed_offsets import send_offsets_to_transaction
from kafka_ordered_ops.kafka.record_writer import PROPAGATION_S
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The time for aborting a failed transaction, which only shortens the wait of others.
_ABORT_TIMEOUT_S: Final = 1.0


class FencedTransaction:
    """One producer with at most one transaction; it is discarded afterwards.

    Args:
        settings: the cluster's settings.
        topic: the ledger's topic.
        reasons: the client's reports about its connections.
        cluster_id: returns the cluster's id, part of the transactional id.
        group_id: the group whose state is changed.
        deadline: the deadline of the change, as a `time.monotonic` time.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: LedgerTopic,
        reasons: FaultReasons,
        cluster_id: Callable[[], str],
        group_id: str,
        deadline: float,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._reasons = reasons
        self._cluster_id = cluster_id
        self.group_id = group_id
        self.deadline = deadline
        self._producer: Producer | None = None
        #: Whether a commit was requested and not answered.
        self.outcome_unknown = False
        #: Whether the ledger was read inside the fence, which reveals an unknown outcome.
        self.has_read = False

    def connect(self) -> Producer:
        """Open the producer and its connections. This fences nobody yet, so it need not wait for the turn."""
        if self._producer is None:
            config = self._settings.producer(
                transactional_id=transactional_id(self._cluster_id(), self.group_id),
                # Plans are repetitive JSON, and every new process reads all remaining ones.
                compression_type="lz4",
                # Before the transaction's timeout, which would hide the reason.
                topic_metadata_propagation_max_ms=round(PROPAGATION_S * 1_000),
            )
            self._producer = open_client(Producer, config, self._reasons)
            waits_for("the coordinator of the group's transactions")
            warm_up(self._producer, self._topic.name, timeout_s=self.call_timeout_s())
        return self._producer

    def fence(self) -> None:
        """Fence the producers before this one, and end their open transaction."""
        producer = self.connect()
        waits_for("the coordinator of the group's transactions")
        producer.init_transactions(self.call_timeout_s())

    def store(
        self,
        messages: Sequence[LedgerMessage],
        offsets: Mapping[TopicPartition, CommittedOffset],
        dead_letters: Sequence[NewRecord] = (),
    ) -> None:
        """Write ledger records, dead letters and committed offsets, all or nothing."""
        producer = self.connect()
        try:
            self._write(producer, messages, offsets, dead_letters)
        except BaseException:
            if not self.outcome_unknown:
                # Otherwise readers of the group's offsets wait for the transaction's timeout.
                with contextlib.suppress(KafkaException):
                    producer.abort_transaction(_ABORT_TIMEOUT_S)
            raise

    def _write(
        self,
        producer: Producer,
        messages: Sequence[LedgerMessage],
        offsets: Mapping[TopicPartition, CommittedOffset],
        dead_letters: Sequence[NewRecord],
    ) -> None:
        where = self._topic.partition_of(self.group_id)
        producer.begin_transaction()
        for message in messages:
            produce(producer, where, message, deadline=self.deadline)
        write_all(producer, dead_letters, self._reasons, timeout_s=self.call_timeout_s())
        if offsets:
            send_offsets_to_transaction(
                producer, self.group_id, offsets, timeout_s=self.call_timeout_s()
            )
        self.outcome_unknown = True
        waits_for("the answer to a commit")
        try:
            producer.commit_transaction(self.call_timeout_s())
        except KafkaException as error:
            # An abortable error is an answer: nothing was stored.
            self.outcome_unknown = not error.args[0].txn_requires_abort()
            raise
        self.outcome_unknown = False

    def call_timeout_s(self) -> float:
        """Return the timeout of one call."""
        return max(min(CALL_TIMEOUT_S, self.deadline - time.monotonic()), 0.5)
