"""The ledger's topic: find or create it, and check that it keeps progress safely."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ResourceType

from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts
from kafka_ordered_ops.core.errors import (
    AuthorizationError,
    KafkaOrderedOpsError,
    LedgerUnavailableError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.group.ledger_rules import (
    LEDGER_CONFIG,
    LEDGER_PARTITIONS,
    Replication,
    check_ledger_policy,
    check_ledger_topic,
    check_same_ledger,
    ledger_partition,
)
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC as LEDGER_TOPIC
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.client.asking import RETRY_PAUSE_S, Asker, Rules
from kafka_ordered_ops.kafka.client.calls import within
from kafka_ordered_ops.kafka.client.errors import UNKNOWN_TOPIC, FaultReasons, translate
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S, Lookup
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.kafka.topic_creation import TopicCreation, number_of

_log = logging.getLogger("kafka_ordered_ops.ledger")

#: How many different warnings a process remembers.
_WARNINGS_MAX: Final = 64

_Fact = TypeVar("_Fact")


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
        """The topic's id in Kafka's text form; None until the topic was opened, and while it does not exist."""
        return self._id

    def partition_of(self, group_id: str) -> TopicPartition:
        """Return the partition with all of a group's records."""
        return ledger_partition(self.name, group_id)

    def open(self, *, create: bool) -> bool:
        """Find the ledger topic, or create it; return whether it exists."""
        if self._id is not None:
            return True
        try:
            facts = self._lookup.topics([self.name])[self.name]
        except UnknownTopicError:
            if not create:
                return False
            self._create()
            facts = self._await_topic()
        check_ledger_topic(facts)
        self._check_kept(facts.topic_id)
        self._id = facts.topic_id
        return True

    def check_same(self) -> None:
        """Raise `LedgerLostError` if the topic is not the one that was opened."""
        try:
            topic_id = self._lookup.topics([self.name])[self.name].topic_id
        except UnknownTopicError:
            topic_id = None
        check_same_ledger(self.name, opened_id=self._id, found_id=topic_id)

    def _create(self) -> None:
        """Create the topic with the number of replicas that suits the cluster, or not at all."""
        replicas = self._creation(Asker(self._settings, self._reasons)).missing_replicas(
            self.name, LEDGER_PARTITIONS, LEDGER_CONFIG, self._uncreatable
        )
        if replicas is not None:
            raise LedgerUnavailableError(
                f"the ledger topic {self.name} does not exist, and too few brokers are up to create it with "
                f"{replicas} replicas. Nothing is stored; run the same command again when all brokers are "
                f"up, or create it with {LEDGER_PARTITIONS} partitions and cleanup.policy=compact"
            )

    def _creation(self, asker: Asker) -> TopicCreation:
        return TopicCreation(asker, self._translated, TIMEOUT_S)

    def _await_topic(self) -> TopicFacts:
        """Return the topic that was just created: the brokers learn of it one by one."""
        deadline = within(TIMEOUT_S)
        while True:
            try:
                return self._lookup.topics([self.name])[self.name]
            except UnknownTopicError as error:
                if deadline.is_over:
                    raise LedgerUnavailableError(
                        f"the ledger topic {self.name} was created, and the brokers do not know it yet. "
                        "Run the same command again"
                    ) from error
                time.sleep(RETRY_PAUSE_S)

    def _uncreatable(self, error: KafkaException, doing: str) -> KafkaOrderedOpsError:
        cause = self._translated(error, doing)
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

    def _check_kept(self, topic_id: str) -> None:
        """Refuse a topic that does not keep progress, and warn of one that may be lost with a broker."""
        asker = Asker(self._settings, self._reasons)
        config = self._creation(asker).config(ConfigResource(ResourceType.TOPIC, self.name))
        if config is None:
            _log.warning(
                "reading the configuration of %s is not allowed, so its cleanup.policy and min.insync.replicas are not checked: "
                "grant this principal DESCRIBE_CONFIGS on the topic",
                self.name,
            )
            min_in_sync = None
        else:
            check_ledger_policy(self.name, config["cleanup.policy"].value)
            min_in_sync = number_of(config.get("min.insync.replicas"))
        replicas = self._request_fact(
            asker,
            lambda timeout_s: asker.admin.describe_topics(
                TopicCollection([self.name]), request_timeout=timeout_s
            )[self.name],
            _replicas_of,
        )
        up = self._request_fact(
            asker,
            lambda timeout_s: asker.admin.describe_cluster(request_timeout=timeout_s),
            lambda cluster: frozenset(node.id for node in cluster.nodes),
        )
        replication = Replication(self.name, up.union(*replicas), replicas, min_in_sync)
        for fault in replication.faults(self._settings.bootstrap_servers):
            _warn_once(topic_id, fault)

    def _request_fact(
        self,
        asker: Asker,
        ask: Callable[[float], Future[Any]],
        fact: Callable[[Any], _Fact],
    ) -> _Fact:
        """Return the answer to a request about the topic, which some brokers may not know yet."""
        facts, _ = asker.ask(
            f"reading the replicas of {self.name}",
            [self.name],
            lambda _, timeout_s: {self.name: ask(timeout_s)},
            fact,
            Rules(passing=UNKNOWN_TOPIC),
            TIMEOUT_S,
        )
        return facts[self.name]

    def _translated(self, error: KafkaException, doing: str) -> KafkaOrderedOpsError:
        return translate(error, doing=doing, where=self.name, reasons=self._reasons)


def _replicas_of(description: Any) -> tuple[tuple[int, ...], ...]:
    partitions = sorted(description.partitions, key=lambda partition: partition.id)
    return tuple(tuple(node.id for node in partition.replicas) for partition in partitions)


@lru_cache(maxsize=_WARNINGS_MAX)
def _warn_once(topic_id: str, fault: str) -> None:
    """Log a warning once for each ledger in this process."""
    _log.warning("%s", fault)
