"""Commit offsets of a group without members, with metadata exact to the byte."""

from __future__ import annotations

from collections.abc import Mapping

import confluent_kafka as ck

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import GroupInUseError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client, translate
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.offsets.committed_offsets import commit_as_member
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The brokers' errors for a commit from outside a group with members.
_IN_USE = frozenset(
    {
        ck.KafkaError.UNKNOWN_MEMBER_ID,
        ck.KafkaError.ILLEGAL_GENERATION,
        ck.KafkaError.REBALANCE_IN_PROGRESS,
        ck.KafkaError.STALE_MEMBER_EPOCH,
    }
)


class OutsideCommits:
    """Commit offsets for a group without members. A context manager, for one thread."""

    def __init__(self, settings: ClientSettings, group_id: str) -> None:
        self._group = group_id
        self._config = settings.consumer(group_id=group_id, isolation=Isolation.READ_COMMITTED)
        self._reasons = FaultReasons(settings.secret_values())
        self._consumer: ck.Consumer | None = None
        self._home = Home()

    def __enter__(self) -> OutsideCommits:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; may be called twice."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None and self._home.is_here:
            consumer.close()

    def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], *, timeout_s: float
    ) -> None:
        """Commit offsets with metadata exact to the byte; after an error, some may be stored.

        Raises:
            GroupInUseError: the group has live members.
            BrokerError: the cluster refuses, or cannot be reached.
        """
        self._home.check("a consumer")
        if self._consumer is None:
            self._consumer = open_client(ck.Consumer, self._config, self._reasons)
        # Without a subscription, the client commits without a generation.
        error = commit_as_member(self._consumer, offsets, timeout_s=timeout_s)
        self._consumer.poll(0)
        if error is None:
            return
        if error.code() in _IN_USE:
            raise GroupInUseError(
                f"group {self._group} has live members ({error.str()}): its offsets are theirs to commit. Stop the "
                "members first",
                group_id=self._group,
                members=(),
            )
        raise translate(
            ck.KafkaException(error),
            doing="committing",
            where=f"group {self._group}",
            reasons=self._reasons,
        )
