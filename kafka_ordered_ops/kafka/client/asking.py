"""Repeat one batched request until each part of it has an answer.

A client whose broker died may try to connect to it until the deadline, while a new client gets an answer at once. So a
request is sent in time slices. After a slice without an answer, a new client continues. After an answer from a broker that
has just become, or ceased to be, the leader, the client first fetches all metadata.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops.core.cluster.names import check_whole
from kafka_ordered_ops.core.errors import (
    AuthenticationError,
    BrokerUnreachableError,
    KafkaOrderedOpsError,
    TlsError,
)
from kafka_ordered_ops.kafka.client.answers import NoAnswerError, no_answer
from kafka_ordered_ops.kafka.client.calls import Deadline, give_up, is_patient, waits_for, within
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client, translate, wait_for
from kafka_ordered_ops.kafka.client.first_contact import REFUSED_S
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Metadata spreads over the brokers within tens of milliseconds after a topic was created or moved.
RETRY_PAUSE_S: Final = 0.1
#: The first slice of a request; each further one is twice as long, because a busy broker may need more time.
FIRST_SLICE_S: Final = 3.0
#: A slice that is too short for an answer would end with -1001 for an offset, and hide the earlier error. In one of a few
#: milliseconds, librdkafka 2.16 frees a request for offsets that its caller's thread still sends.
_SLICE_MIN_S: Final = 0.1
#: The longest slice: a new client gets an answer at once while an old one waits for a dead broker.
_SLICE_MAX_S: Final = 12.0
#: The time for fetching all metadata, which any broker can answer.
_REFRESH_S: Final = 2.0
#: A new client is tried after this many rounds, whatever the old one answers.
_ROUNDS_EACH: Final = 5
#: The time of the first listing, doubled for each further one: the error callback, which reports a wrong password,
#: runs only between them.
FIRST_LISTING_S: Final = 0.5

LEADERSHIP_UNSETTLED: Final = frozenset(
    {
        ck.KafkaError.LEADER_NOT_AVAILABLE,
        ck.KafkaError.NOT_LEADER_FOR_PARTITION,
        ck.KafkaError.FENCED_LEADER_EPOCH,
        ck.KafkaError.UNKNOWN_LEADER_EPOCH,
        ck.KafkaError.OFFSET_NOT_AVAILABLE,
        ck.KafkaError.REPLICA_NOT_AVAILABLE,
        ck.KafkaError.KAFKA_STORAGE_ERROR,
        ck.KafkaError.BROKER_NOT_AVAILABLE,
        ck.KafkaError.NOT_CONTROLLER,
    }
)
_UNSETTLED: Final = LEADERSHIP_UNSETTLED | {
    ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
    ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ck.KafkaError.NOT_COORDINATOR,
}
#: Codes without an answer: the client itself may be stuck.
_SILENT: Final = frozenset(
    {
        ck.KafkaError._TIMED_OUT,
        ck.KafkaError._TIMED_OUT_QUEUE,
        ck.KafkaError._TRANSPORT,
        ck.KafkaError._ALL_BROKERS_DOWN,
        ck.KafkaError._DESTROY_BROKER,
        ck.KafkaError._UNKNOWN_BROKER,
        ck.KafkaError._WAIT_COORD,
        ck.KafkaError._DESTROY,
        ck.KafkaError.REQUEST_TIMED_OUT,
        ck.KafkaError.NETWORK_EXCEPTION,
    }
)

_Key = TypeVar("_Key")
_Fact = TypeVar("_Fact")


@dataclass(frozen=True, slots=True)
class Rules:
    """How to treat "does not exist" in the answers to a request; temporary errors are retried."""

    #: Codes for "does not exist": retried for `unknown_s`, and then accepted as an answer.
    unknown: frozenset[int] = frozenset()
    unknown_s: float = 0.0
    #: Codes that are temporary for this request, in addition to those that always are.
    passing: frozenset[int] = frozenset()
    #: Whether all other codes are answers too: for requests about rights.
    refusals_too: bool = False

    def is_answer(self, code: int, elapsed_s: float) -> bool:
        """Return whether this code counts as an answer after this time."""
        if code in self.unknown:
            return elapsed_s >= self.unknown_s
        return self.refusals_too and not self.passes(code)

    def passes(self, code: int) -> bool:
        """Return whether a request with this code is retried."""
        return code in _SILENT or code in _UNSETTLED or code in self.unknown | self.passing


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why a request is repeated: the most specific of several reasons; a missing answer is the least specific."""

    key: object = None
    error: Exception = field(
        default_factory=lambda: ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))
    )

    @property
    def code(self) -> int | None:
        """The client's code; None if it reported a success."""
        return self.error.args[0].code() if isinstance(self.error, ck.KafkaException) else None


class _Refusal:
    """When to give up a request because all addresses refuse, and none has ever answered."""

    def __init__(self, reasons: FaultReasons, timeout_s: float) -> None:
        self._reasons = reasons
        self._is_waited_out = is_patient(timeout_s)
        self._after = Deadline.after(REFUSED_S)

    def limit(self, slice_s: float) -> float:
        """Return the limit of the next slice: while all addresses refuse, it ends when they have refused long enough."""
        if self._is_waited_out or not self._reasons.refused():
            return slice_s
        return min(slice_s, max(self._after.left_s, _SLICE_MIN_S))

    def is_final(self) -> bool:
        """Return whether all addresses have refused for long enough; the running call's time is then over."""
        if self._is_waited_out or not self._after.is_over or not self._reasons.refused():
            return False
        give_up()
        return True


class Asker:
    """An admin client that is replaced by a new one if it gets no answers."""

    def __init__(self, settings: ClientSettings, reasons: FaultReasons) -> None:
        self._config = settings.admin()
        self._where = settings.bootstrap_servers
        self._reasons = reasons
        #: ``host:port`` of the brokers in answers: the bootstrap servers may be the ones that died.
        self._brokers: set[str] = set()
        self._home = Home()
        self._has_answered = False
        self.admin: AdminClient = open_client(AdminClient, self._config, reasons)

    def close(self) -> None:
        """Run the pending callbacks; the client has no close and is freed with its last reference."""
        if self._home.is_here:
            self.admin.poll(0)

    def knows(self, nodes: Iterable[Any]) -> None:
        """Remember the brokers in an answer."""
        for node in nodes:
            if not node.host or node.port <= 0:
                continue  # A replica that is down has no address.
            host = f"[{node.host}]" if ":" in node.host else node.host
            self._brokers.add(f"{host}:{node.port}")

    def ask(
        self,
        doing: str,
        keys: Iterable[_Key],
        ask: Callable[[list[_Key], float], Mapping[_Key, Future[Any]]],
        fact: Callable[[Any], _Fact],
        rules: Rules,
        timeout_s: float,
    ) -> tuple[dict[_Key, _Fact], dict[_Key, ck.KafkaException]]:
        """Return the answers to one batched request, repeated for keys without an answer.

        `fact` converts an answer to a fact, or raises `NoAnswerError`. Returns the facts, and the keys that
        stayed unknown or were refused, with the broker's error.

        Raises the `BrokerError` family; `BrokerUnreachableError` at the deadline.
        """
        self._home.check("a connection to Kafka")
        refusal, deadline = _Refusal(self._reasons, timeout_s), within(timeout_s)
        started = time.monotonic()
        facts: dict[_Key, _Fact] = {}
        unknown: dict[_Key, ck.KafkaException] = {}
        waiting, slice_s, rounds = list(keys), FIRST_SLICE_S, 0
        for key in waiting:
            if isinstance(key, str):
                check_whole(key, what=doing)
        while waiting:
            waits_for(f"{doing} ({waiting[0]})")
            limit_s = refusal.limit(min(slice_s, _SLICE_MAX_S, deadline.left_s))
            futures = self._sent(doing, waiting, ask, limit_s)
            waiting, trouble = [], _Trouble()
            elapsed_s = math.inf if deadline.is_over else time.monotonic() - started
            for key, future in futures.items():
                try:
                    facts[key] = fact(_result(future))
                except NoAnswerError as error:
                    waiting.append(key)
                    trouble = _Trouble(key, error)
                except ck.KafkaException as error:
                    code = error.args[0].code()
                    if rules.is_answer(code, elapsed_s):
                        unknown[key] = error
                    elif rules.passes(code):
                        waiting.append(key)
                        trouble = _Trouble(key, error) if trouble.code in _SILENT else trouble
                    else:
                        raise self._translated(error, doing, key) from error
            if waiting:
                rounds += 1
                reason = self._reasons.told() or f"the last answer: {trouble.error}"
                waits_for(f"{doing} ({trouble.key}; {reason})")
                if refusal.is_final():
                    raise self._given_up(trouble, doing) from trouble.error
                if self._repair(trouble, rounds, deadline):
                    slice_s *= 2
                if deadline.is_over:
                    raise self._given_up(trouble, doing) from trouble.error
        self._reasons.clear()
        self._has_answered = True
        return facts, unknown

    def listing(self, timeout_s: float) -> frozenset[str]:
        """Return every topic that this principal may describe. Listing all topics creates none."""
        self._home.check("a connection to Kafka")
        doing, deadline, slice_s = "listing topics", within(timeout_s), FIRST_LISTING_S
        refusal = _Refusal(self._reasons, timeout_s)
        waits_for(doing)
        while True:
            limit_s = refusal.limit(min(slice_s, deadline.left_s))
            try:
                metadata = self.admin.list_topics(timeout=max(limit_s, 0.001))
            except ck.KafkaException as error:
                self.admin.poll(0)
                self._reasons.raise_if_hopeless(doing=doing, where=self._where)
                translated = self._translated(error, doing, self._where)
                if refusal.is_final() or not translated.retriable or deadline.is_over:
                    raise translated from error
                if reason := self._reasons.told():
                    waits_for(f"{doing} ({self._where}; {reason})")
                if slice_s >= FIRST_SLICE_S and not self._awaits_token():
                    self._renew()
                slice_s *= 2
            else:
                self._reasons.clear()
                self._has_answered = True
                self.knows(metadata.brokers.values())
                return frozenset(metadata.topics)

    def _sent(
        self,
        doing: str,
        keys: list[_Key],
        ask: Callable[[list[_Key], float], Mapping[_Key, Future[Any]]],
        slice_s: float,
    ) -> Mapping[_Key, Future[Any]]:
        """Return the answers of one slice; the others are missing."""
        slice_s = max(slice_s, _SLICE_MIN_S)
        futures = ask(keys, slice_s)
        # The request ends by its own timeout; a second is added here, so that the two do not race.
        with suppress(BrokerUnreachableError):
            wait_for(
                self.admin,
                futures.values(),
                timeout_s=slice_s + 1.0,
                doing=doing,
                where=self._where,
                reasons=self._reasons,
            )
        return futures

    def _repair(self, trouble: _Trouble, rounds: int, deadline: Deadline) -> bool:
        """Prepare the next slice; return whether it needs more time."""
        time.sleep(min(RETRY_PAUSE_S * 2 ** min(rounds - 1, 3), deadline.left_s))
        if deadline.is_over:
            return False
        if trouble.code in _SILENT or rounds % _ROUNDS_EACH == 0:
            if not self._awaits_token():
                self._renew()
        elif trouble.code is None or trouble.code in LEADERSHIP_UNSETTLED:
            self._refresh(min(_REFRESH_S, deadline.left_s))
        return trouble.code in _SILENT

    def _refresh(self, timeout_s: float) -> None:
        """Fetch all metadata, including the current leaders. A request for a single topic would create it."""
        try:
            metadata = self.admin.list_topics(timeout=max(timeout_s, 0.001))
        except ck.KafkaException:
            self._renew()
        else:
            self.knows(metadata.brokers.values())

    def _awaits_token(self) -> bool:
        """Return whether the client may still be waiting for its token: a new client would have to wait from the start."""
        return not self._has_answered and self._reasons.no_token() is not None

    def _renew(self) -> None:
        """Continue with a new client, which also knows the brokers from answers."""
        key = "bootstrap.servers" if "bootstrap.servers" in self._config else "metadata.broker.list"
        bootstrap = self._config[key].split(",")
        brokers = [*bootstrap, *sorted(self._brokers.difference(bootstrap))]
        self.admin = open_client(
            AdminClient, {**self._config, key: ",".join(brokers)}, self._reasons
        )

    def _given_up(self, trouble: _Trouble, doing: str) -> KafkaOrderedOpsError:
        if isinstance(trouble.error, ck.KafkaException):
            translated = self._translated(trouble.error, doing, trouble.key)
            if translated.retriable or isinstance(translated, TlsError | AuthenticationError):
                return translated
        return no_answer(doing, str(trouble.key), str(trouble.error))

    def _translated(
        self, error: ck.KafkaException, doing: str, key: object
    ) -> KafkaOrderedOpsError:
        return translate(error, doing=doing, where=str(key), reasons=self._reasons)


def _result(future: Future[Any]) -> Any:
    """Return the answer; raise the client's error, or a timeout if there is no answer."""
    if not future.done():
        raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))
    return future.result()
