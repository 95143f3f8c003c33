"""Create a topic that holds state: with as many replicas as the whole cluster should give it, or not at all.

Such a topic is made once: one that is made while a broker is down must not be short of a replica for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigEntry, ConfigResource, NewTopic, ResourceType

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.group.ledger_rules import (
    LEDGER_REPLICAS,
    in_sync_config,
    ledger_replicas,
)
from kafka_ordered_ops.kafka.client.asking import Asker, Rules
from kafka_ordered_ops.kafka.client.calls import within
from kafka_ordered_ops.kafka.client.errors import UNKNOWN_TOPIC

_ANSWERS: Final = (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_REPLICATION_FACTOR)
_NOT_ALLOWED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)

#: Turns a refusal into an error, with what was being done.
Translate = Callable[[KafkaException, str], KafkaOrderedOpsError]


class TopicCreation:
    """Creates topics.

    Args:
        asker: makes the requests.
        translate: makes the errors that are raised when the cluster refuses to answer a question.
        timeout_s: for each request.
    """

    def __init__(self, asker: Asker, translate: Translate, timeout_s: float) -> None:
        self._asker, self._translate, self._timeout_s = asker, translate, timeout_s

    def missing_replicas(
        self, name: str, partitions: int, config: Mapping[str, str], refused: Translate
    ) -> int | None:
        """Create a topic, if it is not there; return the number of replicas for which too few brokers are up, or None.

        Args:
            name: of the topic.
            partitions: how many.
            config: its settings, but for those that go with the number of replicas.
            refused: makes the error that is raised when the topic may not be created.
        """
        # A cluster that knows three brokers makes three replicas of it, also while one of them is down.
        if self._made(name, partitions, config, LEDGER_REPLICAS, refused):
            return None
        replicas = self._replicas()
        if replicas == LEDGER_REPLICAS:
            return replicas
        return None if self._made(name, partitions, config, replicas, refused) else replicas

    def config(self, resource: ConfigResource) -> Mapping[str, ConfigEntry] | None:
        """Return a configuration; None where this principal may not read it."""
        doing = f"reading the configuration of {resource.name}"
        found, refused = self._asker.ask(
            doing,
            [resource],
            lambda some, timeout_s: self._asker.admin.describe_configs(
                some, request_timeout=timeout_s
            ),
            _entries,
            Rules(refusals_too=True, passing=UNKNOWN_TOPIC),
            self._timeout_s,
        )
        for error in refused.values():
            if error.args[0].code() not in _NOT_ALLOWED:
                raise self._translate(error, doing) from error
        return found.get(resource)

    def _made(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str],
        replicas: int,
        refusal: Translate,
    ) -> bool:
        """Return whether the topic is there now; False where the brokers are too few for so many replicas."""
        doing = f"creating the topic {name}"
        new = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replicas,
            config={**config, **in_sync_config(replicas)},
        )
        _, refused = self._asker.ask(
            doing,
            [name],
            lambda _, timeout_s: self._asker.admin.create_topics([new], request_timeout=timeout_s),
            lambda _: True,
            Rules(refusals_too=True),
            self._timeout_s,
        )
        error = refused.get(name)
        code = None if error is None else error.args[0].code()
        if error is not None and code not in _ANSWERS:
            raise refusal(error, doing) from error
        return code != KafkaError.INVALID_REPLICATION_FACTOR

    def _replicas(self) -> int:
        """Return how many replicas a new topic should have, where three are refused.

        Only replicas reveal brokers that are down, and the number of replicas of the cluster's own transactions,
        which are as valuable.
        """
        doing = "asking for the size of the cluster"
        try:
            found = self._asker.admin.list_topics(timeout=within(self._timeout_s).left_s)
        except KafkaException as error:
            raise self._translate(error, doing) from error
        brokers = set(found.brokers)
        for topic in found.topics.values():
            for partition in topic.partitions.values():
                brokers.update(partition.replicas)
        config = self.config(ConfigResource(ResourceType.BROKER, str(min(found.brokers))))
        wanted = number_of((config or {}).get("transaction.state.log.replication.factor"))
        return ledger_replicas(brokers=len(brokers), wanted=wanted or 0)


def number_of(setting: ConfigEntry | None) -> int | None:
    """Return a setting's number; None where the broker names none."""
    value = None if setting is None else setting.value
    return int(value) if value is not None and value.isdecimal() else None


def _entries(found: Any) -> Mapping[str, ConfigEntry]:
    entries: Mapping[str, ConfigEntry] = found
    return entries
