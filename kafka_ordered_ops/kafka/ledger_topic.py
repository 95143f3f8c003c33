"""The ledger's topic: found, made, and checked to be what progress can be trusted to."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    ConfigEntry,
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
from kafka_ordered_ops.core.facts import TopicFacts
from kafka_ordered_ops.core.ledger_rules import (
    LEDGER_PARTITIONS,
    LEDGER_REPLICAS,
    Replication,
    check_ledger_policy,
    check_ledger_topic,
    check_same_ledger,
    ledger_config,
    ledger_partition,
    ledger_replicas,
)
from kafka_ordered_ops.core.ledger_rules import LEDGER_TOPIC as LEDGER_TOPIC
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.asking import RETRY_PAUSE_S
from kafka_ordered_ops.kafka.calls import within
from kafka_ordered_ops.kafka.faults import FaultReasons, open_client, translate, wait_for
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.settings import ClientSettings

_log = logging.getLogger("kafka_ordered_ops.ledger")

#: One question to the cluster.
_CALL_TIMEOUT_S: Final = 15.0

#: Different warnings that a process remembers to have given.
_WARNINGS_MAX: Final = 64


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
            facts = self._known()
        check_ledger_topic(facts)
        self._check_kept(facts.topic_id)
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
        """Makes the topic with as many replicas as the cluster should give it, or not at all.

        A ledger is made once: one that is made while a broker is down must not be short of a replica for ever.
        """
        doing = f"creating the ledger topic {self.name}"
        admin = open_client(AdminClient, self._settings.admin(), self._reasons)
        try:
            # A cluster that knows three brokers makes three replicas of it, also while one of them is down.
            if not self._made(admin, LEDGER_REPLICAS, doing):
                replicas = self._replicas(admin, doing)
                if replicas == LEDGER_REPLICAS or not self._made(admin, replicas, doing):
                    raise LedgerUnavailableError(
                        f"the ledger topic {self.name} does not exist, and too few brokers are up to create it with "
                        f"{replicas} replicas. Nothing is stored; run the same command again when all brokers are "
                        f"up, or create it with {LEDGER_PARTITIONS} partitions and cleanup.policy=compact"
                    )
        except KafkaException as error:
            raise self._uncreatable(error, doing) from error

    def _made(self, admin: AdminClient, replicas: int, doing: str) -> bool:
        """Whether the topic is there now; False where the brokers are too few for so many replicas."""
        new = NewTopic(
            self.name,
            num_partitions=LEDGER_PARTITIONS,
            replication_factor=replicas,
            config=ledger_config(replicas),
        )
        futures = admin.create_topics([new], request_timeout=_CALL_TIMEOUT_S)
        self._await(admin, futures.values(), doing)
        try:
            futures[self.name].result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.INVALID_REPLICATION_FACTOR:
                return False
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return True

    def _replicas(self, admin: AdminClient, doing: str) -> int:
        """How many replicas a new ledger should have, where three are refused.

        Of brokers that are down only their replicas tell, and how many replicas the cluster makes of its own
        transactions, which are as dear.
        """
        found = admin.list_topics(timeout=within(_CALL_TIMEOUT_S).left_s)
        brokers = set(found.brokers)
        for topic in found.topics.values():
            for partition in topic.partitions.values():
                brokers.update(partition.replicas)
        resource = ConfigResource(ResourceType.BROKER, str(min(found.brokers)))
        futures = admin.describe_configs([resource], request_timeout=_CALL_TIMEOUT_S)
        self._await(admin, futures.values(), doing)
        try:
            setting = futures[resource].result().get("transaction.state.log.replication.factor")
        except KafkaException as error:
            if error.args[0].code() != KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                raise
            setting = None
        return ledger_replicas(brokers=len(brokers), wanted=_number(setting) or 0)

    def _known(self) -> TopicFacts:
        """The topic that was just made: its name spreads over the brokers one by one."""
        deadline = within(_CALL_TIMEOUT_S)
        while True:
            try:
                return self._lookup.topics([self.name])[self.name]
            except UnknownTopicError as error:
                if deadline.is_over:
                    raise LedgerUnavailableError(
                        f"the ledger topic {self.name} was created, and the brokers do not know it after "
                        f"{_CALL_TIMEOUT_S:g} s. Run the same command again"
                    ) from error
                time.sleep(RETRY_PAUSE_S)

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

    def _check_kept(self, topic_id: str) -> None:
        """Refuses a topic that forgets progress in time, and warns of one that a lost broker may take along."""
        admin = open_client(AdminClient, self._settings.admin(), self._reasons)
        doing = f"reading the configuration of {self.name}"
        resource = ConfigResource(ResourceType.TOPIC, self.name)
        configs = admin.describe_configs([resource], request_timeout=_CALL_TIMEOUT_S)
        topics = admin.describe_topics(
            TopicCollection([self.name]), request_timeout=_CALL_TIMEOUT_S
        )
        cluster = admin.describe_cluster(request_timeout=_CALL_TIMEOUT_S)
        self._await(admin, [*configs.values(), *topics.values(), cluster], doing)
        min_in_sync: int | None = None
        try:
            found = configs[resource].result()
            check_ledger_policy(self.name, found["cleanup.policy"].value)
            min_in_sync = _number(found.get("min.insync.replicas"))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise translate(
                    error, doing=doing, where=self.name, reasons=self._reasons
                ) from error
            _log.warning("%s is not allowed; its cleanup.policy is not checked", doing)
        try:
            partitions = sorted(topics[self.name].result().partitions, key=lambda one: one.id)
            up = [node.id for node in cluster.result().nodes]
        except KafkaException as error:
            raise translate(error, doing=doing, where=self.name, reasons=self._reasons) from error
        replicas = tuple(tuple(node.id for node in one.replicas) for one in partitions)
        replication = Replication(
            self.name,
            brokers=frozenset(up).union(*replicas),
            replicas=replicas,
            min_in_sync=min_in_sync,
        )
        for fault in replication.faults(self._settings.bootstrap_servers):
            _warn_once(topic_id, fault)

    def _await(self, admin: AdminClient, futures: Iterable[Future[Any]], doing: str) -> None:
        left_s = within(_CALL_TIMEOUT_S).left_s
        wait_for(admin, futures, timeout_s=left_s, doing=doing, reasons=self._reasons)


def _number(setting: ConfigEntry | None) -> int | None:
    """A setting's number; None where the broker names none."""
    value = None if setting is None else setting.value
    return int(value) if value is not None and value.isdecimal() else None


@lru_cache(maxsize=_WARNINGS_MAX)
def _warn_once(topic_id: str, fault: str) -> None:
    """Once for each ledger in this process: every group's ledger opens it."""
    _log.warning("%s", fault)
