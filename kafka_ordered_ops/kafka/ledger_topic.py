"""The ledger's topic: found, made, and checked to be what progress can be trusted to."""

from __future__ import annotations

import base64
import logging
import zlib
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kafka_ordered_ops.core.errors import (
    AuthorizationError,
    KafkaOrderedOpsError,
    LedgerError,
    LedgerLostError,
    LedgerUnavailableError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.faults import FaultReasons, open_client, translate, wait_for
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.settings import ClientSettings

_log = logging.getLogger("kafka_ordered_ops.ledger")

LEDGER_TOPIC: Final = "__kafka_ordered_ops"

#: Groups of one ledger partition wait for each other's open transactions; more partitions, less waiting.
#: A group's partition is found among these, whatever number the topic has: growing it moves nothing.
LEDGER_PARTITIONS: Final = 16

#: One question to the cluster.
_CALL_TIMEOUT_S: Final = 15.0

_TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": str(2 * 1024 * 1024),
}


class LedgerTopic:
    """The ledger topic of one cluster."""

    def __init__(
        self, settings: ClientSettings, lookup: Lookup, name: str, reasons: FaultReasons
    ) -> None:
        self.name = name
        self._settings = settings
        self._lookup = lookup
        self._reasons = reasons
        self._id: str | None = None

    @property
    def id(self) -> str | None:
        """The topic's id in Kafka's text form; None until it was opened, and while there is none."""
        return self._id

    def partition_of(self, group: str) -> TopicPartition:
        """Where a group's records are: all in one partition."""
        return TopicPartition(self.name, zlib.crc32(group.encode()) % LEDGER_PARTITIONS)

    def open(self, *, create: bool) -> bool:
        """Finds the ledger topic, or makes it; whether it is there."""
        if self._id is not None:
            return True
        try:
            facts = self._lookup.topics([self.name])[self.name]
        except UnknownTopicError:
            if not create:
                return False
            self._create()
            facts = self._lookup.topics([self.name])[self.name]
        if len(facts.partitions) < LEDGER_PARTITIONS:
            raise LedgerError(
                f"the ledger topic {self.name} has {len(facts.partitions)} partitions, and a ledger has at least "
                f"{LEDGER_PARTITIONS}: add partitions if it is empty, or name another ledger topic"
            )
        self._check_compacted()
        self._id = facts.topic_id
        return True

    def check_same(self) -> None:
        """Raises `LedgerLostError` when the topic is not the one that was opened."""
        try:
            found = self._lookup.topics([self.name])[self.name].topic_id
        except UnknownTopicError:
            found = None
        if found != self._id:
            raise LedgerLostError(
                f"the ledger topic {self.name} was opened with id {self._id} and "
                f"{'is gone' if found is None else f'has id {found} now'}: it was deleted while it was in use. Restore "
                "it, or read on under a new group from a start bound of your choice"
            )

    def _create(self) -> None:
        admin = open_client(AdminClient, self._settings.admin(), self._reasons)
        doing = f"creating the ledger topic {self.name}"
        try:
            brokers = len(admin.list_topics(timeout=_CALL_TIMEOUT_S).brokers)
            new = NewTopic(
                self.name,
                num_partitions=LEDGER_PARTITIONS,
                replication_factor=min(3, max(brokers, 1)),
                config=_TOPIC_CONFIG,
            )
            futures = admin.create_topics([new], request_timeout=_CALL_TIMEOUT_S)
            wait_for(
                admin,
                futures.values(),
                timeout_s=_CALL_TIMEOUT_S,
                doing=doing,
                reasons=self._reasons,
            )
            futures[self.name].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            raise self._uncreatable(error, doing) from error

    def _uncreatable(self, error: KafkaException, doing: str) -> KafkaOrderedOpsError:
        cause = translate(error, doing=doing, where=self.name, reasons=self._reasons)
        what_to_do = (
            f"create it with {LEDGER_PARTITIONS} partitions and cleanup.policy=compact, or grant this principal "
            "CREATE on it"
        )
        if isinstance(cause, AuthorizationError):
            return AuthorizationError(
                f"the ledger topic {self.name} does not exist, and this principal may not create it: {what_to_do}",
                code=cause.code,
            )
        return LedgerUnavailableError(
            f"the ledger topic {self.name} does not exist and cannot be created ({cause}): {what_to_do}"
        )

    def _check_compacted(self) -> None:
        """A ledger topic with time-based retention forgets progress: refused."""
        admin = open_client(AdminClient, self._settings.admin(), self._reasons)
        resource = ConfigResource(ResourceType.TOPIC, self.name)
        doing = f"reading the configuration of {self.name}"
        futures = admin.describe_configs([resource], request_timeout=_CALL_TIMEOUT_S)
        try:
            wait_for(
                admin,
                futures.values(),
                timeout_s=_CALL_TIMEOUT_S,
                doing=doing,
                reasons=self._reasons,
            )
            policy = futures[resource].result()["cleanup.policy"].value
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                _log.warning("%s is not allowed; its cleanup.policy is not checked", doing)
                return
            raise translate(error, doing=doing, where=self.name, reasons=self._reasons) from error
        if policy != "compact":
            raise LedgerError(
                f"the ledger topic {self.name} has cleanup.policy={policy}: with anything but compact it "
                "forgets the progress of groups. Set cleanup.policy=compact"
            )


def topic_id_bytes(topic_id: str) -> bytes:
    """The 16 bytes of a topic id in Kafka's text form (base64 for URLs, without padding)."""
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_id_text(topic_id: bytes) -> str:
    """The inverse of `topic_id_bytes`."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
