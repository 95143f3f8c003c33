"""The ledger's topic: found, made, and checked to be what progress can be trusted to."""

from __future__ import annotations

import logging
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
    LedgerUnavailableError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.ledger_rules import (
    LEDGER_CONFIG,
    LEDGER_PARTITIONS,
    check_ledger_policy,
    check_ledger_topic,
    check_same_ledger,
    ledger_partition,
)
from kafka_ordered_ops.core.ledger_rules import LEDGER_TOPIC as LEDGER_TOPIC
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.faults import FaultReasons, open_client, translate, wait_for
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.settings import ClientSettings

_log = logging.getLogger("kafka_ordered_ops.ledger")

#: One question to the cluster.
_CALL_TIMEOUT_S: Final = 15.0


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
        return ledger_partition(self.name, group)

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
        check_ledger_topic(facts)
        self._check_compacted()
        self._id = facts.topic_id
        return True

    def check_same(self) -> None:
        """Raises `LedgerLostError` when the topic is not the one that was opened."""
        try:
            found = self._lookup.topics([self.name])[self.name].topic_id
        except UnknownTopicError:
            found = None
        check_same_ledger(self.name, opened_id=self._id, found_id=found)

    def _create(self) -> None:
        admin = open_client(AdminClient, self._settings.admin(), self._reasons)
        doing = f"creating the ledger topic {self.name}"
        try:
            brokers = len(admin.list_topics(timeout=_CALL_TIMEOUT_S).brokers)
            # With three copies a change counts once two have it, whatever the cluster's default.
            safe = {"min.insync.replicas": "2"} if brokers >= 3 else {}
            new = NewTopic(
                self.name,
                num_partitions=LEDGER_PARTITIONS,
                replication_factor=min(3, max(brokers, 1)),
                config={**LEDGER_CONFIG, **safe},
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
        check_ledger_policy(self.name, policy)
