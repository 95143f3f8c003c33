"""Look up the cluster's current state: topics, log starts, end offsets, offsets by time, group members.

Every request is one admin call for all partitions, and creates nothing. A metadata request *for one topic* creates the
topic on a broker with default settings, so only the describe calls and the listing of the whole cluster are used.
`kafka.client.answers` converts the client's answers to facts; without a usable answer, the request is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from kafka_ordered_ops.core.arguments import DefaultTimeout
from kafka_ordered_ops.core.cluster.cluster_facts import (
    LogClaim,
    LogEnd,
    check_group_empty,
    check_partitions_exist,
    group_of_other_kind,
    is_pattern,
    matching_topics,
    unknown_topics,
)
from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts as TopicFacts
from kafka_ordered_ops.core.cluster.names import check_group, check_topic, check_topic_names
from kafka_ordered_ops.core.errors import (
    BrokerError,
    KafkaOrderedOpsError,
    UnknownTopicError,
    invariant,
)
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client import answers
from kafka_ordered_ops.kafka.client.asking import Asker, Rules
from kafka_ordered_ops.kafka.client.errors import UNKNOWN_TOPIC, FaultReasons
from kafka_ordered_ops.kafka.client.librdkafka import library
from kafka_ordered_ops.kafka.epochs import diverged
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The time limit of a whole look-up; within it, requests are repeated after temporary errors.
TIMEOUT_S: Final = DefaultTimeout(30.0)
#: How long the request for an unknown topic is repeated: right after its creation, a broker may not know it yet. A longer
#: time would make every mistyped name slow.
UNKNOWN_NAME_RETRY_S: Final = 0.3
#: How many partitions' replicas are remembered as brokers, which covers nearly all brokers.
_NAMED_MAX: Final = 20
#: The product of partitions and times in one round of requests: enough to hide the latency, and no more than a broker can
#: answer within a second.
_LOOKUPS_AT_ONCE: Final = 2_000

_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_GREATEST: Final[OffsetSpec] = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]

#: Codes for an unsupported request: the client detects it by the versions, or the broker reports it.
_NOT_SUPPORTED: Final = ("_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION")

_Key = TypeVar("_Key")
_Fact = TypeVar("_Fact")


class _AtTime(NamedTuple):
    """The look-up of one time in one partition."""

    tp: TopicPartition
    time_ms: int

    def __str__(self) -> str:
        return str(self.tp)


_ANYTHING: Final = Rules()
_TOPIC: Final = Rules(UNKNOWN_TOPIC, UNKNOWN_NAME_RETRY_S)
#: For existing partitions: a leader election may take as long as the whole look-up.
_LEADER: Final = Rules(passing=UNKNOWN_TOPIC)
#: Newer brokers return "no such group" instead of describing a dead one. The client reports other programs' groups, such as
#: Kafka Connect's, as an invalid argument.
_GROUP: Final = Rules(frozenset({ck.KafkaError.GROUP_ID_NOT_FOUND, ck.KafkaError._INVALID_ARG}))
#: Retried while some brokers have not answered, because the group may be theirs.
_LISTED: Final = Rules(passing=frozenset({ck.KafkaError._PARTIAL}))
#: Kinds of groups that the client describes; empty for a kind that the brokers do not describe to it.
_CONSUMERS: Final = ("consumer", "")
#: Pauses before retries: a group may be created or removed between its description and the list.
_REGROUP_PAUSES_S: Final = (0.1, 0.3)


class Lookup:
    """Requests to one cluster. A context manager; not thread safe.

    Every method raises the `BrokerError` family within `timeout_s`, and earlier if the broker refuses the credentials or
    the TLS handshake fails.
    """

    def __init__(self, settings: ClientSettings, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._settings = settings
        self._where = settings.bootstrap_servers
        self._reasons = FaultReasons(settings.secret_values())
        self._asker = Asker(settings, self._reasons)

    def __enter__(self) -> Lookup:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client."""
        self._asker.close()

    @property
    def _admin(self) -> AdminClient:
        return self._asker.admin

    def cluster_id(self) -> str:
        """Return the cluster's id."""

        def fact(answer: Any) -> str:
            self._asker.knows(answer.nodes)
            return answers.text_id(answer.cluster_id)

        ids, _ = self._ask(
            "asking for the cluster id",
            [self._where],
            lambda _, timeout: {self._where: self._admin.describe_cluster(request_timeout=timeout)},
            fact,
            _ANYTHING,
        )
        return ids[self._where]

    def topics(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Describe topics by name.

        Raises one `UnknownTopicError` with all missing topics and the most similar names, and `ConfigError` for an invalid
        name.
        """
        names = list(dict.fromkeys(names))
        check_topic_names(names)
        facts, unknown = self._ask(
            "describing topics",
            names,
            lambda batch, timeout: self._admin.describe_topics(
                ck.TopicCollection(batch), request_timeout=timeout
            ),
            self._facts_of,
            _TOPIC,
        )
        if unknown:
            raise self._unknown(sorted(unknown))
        return facts

    def existing(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Describe the topics that exist."""
        requested = set(names)
        try:
            return self.topics(requested)
        except UnknownTopicError as error:
            remaining = requested - set(error.topics)
            return self.topics(remaining) if remaining else {}

    def matching(self, patterns: Iterable[str], exclude: Iterable[str] = ()) -> list[str]:
        """Return the topics that the names and patterns select, without the excluded ones, sorted.

        A name that begins with ``^`` is a Python regular expression for the whole name. Patterns never match internal
        topics, whose names begin with ``__``; a plain name may. Topics that this principal may not describe are ignored.

        Raises `UnknownTopicError` if no topic is left, or a plain name does not exist.
        """
        patterns, exclude = list(patterns), list(exclude)
        for name in (*patterns, *exclude):
            check_topic(name, what="topics")
        return matching_topics(patterns, exclude, self._listed())

    def selected(self, names: Sequence[str], exclude: Sequence[str] = ()) -> dict[str, TopicFacts]:
        """Describe the topics that names and patterns select; raise `UnknownTopicError`."""
        if exclude or any(is_pattern(name) for name in names):
            names = self.matching(names, exclude)
        return self.topics(names)

    def log_starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset still in each log; for an empty log, its end."""
        return self._offsets("log starts", partitions, _EARLIEST, _end)

    def end_offsets(
        self, partitions: Collection[TopicPartition], isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Return the current ends for reading: the last stable offset under read_committed, otherwise the high watermark."""
        return self._offsets("end offsets", partitions, _LATEST, _end, isolation)

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Return the high watermarks, with the epochs of the leaders that reported them."""
        return self._offsets("end offsets", partitions, _LATEST, _log_end)

    def diverged(
        self, group_id: str, claims: Mapping[TopicPartition, LogClaim]
    ) -> dict[TopicPartition, int]:
        """See `kafka.epochs.diverged`."""
        return diverged(self._settings, group_id, claims, timeout_s=self._timeout_s)

    def first_at_or_after(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, isolation: Isolation
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset stamped at or after a time; None if there is none below the end offset.

        This is an answer of the index: it includes transaction markers and aborted records, and later offsets may still
        have earlier timestamps. `timestamp_ms` is not negative.
        """
        # -1, -2 and -3 would ask the broker for the end, the start and the greatest timestamp.
        invariant(timestamp_ms >= 0, f"a look-up by the negative timestamp {timestamp_ms}")
        spec = OffsetSpec.for_timestamp(timestamp_ms)
        return self._offsets("offsets by time", partitions, spec, _by_time, isolation)

    def first_at_or_after_each(
        self,
        partitions: Collection[TopicPartition],
        timestamps_ms: Iterable[int],
        isolation: Isolation,
    ) -> dict[int, dict[TopicPartition, int | None]]:
        """Run `first_at_or_after` for several times in parallel."""
        times = list(dict.fromkeys(timestamps_ms))
        at_once = max(1, _LOOKUPS_AT_ONCE // max(1, len(partitions)))
        offsets: dict[int, dict[TopicPartition, int | None]] = {}
        for at in range(0, len(times), at_once):
            batch = times[at : at + at_once]
            if len(batch) > 1:
                offsets |= self._at_times(partitions, batch, isolation)
            else:
                offsets[batch[0]] = self.first_at_or_after(partitions, batch[0], isolation)
        return offsets

    def _at_times(
        self, partitions: Collection[TopicPartition], times_ms: Sequence[int], isolation: Isolation
    ) -> dict[int, dict[TopicPartition, int | None]]:
        def ask(batch: list[_AtTime], timeout: float) -> dict[_AtTime, Future[Any]]:
            by_time: dict[int, list[TopicPartition]] = {}
            for key in batch:
                by_time.setdefault(key.time_ms, []).append(key.tp)
            return {
                _AtTime(tp, time_ms): future
                for time_ms, tps in by_time.items()
                for tp, future in self._list_offsets(
                    tps, OffsetSpec.for_timestamp(time_ms), isolation, timeout
                ).items()
            }

        keys = [_AtTime(tp, time_ms) for time_ms in times_ms for tp in partitions]
        offsets, unknown = self._ask("looking up offsets by time", keys, ask, _by_time, _TOPIC)
        # Single requests distinguish partitions without an answer from missing topics.
        alone = {key.time_ms for key in unknown}
        return {
            time_ms: self.first_at_or_after(partitions, time_ms, isolation)
            if time_ms in alone
            else {tp: offsets[_AtTime(tp, time_ms)] for tp in partitions}
            for time_ms in times_ms
        }

    def greatest_timestamps(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Return the greatest timestamp in ms in each log, markers and aborted records included; None for an empty log.

        For display only: brokers before Kafka 3.0 do not support it, and then all are None.
        """
        try:
            return self._offsets("greatest timestamps", partitions, _GREATEST, _greatest)
        except BrokerError as error:
            if error.code not in _NOT_SUPPORTED:
                raise
            return dict.fromkeys(partitions)

    def group_members(self, group_id: str) -> list[str]:
        """Return the live members as ``client id@host (member id)``; empty for an empty, dead or unknown group.

        Raises `GroupInUseError` for a group that is not a consumer group, with or without members.
        """
        check_group(group_id)
        for pause_s in (*_REGROUP_PAUSES_S, None):
            descriptions, _ = self._ask(
                "describing the group",
                [group_id],
                lambda batch, timeout: self._admin.describe_consumer_groups(
                    list(batch), request_timeout=timeout
                ),
                _group_description,
                _GROUP,
            )
            if (members := descriptions.get(group_id)) is not None:
                return sorted(members)
            # The client describes a group of an unknown kind as one that does not exist.
            if (kind := self._listed_kind(group_id)) is None:
                return []
            if pause_s is None or kind not in _CONSUMERS:
                raise group_of_other_kind(group_id, kind)
            # The group was created or removed in between.
            time.sleep(pause_s)
        raise AssertionError("the last look decides")

    def _listed_kind(self, group_id: str) -> str | None:
        """Return the kind of a group in the brokers' lists, empty if they do not report it; None if it is not listed."""

        def ask(_: list[str], timeout_s: float) -> dict[str, Future[Any]]:
            listed: Future[Any] = Future()
            try:
                client = library()
                handle = client.handle_of(self._admin, "producer")
                listed.set_result(client.protocols_of(handle, group_id, timeout_s))
            except ck.KafkaException as error:
                listed.set_exception(error)
            return {group_id: listed}

        kinds, _ = self._ask(
            "listing groups",
            [group_id],
            ask,
            lambda protocols: protocols[0] if protocols else None,
            _LISTED,
        )
        return kinds[group_id]

    def check_kind(self, group_id: str) -> None:
        """Raise `GroupInUseError` for a group that is not a consumer group: its program cannot share it."""
        self.group_members(group_id)

    def check_no_members(self, group_id: str) -> None:
        """Raise `GroupInUseError` if the group has live members, which a window's commit would bypass."""
        check_group_empty(group_id, self.group_members(group_id))

    def _offsets(
        self,
        what: str,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        fact: Callable[[ListOffsetsResultInfo], _Fact],
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, _Fact]:
        def ask(batch: list[TopicPartition], timeout: float) -> dict[TopicPartition, Future[Any]]:
            return self._list_offsets(batch, spec, isolation, timeout)

        doing = f"looking up {what}"
        facts, unknown = self._ask(doing, partitions, ask, fact, _TOPIC)
        if unknown:
            self._check_existence(unknown)
            late, _ = self._ask(doing, unknown, ask, fact, _LEADER)
            facts |= late
        return {tp: facts[tp] for tp in partitions}

    def _list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        isolation: Isolation,
        timeout_s: float,
    ) -> dict[TopicPartition, Future[Any]]:
        level = (
            ck.IsolationLevel.READ_COMMITTED
            if isolation is Isolation.READ_COMMITTED
            else ck.IsolationLevel.READ_UNCOMMITTED
        )
        partitions = list(partitions)
        check_topic_names({tp.topic for tp in partitions})
        answers = self._admin.list_offsets(
            {ck.TopicPartition(tp.topic, tp.partition): spec for tp in partitions},
            isolation_level=level,
            request_timeout=timeout_s,
        )
        return {TopicPartition(tp.topic, tp.partition): future for tp, future in answers.items()}

    def _check_existence(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise the error of describing the topics if they do not exist, or may not be described.

        The offset look-up itself returns "no leader" in all these cases.
        """
        partitions = list(partitions)
        check_partitions_exist(partitions, self.topics({tp.topic for tp in partitions}))

    def _listed(self) -> frozenset[str]:
        return self._asker.listing(self._timeout_s)

    def _unknown(self, names: list[str]) -> UnknownTopicError:
        listed: Collection[str] = ()
        with suppress(KafkaOrderedOpsError):  # An error with only the names is still better.
            listed = self._listed()
        return unknown_topics(names, listed)

    def _ask(
        self,
        doing: str,
        keys: Iterable[_Key],
        ask: Callable[[list[_Key], float], Mapping[_Key, Future[Any]]],
        fact: Callable[[Any], _Fact],
        rules: Rules,
    ) -> tuple[dict[_Key, _Fact], dict[_Key, ck.KafkaException]]:
        return self._asker.ask(doing, keys, ask, fact, rules, self._timeout_s)

    def _facts_of(self, answer: Any) -> TopicFacts:
        """Return the facts of a topic from its description."""
        for part in answer.partitions[:_NAMED_MAX]:
            self._asker.knows(part.replicas)
        return TopicFacts(
            answer.name,
            # In the form of Kafka's own tools: the client uses the other base64 alphabet.
            answers.text_id(answer.topic_id).replace("+", "-").replace("/", "_"),
            tuple(sorted(part.id for part in answer.partitions)),
        )


def _group_description(answer: Any) -> list[str] | None:
    """Return the live members; None for a group that the client reports as dead."""
    if answer.state is ck.ConsumerGroupState.DEAD and not answer.members:
        return None
    return [f"{member.client_id}@{member.host} ({member.member_id})" for member in answer.members]


def _end(answer: ListOffsetsResultInfo) -> int:
    return answers.offset(answer.offset)


def _log_end(answer: ListOffsetsResultInfo) -> LogEnd:
    return LogEnd(_end(answer), answers.leader_epoch(answer.leader_epoch))


def _by_time(answer: ListOffsetsResultInfo) -> int | None:
    return answers.offset_by_time(answer.offset)


def _greatest(answer: ListOffsetsResultInfo) -> int | None:
    """Return the timestamp; None for an empty log, or if its records have none."""
    offset = answers.offset_by_time(answer.offset)
    return None if offset is None or answer.timestamp < 0 else int(answer.timestamp)
