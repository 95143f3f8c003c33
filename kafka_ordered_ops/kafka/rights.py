"""Which rights are missing: asked by calls that answer at once, and change nothing that anybody reads.

A commit without the right to its group hangs for most of a minute and then says that it timed out; asked like
this, the cluster says what is wrong in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka.admin import AclOperation, NewTopic

from kafka_ordered_ops.core.errors import AuthorizationError
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_PARTITIONS
from kafka_ordered_ops.core.rights import MissingRight, Resource
from kafka_ordered_ops.kafka.client.answers import text_id
from kafka_ordered_ops.kafka.client.asking import Asker, Rules
from kafka_ordered_ops.kafka.client.calls import within
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client, translate
from kafka_ordered_ops.kafka.ledger.ledger import TRANSACTIONAL_PREFIX
from kafka_ordered_ops.kafka.settings import ClientSettings

_NOT_THERE: Final = frozenset(
    {
        ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
        ck.KafkaError._UNKNOWN_TOPIC,
        ck.KafkaError.GROUP_ID_NOT_FOUND,
    }
)


_REFUSALS_TOO: Final = Rules(refusals_too=True)


class RightsCheck:
    """Asks one cluster about this principal's rights.

    Every method raises the `BrokerError` family within `timeout_s`.
    """

    def __init__(self, settings: ClientSettings, *, timeout_s: float) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._reasons = FaultReasons(settings.secret_values())
        self._asker = Asker(settings, self._reasons)

    def cluster_id(self) -> str:
        """The cluster's id: it is reached, and lets this principal in."""
        doing = "asking for the cluster id"
        where = self._settings.bootstrap_servers
        found, _ = self._asker.ask(
            doing,
            [where],
            lambda _, timeout_s: {
                where: self._asker.admin.describe_cluster(request_timeout=timeout_s)
            },
            lambda answer: text_id(answer.cluster_id),
            Rules(),
            self._timeout_s,
        )
        return found[where]

    def missing_on_group(self, group_id: str) -> list[MissingRight]:
        """READ, when it is missing: progress is committed to the group."""
        doing = "asking for the rights on the group"
        answer, error = self._ask(
            doing,
            group_id,
            lambda timeout_s: self._asker.admin.describe_consumer_groups(
                [group_id], include_authorized_operations=True, request_timeout=timeout_s
            )[group_id],
        )
        allowed = self._allowed(answer, error, doing, group_id)
        return _missing(allowed, [AclOperation.READ], Resource.GROUP, group_id)

    def missing_on_ledger(self, topic: str) -> list[MissingRight]:
        """READ and WRITE on the ledger's topic, or CREATE where there is none yet."""
        doing = "asking for the rights on the ledger's topic"
        answer, error = self._ask(
            doing,
            topic,
            lambda timeout_s: self._asker.admin.describe_topics(
                ck.TopicCollection([topic]),
                include_authorized_operations=True,
                request_timeout=timeout_s,
            )[topic],
        )
        if error is not None and error.args[0].code() in _NOT_THERE:
            return self._missing_to_create(topic)
        allowed = self._allowed(answer, error, doing, topic)
        return _missing(allowed, [AclOperation.READ, AclOperation.WRITE], Resource.TOPIC, topic)

    def missing_on_transactions(self) -> list[MissingRight]:
        """WRITE on transactional ids, when it is missing; tried with an id that no group has."""
        doing = "starting a transactional producer"
        name = f"{TRANSACTIONAL_PREFIX}rights"
        producer = open_client(
            ck.Producer, self._settings.producer(transactional_id=name), self._reasons
        )
        try:
            producer.init_transactions(max(within(self._timeout_s).left_s, 0.5))
        except ck.KafkaException as error:
            self._raise_unless_refused(error, doing, name)
            return [
                MissingRight(
                    (AclOperation.WRITE.name,),
                    Resource.TRANSACTIONAL_ID,
                    TRANSACTIONAL_PREFIX,
                    is_prefix=True,
                )
            ]
        return []

    def _missing_to_create(self, topic: str) -> list[MissingRight]:
        doing = "asking for the right to create the ledger's topic"
        _, error = self._ask(
            doing,
            topic,
            lambda timeout_s: self._asker.admin.create_topics(
                [NewTopic(topic, num_partitions=LEDGER_PARTITIONS)],
                validate_only=True,
                request_timeout=timeout_s,
            )[topic],
        )
        if error is None or error.args[0].code() == ck.KafkaError.TOPIC_ALREADY_EXISTS:
            return []
        self._raise_unless_refused(error, doing, topic)
        create = (AclOperation.CREATE.name,)
        return [MissingRight(create, Resource.TOPIC, topic, condition="which does not exist yet")]

    def _ask(
        self, doing: str, where: str, ask: Callable[[float], Future[Any]]
    ) -> tuple[Any, ck.KafkaException | None]:
        """The answer, or the broker's refusal; what passes by itself, a coordinator that loads, is asked again."""
        found, refused = self._asker.ask(
            doing,
            [where],
            lambda _, timeout_s: {where: ask(timeout_s)},
            lambda answer: answer,
            _REFUSALS_TOO,
            self._timeout_s,
        )
        return found.get(where), refused.get(where)

    def _allowed(
        self, answer: Any, error: ck.KafkaException | None, doing: str, where: str
    ) -> frozenset[AclOperation]:
        """What this principal may do; nothing, where it may not even ask."""
        if error is None:
            return frozenset(answer.authorized_operations or ())
        self._raise_unless_refused(error, doing, where)
        return frozenset()

    def _raise_unless_refused(self, error: ck.KafkaException, doing: str, where: str) -> None:
        """Raises what is wrong, unless that is a right that is missing."""
        translated = translate(error, doing=doing, where=where, reasons=self._reasons)
        if not isinstance(translated, AuthorizationError):
            raise translated from error


def _missing(
    allowed: frozenset[AclOperation], wanted: Iterable[AclOperation], resource: Resource, name: str
) -> list[MissingRight]:
    names = tuple(one.name for one in wanted if not {one, AclOperation.ALL} & allowed)
    return [MissingRight(names, resource, name)] if names else []
