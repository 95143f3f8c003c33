"""Find missing rights, with requests that are answered at once and have no visible effect.

A commit without the right to its group hangs for most of a minute and then reports a timeout. These requests report the
missing right within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka.admin import AclOperation, NewTopic

from kafka_ordered_ops.core.cluster.cluster_facts import is_selected
from kafka_ordered_ops.core.errors import AuthorizationError
from kafka_ordered_ops.core.errors.rights import MissingRight, Resource, rights_text
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_PARTITIONS, transactional_id
from kafka_ordered_ops.kafka.client.answers import text_id
from kafka_ordered_ops.kafka.client.asking import Asker, Rules
from kafka_ordered_ops.kafka.client.calls import within
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client, translate
from kafka_ordered_ops.kafka.settings import ClientSettings

_NOT_THERE: Final = frozenset(
    {
        ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
        ck.KafkaError._UNKNOWN_TOPIC,
        ck.KafkaError.GROUP_ID_NOT_FOUND,
        # A group that is not a consumer group; see `Lookup.check_kind`.
        ck.KafkaError._INVALID_ARG,
    }
)

#: Longer than a broker allows: it checks the right, refuses the timeout, and leaves running transactions alone. (A broker
#: that allows even this fences a running change, which starts over.)
_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1_000

_REFUSALS_TOO: Final = Rules(refusals_too=True)

#: The answers and the refusals by name.
_Answers = tuple[dict[str, Any], dict[str, ck.KafkaException]]


class RightsCheck:
    """Request this principal's rights from one cluster.

    Every method raises the `BrokerError` family within `timeout_s`.
    """

    def __init__(self, settings: ClientSettings, *, timeout_s: float) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._reasons = FaultReasons(settings.secret_values())
        self._asker = Asker(settings, self._reasons)

    def cluster_id(self) -> str:
        """Return the cluster's id, which proves that it is reachable and accepts this principal."""
        doing = "asking for the cluster id"
        where = self._settings.bootstrap_servers
        ids, _ = self._asker.ask(
            doing,
            [where],
            lambda _, timeout_s: {
                where: self._asker.admin.describe_cluster(request_timeout=timeout_s)
            },
            lambda answer: text_id(answer.cluster_id),
            Rules(),
            self._timeout_s,
        )
        return ids[where]

    def missing_on_group(self, group_id: str, *, changes: bool) -> list[MissingRight]:
        """Return the missing rights on the group: READ to commit progress, DESCRIBE to see it."""
        doing = "asking for the rights on the group"
        answers, refused = self._ask(
            doing,
            [group_id],
            lambda groups, timeout_s: self._asker.admin.describe_consumer_groups(
                groups, include_authorized_operations=True, request_timeout=timeout_s
            ),
        )
        allowed = self._allowed(answers, refused, doing, group_id)
        operation = AclOperation.READ if changes else AclOperation.DESCRIBE
        return _missing(allowed, [operation], Resource.GROUP, group_id)

    def missing_on_topics(
        self, topics: Iterable[str], patterns: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> list[MissingRight]:
        """Return the missing READ on topics, also by patterns; patterns match topics that this principal may describe."""
        names = set(topics)
        if patterns:
            listed = self._asker.listing(self._timeout_s)
            names.update(topic for topic in listed if is_selected(topic, patterns, exclude))
        doing = "asking for the rights on topics"
        answers, refused = self._describe_topics(doing, sorted(names))
        missing = []
        for name in sorted(names):
            allowed = self._allowed(answers, refused, doing, name)
            missing += _missing(allowed, [AclOperation.READ], Resource.TOPIC, name)
        return missing

    def missing_to_write(self, topic: str) -> list[MissingRight]:
        """Return the missing WRITE on an existing topic."""
        doing = "asking for the rights on a topic to be written to"
        answers, refused = self._describe_topics(doing, [topic])
        allowed = self._allowed(answers, refused, doing, topic)
        return _missing(allowed, [AclOperation.WRITE], Resource.TOPIC, topic)

    def missing_on_ledger(self, topic: str, *, changes: bool) -> list[MissingRight]:
        """Return the missing READ and, with `changes`, WRITE on the ledger's topic; for CREATE see `missing_to_create`."""
        doing = "asking for the rights on the ledger's topic"
        answers, refused = self._describe_topics(doing, [topic])
        allowed = self._allowed(answers, refused, doing, topic)
        operations = [AclOperation.READ, *([AclOperation.WRITE] if changes else [])]
        return _missing(allowed, operations, Resource.TOPIC, topic)

    def missing_to_create(self, topic: str) -> list[MissingRight]:
        """Return the missing CREATE, if there is no ledger or this principal may not describe it."""
        answers, refused = self._describe_topics("asking for the ledger's topic", [topic])
        if topic in answers:
            return []
        doing = "asking for the right to create the ledger's topic"
        _, uncreatable = self._ask(
            doing,
            [topic],
            lambda names, timeout_s: self._asker.admin.create_topics(
                [NewTopic(name, num_partitions=LEDGER_PARTITIONS) for name in names],
                validate_only=True,
                request_timeout=timeout_s,
            ),
        )
        error = uncreatable.get(topic)
        if error is None or error.args[0].code() == ck.KafkaError.TOPIC_ALREADY_EXISTS:
            return []
        self._raise_unless_refused(error, doing, topic)
        is_absent = refused[topic].args[0].code() in _NOT_THERE
        condition = "which does not exist yet" if is_absent else "unless it exists"
        create = (AclOperation.CREATE.name,)
        return [MissingRight(create, Resource.TOPIC, topic, condition=condition)]

    def missing_on_transactions(self, cluster_id: str, group_id: str) -> list[MissingRight]:
        """Return the missing WRITE on the group's transactional id; running changes are not disturbed."""
        doing, right = (
            "asking for the right on transactions",
            right_on_transactions(cluster_id, group_id),
        )
        config = self._settings.producer(
            transactional_id=right.name, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS
        )
        producer = open_client(ck.Producer, config, self._reasons)
        try:
            producer.init_transactions(max(within(self._timeout_s).left_s, 0.5))
        except ck.KafkaException as error:
            if error.args[0].code() == ck.KafkaError.INVALID_TRANSACTION_TIMEOUT:
                return []
            self._raise_unless_refused(error, doing, right.name)
            return [right]
        return []

    def _describe_topics(self, doing: str, names: Sequence[str]) -> _Answers:
        return self._ask(
            doing,
            names,
            lambda names, timeout_s: self._asker.admin.describe_topics(
                ck.TopicCollection(names),
                include_authorized_operations=True,
                request_timeout=timeout_s,
            ),
        )

    def _ask(
        self,
        doing: str,
        names: Sequence[str],
        ask: Callable[[list[str], float], Mapping[str, Future[Any]]],
    ) -> _Answers:
        """Return the answers and the broker's refusals; retry after temporary errors, such as a loading coordinator."""
        return self._asker.ask(
            doing, names, ask, lambda answer: answer, _REFUSALS_TOO, self._timeout_s
        )

    def _allowed(
        self,
        answers: Mapping[str, Any],
        refused: Mapping[str, ck.KafkaException],
        doing: str,
        name: str,
    ) -> frozenset[AclOperation]:
        """Return this principal's rights: none if it may not describe the resource; all if the cluster does not report them."""
        if (error := refused.get(name)) is None:
            return frozenset(answers[name].authorized_operations or {AclOperation.ALL})
        if error.args[0].code() in _NOT_THERE:
            return frozenset({AclOperation.ALL})
        self._raise_unless_refused(error, doing, name)
        return frozenset()

    def _raise_unless_refused(self, error: ck.KafkaException, doing: str, where: str) -> None:
        """Raise the error unless it is a missing right."""
        translated = translate(error, doing=doing, where=where, reasons=self._reasons)
        if not isinstance(translated, AuthorizationError):
            raise translated from error


def check_may_write(settings: ClientSettings, topic: str, *, timeout_s: float) -> None:
    """Raise `AuthorizationError` if this principal may not write to an existing topic."""
    if settings.memory_name is not None:
        return
    if missing := RightsCheck(settings, timeout_s=timeout_s).missing_to_write(topic):
        raise AuthorizationError(
            f"records are to be written to topic {topic}, and this principal lacks {rights_text(missing)}: grant it",
            code=ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED).name(),
            missing=missing,
        )


def right_on_transactions(cluster_id: str, group_id: str) -> MissingRight:
    """Return the right that a change of the group needs; it is useless for any other group."""
    name = transactional_id(cluster_id, group_id)
    return MissingRight((AclOperation.WRITE.name,), Resource.TRANSACTIONAL_ID, name)


def _missing(
    allowed: Collection[AclOperation],
    operations: Iterable[AclOperation],
    resource: Resource,
    name: str,
) -> list[MissingRight]:
    names = tuple(
        operation.name
        for operation in operations
        if operation not in allowed and AclOperation.ALL not in allowed
    )
    return [MissingRight(names, resource, name)] if names else []
