"""Create a topic that holds state: with the number of replicas that suits the whole cluster, or not at all.

Such a topic is created once: if it is created while a broker is down, it must not lack a replica forever.
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

#: Translates a refusal of an action to an error.
Translate = Callable[[KafkaException, str], KafkaOrderedOpsError]


class TopicCreation:
    """Create topics.

    Args:
        asker: makes the requests.
        translate: translates the cluster's refusals of requests to errors.
        timeout_s: the time limit of each request.
    """

    def __init__(self, asker: Asker, translate: Translate, timeout_s: float) -> None:
        self._asker, self._translate, self._timeout_s = asker, translate, timeout_s

    def missing_replicas(
        self, name: str, partitions: int, config: Mapping[str, str], refused: Translate
    ) -> int | None:
        """Create a topic if it does not exist; if too few brokers are up, return the number of replicas it needs, else None.

        Args:
            name: the topic.
            partitions: the number of partitions.
            config: the topic's settings, without those that depend on the number of replicas.
            refused: translates a refusal to create the topic to an error.
        """
        # A cluster with three known brokers creates three replicas, even while one broker is down.
        if self._try_to_create(name, partitions, config, LEDGER_REPLICAS, refused):
            return None
        replicas = self._replicas()
        if replicas == LEDGER_REPLICAS:
            return replicas
        return (
            None if self._try_to_create(name, partitions, config, replicas, refused) else replicas
        )

    def config(self, resource: ConfigResource) -> Mapping[str, ConfigEntry] | None:
        """Return a configuration; None if this principal may not read it."""
        doing = f"reading the configuration of {resource.name}"
        configs, refused = self._asker.ask(
            doing,
            [resource],
            lambda batch, timeout_s: self._asker.admin.describe_configs(
                batch, request_timeout=timeout_s
            ),
            _entries,
            Rules(refusals_too=True, passing=UNKNOWN_TOPIC),
            self._timeout_s,
        )
        for error in refused.values():
            if error.args[0].code() not in _NOT_ALLOWED:
                raise self._translate(error, doing) from error
        return configs.get(resource)

    def _try_to_create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str],
        replicas: int,
        refusal: Translate,
    ) -> bool:
        """Create the topic; return False if there are too few brokers for this many replicas."""
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
        """Return how many replicas a new topic should have if three are refused.

        Brokers that are down are only known as replicas of partitions. The number of replicas of the cluster's own
        transactions, which are as valuable, also counts.
        """
        doing = "asking for the size of the cluster"
        try:
            metadata = self._asker.admin.list_topics(timeout=within(self._timeout_s).left_s)
        except KafkaException as error:
            raise self._translate(error, doing) from error
        brokers = set(metadata.brokers)
        for topic in metadata.topics.values():
            for partition in topic.partitions.values():
                brokers.update(partition.replicas)
        config = self.config(ConfigResource(ResourceType.BROKER, str(min(metadata.brokers))))
        replicas = number_of((config or {}).get("transaction.state.log.replication.factor"))
        return ledger_replicas(brokers=len(brokers), wanted=replicas or 0)


def number_of(setting: ConfigEntry | None) -> int | None:
    """Return a setting as a number; None if the broker does not report one."""
    value = None if setting is None else setting.value
    return int(value) if value is not None and value.isdecimal() else None


def _entries(answer: Any) -> Mapping[str, ConfigEntry]:
    entries: Mapping[str, ConfigEntry] = answer
    return entries
