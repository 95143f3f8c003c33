"""Translate client error codes to errors of this package, with their reason.

The failing call often knows least: after a wrong password it reports "timed out" after the full timeout. The reason
went to the client's error callback, which runs only during polls. Every client of this room therefore reports into a
`FaultReasons`, every wait polls, and `translate` combines the two.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from kafka_ordered_ops.core.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    BrokerUnreachableError,
    ConfigError,
    CorruptRecordError,
    GroupInUseError,
    KafkaOrderedOpsError,
    OffsetMapTooLargeError,
    RecordsLostError,
    RecordTooLargeError,
    TlsError,
    UnknownTopicError,
)
from kafka_ordered_ops.kafka.client.calls import DIGITS, client_said
from kafka_ordered_ops.kafka.client.forks import keep_in_children

#: The same line again within this time is dropped: a client that cannot connect writes dozens a second.
LOG_REPEAT_S: Final = 60.0


class _DropRepeats(logging.Filter):
    """Lets a line through once a minute, whatever numbers (ports, times) it holds."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is new, or old enough to be repeated."""
        now = time.monotonic()
        line = DIGITS.sub("#", record.getMessage())
        if now - self._seen.get(line, -LOG_REPEAT_S) < LOG_REPEAT_S:
            return False
        if len(self._seen) >= _LOG_LINES_MAX:
            self._seen.clear()
        self._seen[line] = now
        return True


class _ClientLines:
    """The client's ``logger``: its error lines are logged as debug, and kept for a call that fails.

    Most of them pass: two processes alternate by fencing each other's producers, which log CRITICAL.
    """

    def __init__(self, reasons: FaultReasons) -> None:
        self._reasons = reasons

    def log(self, level: int, message: str, *args: object) -> None:
        """Log a line, as `logging.Logger.log`; called by the client."""
        if level < logging.ERROR:
            CLIENT_LOG.log(level, message, *args)
            return
        text = self._reasons.scrub(message % args if args else message)
        CLIENT_LOG.debug("%s", text)
        client_said(text)


_LOG_LINES_MAX: Final = 1_000

#: The logger of the client's own lines, instead of stderr: nothing is shown unless logging is set up.
CLIENT_LOG: Final = logging.getLogger("kafka_ordered_ops.kafka")
CLIENT_LOG.addFilter(_DropRepeats())
CLIENT_LOG.addHandler(logging.NullHandler())

#: How long a wait may go without polling the client: the error callback is late by this at most.
POLL_SLICE_S: Final = 0.05
#: Error texts come from brokers and from TLS libraries: long enough for them, short enough for a log line.
REASON_CHARACTERS_MAX: Final = 500

_Client = TypeVar("_Client")


class ReasonKind(StrEnum):
    """The kinds of errors that a callback reports, the most specific first."""

    AUTHENTICATION = "authentication"
    TLS = "tls"
    AUTHORIZATION = "authorization"
    RESOLVE = "resolve"
    TLS_CUT = "tls cut"
    TRANSPORT = "transport"
    OTHER = "other"


#: Reasons after which waiting on is no use: the client would try the same credentials again and again.
#: A handshake cut by the other side is none of them: a broker that restarts does that too.
HOPELESS: Final = (ReasonKind.AUTHENTICATION, ReasonKind.TLS)

_AUTHENTICATION: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
#: code -> (resource, rights to grant)
_AUTHORIZATION: Final[Mapping[int, tuple[str, str]]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("topic", "READ and DESCRIBE (to write: WRITE)"),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("group", "READ"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("transactional id", "WRITE and DESCRIBE"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "cluster",
        "the right named by the operation (CREATE, DESCRIBE or IDEMPOTENT_WRITE)",
    ),
    KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED: ("delegation token", "DESCRIBE"),
}
_UNREACHABLE: Final = frozenset(
    {
        KafkaError._RESOLVE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._DESTROY_BROKER,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_CONTROLLER,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
#: Answers about a missing topic; right after its creation a broker may not know it yet.
UNKNOWN_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,
    }
)
_NO_TOPIC: Final = frozenset({KafkaError.UNKNOWN_TOPIC_ID, KafkaError.TOPIC_EXCEPTION})
_CORRUPT: Final = frozenset(
    {
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError.INVALID_MSG,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
_TOO_LARGE: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError._UNDERFLOW,
    }
)
_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_GROUP_IN_USE: Final = frozenset(
    {
        KafkaError.NON_EMPTY_GROUP,
        KafkaError.GROUP_SUBSCRIBED_TO_TOPIC,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
    }
)
_WRONG_ARGUMENT: Final = frozenset({KafkaError._INVALID_ARG, KafkaError.INVALID_CONFIG})


def is_out_of_range(code: int) -> bool:
    """Return whether a read failed because its offset is not in the log (any more)."""
    return code in _OUT_OF_RANGE


def is_corrupt(code: int) -> bool:
    """Return whether a read failed because of the log's contents: a checksum, a codec, a broken frame."""
    return code in _CORRUPT


class FaultReasons:
    """Keeps the error callback's last message, by kind. Thread safe, and bounded by its kinds.

    Holds the connection's secrets only to blot them out of texts of others.
    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._lock = threading.Lock()
        self._last: dict[ReasonKind, str] = {}
        self._secrets = tuple(secret for secret in secrets if secret)

    def add(self, error: KafkaError) -> None:
        """Add an error from the client's ``error_cb``."""
        with self._lock:
            self._last[_kind_of(error)] = self.scrub(error.str())

    def last(self, *kinds: ReasonKind) -> str | None:
        """Return the last reason of the first of these kinds that has one."""
        with self._lock:
            return next((self._last[kind] for kind in kinds if kind in self._last), None)

    def clear(self) -> None:
        """Clear the reasons after a success, so that an old error is not blamed for a later one."""
        with self._lock:
            self._last.clear()

    def raise_if_hopeless(self, *, doing: str, where: str) -> None:
        """Raise `AuthenticationError` or `TlsError` when the callback has reported one."""
        if self.last(*HOPELESS) is not None:
            raise translate(
                KafkaError(KafkaError._TIMED_OUT), doing=doing, where=where, reasons=self
            )

    def scrub(self, text: str) -> str:
        """Return the text without secrets, cut to a length that a log line bears."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:REASON_CHARACTERS_MAX]


def _kind_of(error: KafkaError) -> ReasonKind:
    code = error.code()
    if code in _AUTHENTICATION:
        return ReasonKind.AUTHENTICATION
    if code == KafkaError._SSL:
        return ReasonKind.TLS
    if code in _AUTHORIZATION:
        return ReasonKind.AUTHORIZATION
    if code == KafkaError._RESOLVE:
        return ReasonKind.RESOLVE
    if code == KafkaError._TRANSPORT:
        # The client has no own code for a handshake that the other side cuts.
        cut = "SSL handshake failed" in error.str()
        return ReasonKind.TLS_CUT if cut else ReasonKind.TRANSPORT
    # "All brokers down" among them: it only counts what the transport errors before it have explained.
    return ReasonKind.OTHER


class Polled(Protocol):
    """A client whose callbacks run inside `poll`."""

    def poll(self, timeout: float = ..., /) -> Any:
        """Run due callbacks."""


def open_client(
    make: Callable[..., _Client], config: Mapping[str, Any], reasons: FaultReasons
) -> _Client:
    """Make a client that reports into `reasons` and log to `CLIENT_LOG`.

    Raises `ConfigError` when the client refuses its configuration. Nothing is connected yet.
    """
    try:
        client: _Client = _referable(make)(
            {**config, "error_cb": reasons.add}, logger=_ClientLines(reasons)
        )
    except (KafkaException, ValueError, TypeError) as error:
        text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise ConfigError(f"the Kafka client refuses its settings: {reasons.scrub(text)}") from None
    keep_in_children(client)
    return client


@functools.cache
def _referable(make: Callable[..., _Client]) -> Callable[..., _Client]:
    """Return the same kind of client as one that can be referred to weakly: those written in C cannot."""
    if not isinstance(make, type) or make.__weakrefoffset__:
        return make
    return type(make.__name__, (make,), {})


def wait_for(
    client: Polled,
    futures: Iterable[Future[Any]],
    *,
    timeout_s: float,
    doing: str,
    reasons: FaultReasons,
    where: str = "the cluster",
) -> None:
    """Wait until all futures are done, polling the client so that its error callback runs.

    It does not report their outcome: ask each one. Raises early once the callback has reported refused
    credentials or a failed TLS handshake, and `BrokerUnreachableError` at the deadline.
    """
    deadline = time.monotonic() + timeout_s
    pending = set(futures)
    while pending:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise translate(
                KafkaError(KafkaError._TIMED_OUT), doing=doing, where=where, reasons=reasons
            )
        pending = wait(pending, min(POLL_SLICE_S, left_s)).not_done
        client.poll(0)
        if pending:
            reasons.raise_if_hopeless(doing=doing, where=where)


def translate(
    error: KafkaException | KafkaError, *, doing: str, where: str, reasons: FaultReasons
) -> KafkaOrderedOpsError:
    """Translate a client's error: the action, the place, the reason, and what to do.

    `doing` completes "while ..." (``"looking up end offsets"``), `where` names the topic, partition, group
    or broker. The reason that only the error callback got is put in.
    """
    fault = error.args[0] if isinstance(error, KafkaException) else error
    code = fault.code()
    told = f"{reasons.scrub(fault.str())} ({fault.name()})"
    facts = {"code": fault.name()}
    context = f"while {doing} ({where})"
    if code in _AUTHENTICATION or code == KafkaError._SSL or code in _UNREACHABLE:
        return _unreachable(code, told, context, facts, reasons)
    if code in _AUTHORIZATION:
        resource, rights = _AUTHORIZATION[code]
        return AuthorizationError(
            f"not authorized {context}: {told}. Grant this principal {rights} on the {resource}",
            **facts,
            resource=resource,
            rights=rights,
        )
    if code in UNKNOWN_TOPIC or code in _NO_TOPIC:
        return UnknownTopicError(
            f"unknown topic or partition {context}: {told}. Check the name, that the topic was "
            "not deleted, and that this principal may DESCRIBE it",
            topics=(where,),
        )
    if code in _WRONG_ARGUMENT:
        return ConfigError(f"the client refuses an argument {context}: {told}")
    return _data_error(code, told, context, where) or BrokerError(
        f"Kafka refuses {context}: {told}", **facts
    )


def _unreachable(
    code: int, told: str, context: str, facts: Mapping[str, str], reasons: FaultReasons
) -> BrokerError:
    refused = reasons.last(ReasonKind.AUTHENTICATION)
    if refused or code in _AUTHENTICATION:
        return AuthenticationError(
            f"the broker refuses the credentials {context}: {refused or told}. "
            "Check sasl.mechanism, sasl.username and sasl.password",
            **facts,
        )
    tls = reasons.last(ReasonKind.TLS)
    if tls is None and reasons.last(ReasonKind.TRANSPORT) is None:
        # Cut handshakes and nothing else: a broker that restarts refuses connections as well.
        tls = reasons.last(ReasonKind.TLS_CUT)
    if tls or code == KafkaError._SSL:
        return TlsError(
            f"no TLS connection {context}: {tls or told}. Check security.protocol against the "
            "listener's, ssl.ca.location, and that the certificate names the broker's host",
            **facts,
        )
    reason = reasons.last(ReasonKind.RESOLVE, ReasonKind.TRANSPORT, ReasonKind.OTHER)
    return BrokerUnreachableError(
        f"no answer from Kafka {context}: {told}{f'; last error: {reason}' if reason else ''}. Check "
        "bootstrap.servers, the brokers' advertised.listeners, and security.protocol (a plain "
        "connection to a TLS listener is cut without a reason)",
        **facts,
    )


def _data_error(code: int, told: str, context: str, where: str) -> KafkaOrderedOpsError | None:
    if code in _CORRUPT:
        return CorruptRecordError(
            f"the log is damaged {context}: {told}. Restore the partition from a replica, or declare "
            "these offsets lost"
        )
    if code in _TOO_LARGE:
        return RecordTooLargeError(
            f"a record or request is too large {context}: {told}. Raise receive.message.max.bytes "
            "to read it, message.max.bytes to write it"
        )
    if code in _OUT_OF_RANGE:
        return RecordsLostError(f"the offset is not in the log {context}: {told}", lost={where: ()})
    if code == KafkaError.OFFSET_METADATA_TOO_LARGE:
        return OffsetMapTooLargeError(
            f"the metadata of a commit is too large {context}: {told}. The broker's limit is "
            "offset.metadata.max.bytes"
        )
    if code in _GROUP_IN_USE:
        return GroupInUseError(
            f"the group has live members {context}: {told}. Stop them first",
            group_id=where,
            members=(),
        )
    return None
