"""What the cluster knows now: topics, log starts, end offsets, offsets by time, group members.

Every question is one admin call for all partitions. Asking creates nothing: a metadata request *for one
topic* creates it on a broker with its default settings, so only the describe calls and the listing of the
whole cluster are used. No sentinel leaves this file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from kafka_ordered_ops.core.errors import (
    BrokerError,
    BrokerUnreachableError,
    KafkaOrderedOpsError,
    UnknownTopicError,
    invariant,
)
from kafka_ordered_ops.core.facts import TopicFacts as TopicFacts
from kafka_ordered_ops.core.facts import (
    check_group_empty,
    check_partitions_exist,
    is_pattern,
    matching_topics,
    unknown_topics,
)
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.faults import FaultReasons, open_client, translate, wait_for
from kafka_ordered_ops.kafka.settings import ClientSettings

#: A whole look-up; within it, answers that pass by themselves are asked for again.
TIMEOUT_S: Final = 30.0
#: Metadata spreads over the brokers within some tens of milliseconds after a topic was made or moved.
RETRY_PAUSE_S: Final = 0.1
#: A name that is not known is asked about again this long: right after its creation, a broker may not have
#: heard of it. Longer would make every mistyped name slow.
UNKNOWN_NAME_RETRY_S: Final = 0.3
#: The first listing is given this long, each further one twice as long: the error callback, which tells of
#: a wrong password, runs only between them.
FIRST_LISTING_S: Final = 0.5
#: Partitions times times that are asked about at once: enough to hide the way there and back, and no more
#: than a broker answers within a second.
_LOOKUPS_AT_ONCE: Final = 2_000
#: "No record at or after that time" in the broker's answer.
_NO_OFFSET: Final = -1

_LEADERSHIP_UNSETTLED: Final = frozenset(
    {
        ck.KafkaError.LEADER_NOT_AVAILABLE,
        ck.KafkaError.NOT_LEADER_FOR_PARTITION,
        ck.KafkaError.FENCED_LEADER_EPOCH,
        ck.KafkaError.UNKNOWN_LEADER_EPOCH,
        ck.KafkaError.OFFSET_NOT_AVAILABLE,
        ck.KafkaError.REPLICA_NOT_AVAILABLE,
        ck.KafkaError.KAFKA_STORAGE_ERROR,
    }
)
_COORDINATOR_UNSETTLED: Final = frozenset(
    {
        ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
        ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        ck.KafkaError.NOT_COORDINATOR,
    }
)
_UNKNOWN_TOPIC: Final = frozenset(
    {
        ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
        ck.KafkaError._UNKNOWN_PARTITION,
        ck.KafkaError._UNKNOWN_TOPIC,
        ck.KafkaError._NOENT,
    }
)

_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_GREATEST: Final[OffsetSpec] = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]

#: A broker that does not know a kind of question: the client notices by the versions, or the broker says so.
_NOT_SUPPORTED: Final = ("_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION")

_Key = TypeVar("_Key")


class _AtTime(NamedTuple):
    """One partition asked about one time."""

    tp: TopicPartition
    time_ms: int

    def __str__(self) -> str:
        return str(self.tp)


@dataclass(frozen=True, slots=True)
class _Rules:
    """How the errors among the answers to one question are taken."""

    #: Codes of a state that passes by itself: asked again until the deadline.
    passing: frozenset[int] = frozenset()
    #: Codes for "does not exist": asked again for `unknown_s`, and then an answer.
    unknown: frozenset[int] = frozenset()
    unknown_s: float = 0.0

    def asks_again(self, error: ck.KafkaException, elapsed_s: float, timeout_s: float) -> bool:
        code = error.args[0].code()
        if code in self.unknown:
            return elapsed_s < min(self.unknown_s, timeout_s)
        return code in self.passing and elapsed_s < timeout_s


_CLUSTER_RULES: Final = _Rules()
_TOPIC_RULES: Final = _Rules(_LEADERSHIP_UNSETTLED, _UNKNOWN_TOPIC, UNKNOWN_NAME_RETRY_S)
_LEADER_RULES: Final = _Rules(_LEADERSHIP_UNSETTLED, _UNKNOWN_TOPIC, math.inf)
#: Newer brokers say "no such group" instead of describing a dead one.
_GROUP_RULES: Final = _Rules(_COORDINATOR_UNSETTLED, frozenset({ck.KafkaError.GROUP_ID_NOT_FOUND}))


class Lookup:
    """Asks one cluster. A context manager; not for use by several threads at once.

    Every method raises the `BrokerError` family within `timeout_s`, earlier when the broker refuses the
    credentials or the TLS handshake fails.
    """

    def __init__(self, settings: ClientSettings, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._where = settings.bootstrap_servers
        self._reasons = FaultReasons(settings.secret_values())
        self._admin = open_client(AdminClient, settings.admin(), self._reasons)

    def __enter__(self) -> Lookup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Runs the callbacks that are due; the client itself has no close and goes with its last use."""
        self._admin.poll(0)

    def cluster_id(self) -> str:
        """The cluster's id."""
        answers, _ = self._ask(
            "asking for the cluster id",
            [self._where],
            lambda _, timeout: {self._where: self._admin.describe_cluster(request_timeout=timeout)},
            _CLUSTER_RULES,
        )
        return str(answers[self._where].cluster_id)

    def topics(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Describes topics by name.

        Raises one `UnknownTopicError` naming all that do not exist, with the names nearest to them.
        """
        answers, unknown = self._ask(
            "describing topics",
            dict.fromkeys(names),
            lambda wanted, timeout: self._admin.describe_topics(
                ck.TopicCollection(wanted), request_timeout=timeout
            ),
            _TOPIC_RULES,
        )
        if unknown:
            raise self._unknown(sorted(unknown))
        return {
            name: TopicFacts(
                name,
                _id_text(answer.topic_id),
                tuple(sorted(part.id for part in answer.partitions)),
            )
            for name, answer in answers.items()
        }

    def matching(self, patterns: Iterable[str], exclude: Iterable[str] = ()) -> list[str]:
        """The topics that the names and patterns select, less the excluded ones, sorted.

        A name that begins with ``^`` is a regular expression (Python's) for the whole name. Patterns never
        match internal topics, whose names begin with ``__``; a plain name may. Only topics that this
        principal may describe are seen.

        Raises `UnknownTopicError` when nothing is left, or a plain name does not exist.
        """
        return matching_topics(patterns, exclude, self._listed())

    def selected(self, names: Sequence[str], exclude: Sequence[str] = ()) -> dict[str, TopicFacts]:
        """Describes the topics that the names and patterns mean; raises `UnknownTopicError`."""
        if exclude or any(is_pattern(name) for name in names):
            names = self.matching(names, exclude)
        return self.topics(names)

    def log_starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset still in each log (for an empty log: its end)."""
        found = self._offsets("log starts", partitions, _EARLIEST)
        return {tp: _present(tp, offset) for tp, offset in found.items()}

    def end_offsets(
        self, partitions: Collection[TopicPartition], isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Where reading ends now: the last stable offset under read_committed, else the high watermark."""
        found = self._offsets("end offsets", partitions, _LATEST, isolation)
        return {tp: _present(tp, offset) for tp, offset in found.items()}

    def first_at_or_after(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, isolation: Isolation
    ) -> dict[TopicPartition, int | None]:
        """The first offset stamped at or after a time; None where there is none below the end offset.

        An index answer: it counts transaction markers and aborted records, and later offsets may still
        hold earlier timestamps. `timestamp_ms` is not negative.
        """
        # -1, -2 and -3 would ask the broker for the end, the start and the greatest timestamp.
        invariant(timestamp_ms >= 0, f"a look-up by the negative timestamp {timestamp_ms}")
        spec = OffsetSpec.for_timestamp(timestamp_ms)
        return self._offsets("offsets by time", partitions, spec, isolation)

    def first_at_or_after_each(
        self,
        partitions: Collection[TopicPartition],
        timestamps_ms: Iterable[int],
        isolation: Isolation,
    ) -> dict[int, dict[TopicPartition, int | None]]:
        """`first_at_or_after` for several times; the questions are on their way together."""
        times = list(dict.fromkeys(timestamps_ms))
        at_once = max(1, _LOOKUPS_AT_ONCE // max(1, len(partitions)))
        found: dict[int, dict[TopicPartition, int | None]] = {}
        for at in range(0, len(times), at_once):
            some = times[at : at + at_once]
            if len(some) > 1:
                found |= self._at_times(partitions, some, isolation)
            else:
                found[some[0]] = self.first_at_or_after(partitions, some[0], isolation)
        return found

    def _at_times(
        self, partitions: Collection[TopicPartition], times_ms: Sequence[int], isolation: Isolation
    ) -> dict[int, dict[TopicPartition, int | None]]:
        def ask(wanted: list[_AtTime], timeout: float) -> dict[_AtTime, Future[Any]]:
            asked: dict[int, list[TopicPartition]] = {}
            for one in wanted:
                asked.setdefault(one.time_ms, []).append(one.tp)
            return {
                _AtTime(tp, time_ms): future
                for time_ms, some in asked.items()
                for tp, future in self._list_offsets(
                    some, OffsetSpec.for_timestamp(time_ms), isolation, timeout
                ).items()
            }

        keys = [_AtTime(tp, time_ms) for time_ms in times_ms for tp in partitions]
        answers, unknown = self._ask("looking up offsets by time", keys, ask, _TOPIC_RULES)
        # One by one they are told from those that do not exist.
        alone = {one.time_ms for one in unknown}
        return {
            time_ms: self.first_at_or_after(partitions, time_ms, isolation)
            if time_ms in alone
            else {tp: _offset_of(answers[_AtTime(tp, time_ms)]) for tp in partitions}
            for time_ms in times_ms
        }

    def greatest_timestamps(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """The greatest timestamp in each log (ms), markers and aborted records too; None for an empty log.

        For people: brokers before Kafka 3.0 cannot tell, and then all are None.
        """
        try:
            answers = self._offset_answers("greatest timestamps", partitions, _GREATEST)
        except BrokerError as error:
            if error.code not in _NOT_SUPPORTED:
                raise
            return dict.fromkeys(partitions)
        return {
            tp: None if answer.offset == _NO_OFFSET else int(answer.timestamp)
            for tp, answer in answers.items()
        }

    def group_members(self, group: str) -> list[str]:
        """The live members as ``client id@host (member id)``; none for an empty, dead or unknown group."""
        answers, _ = self._ask(
            "describing the group",
            [group],
            lambda wanted, timeout: self._admin.describe_consumer_groups(
                list(wanted), request_timeout=timeout
            ),
            _GROUP_RULES,
        )
        description = answers.get(group)
        members = [] if description is None else description.members
        return sorted(f"{one.client_id}@{one.host} ({one.member_id})" for one in members)

    def check_no_members(self, group: str) -> None:
        """Raises `GroupInUseError`: a window's commit would pass over the members' heads."""
        check_group_empty(group, self.group_members(group))

    def _offsets(
        self,
        what: str,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int | None]:
        answers = self._offset_answers(what, partitions, spec, isolation)
        return {tp: _offset_of(answer) for tp, answer in answers.items()}

    def _offset_answers(
        self,
        what: str,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, ListOffsetsResultInfo]:
        def ask(wanted: list[TopicPartition], timeout: float) -> dict[TopicPartition, Future[Any]]:
            return self._list_offsets(wanted, spec, isolation, timeout)

        doing = f"looking up {what}"
        answers, unknown = self._ask(doing, partitions, ask, _TOPIC_RULES)
        if unknown:
            self._check_existence(unknown)
            # They exist: a leader is being elected, which may take as long as the whole look-up.
            late, unknown = self._ask(doing, unknown, ask, _LEADER_RULES)
            answers |= late
        for tp, error in unknown.items():
            raise self._translated(error, doing, tp) from error
        return {tp: answers[tp] for tp in partitions}

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
        answers = self._admin.list_offsets(
            {ck.TopicPartition(tp.topic, tp.partition): spec for tp in partitions},
            isolation_level=level,
            request_timeout=timeout_s,
        )
        return {TopicPartition(tp.topic, tp.partition): one for tp, one in answers.items()}

    def _check_existence(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises what describing the topics tells: that they do not exist, or may not be seen.

        The offset look-up itself says "no leader" in all these cases.
        """
        partitions = list(partitions)
        check_partitions_exist(partitions, self.topics({tp.topic for tp in partitions}))

    def _listed(self) -> frozenset[str]:
        """Every topic that this principal may describe. Listing all creates none."""
        doing = "listing topics"
        deadline = time.monotonic() + self._timeout_s
        slice_s = FIRST_LISTING_S
        while True:
            try:
                listed = self._admin.list_topics(timeout=slice_s).topics
            except ck.KafkaException as error:
                self._admin.poll(0)
                self._reasons.raise_if_hopeless(doing=doing, where=self._where)
                translated = self._translated(error, doing, self._where)
                left_s = deadline - time.monotonic()
                if not translated.retriable or left_s <= 0:
                    raise translated from error
                slice_s = min(2 * slice_s, left_s)
            else:
                self._reasons.clear()
                return frozenset(listed)

    def _unknown(self, names: list[str]) -> UnknownTopicError:
        listed: Collection[str] = ()
        with suppress(KafkaOrderedOpsError):  # The names alone are still the better error.
            listed = self._listed()
        return unknown_topics(names, listed)

    def _ask(
        self,
        doing: str,
        keys: Iterable[_Key],
        ask: Callable[[list[_Key], float], Mapping[_Key, Future[Any]]],
        rules: _Rules,
    ) -> tuple[dict[_Key, Any], dict[_Key, ck.KafkaException]]:
        """One batched question, repeated for those keys alone whose answer passes by itself.

        Returns the answers, and the keys that stayed unknown with the broker's words for it.
        """
        started = time.monotonic()
        answers: dict[_Key, Any] = {}
        unknown: dict[_Key, ck.KafkaException] = {}
        waiting = list(keys)
        while waiting:
            left_s = max(0.001, started + self._timeout_s - time.monotonic())
            futures = ask(waiting, left_s)
            # The request ends by its own time-out; a second more here, lest both ends race.
            wait_for(
                self._admin,
                futures.values(),
                timeout_s=left_s + 1.0,
                doing=doing,
                where=self._where,
                reasons=self._reasons,
            )
            waiting = []
            for key, future in futures.items():
                error = future.exception()
                if error is None:
                    answers[key] = future.result()
                elif not isinstance(error, ck.KafkaException):
                    raise error
                elif rules.asks_again(error, time.monotonic() - started, self._timeout_s):
                    waiting.append(key)
                elif error.args[0].code() in rules.unknown:
                    unknown[key] = error
                else:
                    raise self._translated(error, doing, key) from error
            if waiting:
                time.sleep(RETRY_PAUSE_S)
        self._reasons.clear()
        return answers, unknown

    def _translated(
        self, error: ck.KafkaException, doing: str, key: object
    ) -> KafkaOrderedOpsError:
        return translate(error, doing=doing, where=str(key), reasons=self._reasons)


def _id_text(topic_id: ck.Uuid) -> str:
    """The id as Kafka's own tools print it: the client uses the other base64 alphabet."""
    return str(topic_id).replace("+", "-").replace("/", "_")


def _offset_of(answer: ListOffsetsResultInfo) -> int | None:
    return None if answer.offset == _NO_OFFSET else int(answer.offset)


def _present(tp: TopicPartition, offset: int | None) -> int:
    if offset is None:
        raise BrokerUnreachableError(
            f"the broker knows neither start nor end of {tp} now; its leader may be changing",
            code="OFFSET_NOT_AVAILABLE",
        )
    return offset
