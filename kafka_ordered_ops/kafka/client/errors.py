"""Translate the client's error codes to errors of this package, with the reasons.

The failing call often has the least information: with a wrong password it reports "timed out" after the full timeout. The
client's error callback gets the reason, but runs only during polls. So every client of this package reports to a
`FaultReasons`, every wait polls, and `translate` combines the two.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Final, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException, ThrottleEvent

from kafka_ordered_ops.core.arguments import FILE_SETTINGS, NO_FILES
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
from kafka_ordered_ops.kafka.client.calls import waits_for
from kafka_ordered_ops.kafka.client.first_contact import FirstContact
from kafka_ordered_ops.kafka.client.lifetime import destroy_left, keep_in_children, lasting
from kafka_ordered_ops.kafka.client.lines import CLIENT_LOG, ClientLines
from kafka_ordered_ops.kafka.client.reason_kinds import (
    AUTHENTICATION,
    AUTHORIZATION,
    HOPELESS,
    LINE_PREFIX,
    NO_TOKEN,
    OF_CONNECTIONS,
    REFUSALS,
    ReasonKind,
    is_token,
    kind_of,
    says,
    throttled_for,
    token_fault,
    with_protocol,
)
from kafka_ordered_ops.kafka.client.token_providers import with_tokens

#: The longest time without polling the client: the error callback is delayed by at most this time.
POLL_SLICE_S: Final = 0.05
#: Files whose wrong content the client reports late or not at all, with a pattern of the right content.
_CONTENTS: Final = {
    "sasl.kerberos.keytab": re.compile(rb"\A\x05[\x01\x02]"),
    "https.ca.location": re.compile(rb"-----BEGIN "),
    "sasl.oauthbearer.assertion.private.key.file": re.compile(rb"-----BEGIN "),
}
_CERTIFICATES: Final = ("ssl.ca.location", "https.ca.location")
_PATH_CHARACTERS_MAX: Final = 300
_FILE_BYTES_MAX: Final = 4_194_304
#: A shorter throttle is part of normal work.
THROTTLE_LEAST_S: Final = 1.0
#: Long enough for error texts of brokers and TLS libraries, short enough for a log line.
REASON_CHARACTERS_MAX: Final = 500

_Client = TypeVar("_Client")

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
    """Return whether a read failed because its offset is not in the log, or not any more."""
    return code in _OUT_OF_RANGE


def is_corrupt(code: int) -> bool:
    """Return whether a read failed because of the log's content: a checksum, a codec, or a broken frame."""
    return code in _CORRUPT


def is_too_large(code: int) -> bool:
    """Return whether a read failed because a batch exceeds the client's limits."""
    return code in _TOO_LARGE


class FaultReasons:
    """Keep the error callback's last message of each kind. Thread safe; the kinds limit its size.

    Holds the connection's secrets only to mask them in texts of other programs.
    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._lock = threading.Lock()
        self._last: dict[ReasonKind, str] = {}
        self._first_contact = FirstContact()
        #: Until when a broker throttles the client, and for how long in all.
        self._throttled_until, self._throttled_s = 0.0, 0.0
        self._secrets = tuple(secret for secret in secrets if secret)

    def add(self, error: KafkaError) -> None:
        """Add an error from the client's ``error_cb``.

        The client reports the same problem repeatedly, each time with fewer words: the most informative text is kept.
        """
        self._keep(kind_of(error), with_protocol(self.scrub(error.str())))

    def add_line(self, line: str) -> None:
        """Add a line of the client's log, where alone it reports some cut connections and an identity provider's address."""
        if is_token(line):
            text = self.scrub(token_fault(LINE_PREFIX.sub("", line)))
            self._keep(kind_of(KafkaError(KafkaError._AUTHENTICATION, text)), text)
        elif "Disconnected" in line and "/bootstrap: " in line:
            text = self.scrub(LINE_PREFIX.sub("", line))
            self._keep(kind_of(KafkaError(KafkaError._TRANSPORT, text)), text)

    def _keep(self, kind: ReasonKind, text: str) -> None:
        with self._lock:
            if says(text) >= says(self._last.get(kind, "")):
                self._last[kind] = text
            is_refusal = kind in REFUSALS or "Connection refused" in text
            self._first_contact.note(text, refused=is_refusal)

    def add_throttle(self, event: ThrottleEvent) -> None:
        """Record that a broker throttles the client, from the client's ``throttle_cb``, and log a warning once a minute."""
        if event.throttle_time >= THROTTLE_LEAST_S:
            self._throttled_until = time.monotonic() + event.throttle_time
            self._throttled_s = event.throttle_time
            CLIENT_LOG.warning("Broker %s: %s", event.broker_name, self.throttled())

    def throttled(self) -> str | None:
        """Return a text on how long a broker throttles the client; None if it does not throttle now."""
        if time.monotonic() >= self._throttled_until:
            return None
        return throttled_for(self._throttled_s)

    def are_of(self, brokers: str, config: Mapping[str, Any]) -> None:
        """Set the brokers that the reasons are about, and how clients connect to them."""
        with self._lock:
            self._first_contact.of(brokers, config)

    def no_token(self) -> str | None:
        """Return a text if a client may still be waiting for its token, during which it reports nothing."""
        with self._lock:
            provider = None if self._last else self._first_contact.provider
        return None if provider is None else NO_TOKEN.format(provider)

    def refused(self) -> str | None:
        """Return how each bootstrap address refuses; None unless all refuse, and none has answered this process."""
        with self._lock:
            return self._first_contact.refused()

    def last(self, *kinds: ReasonKind) -> str | None:
        """Return the last reason of the first of these kinds that has one."""
        with self._lock:
            return next((self._last[kind] for kind in kinds if kind in self._last), None)

    def told(self) -> str | None:
        """Return why there is no answer so far, if a client has reported it."""
        if throttled := self.throttled():
            return f"the broker answers, but {throttled}"
        reason = self.last(*OF_CONNECTIONS) or self.no_token()
        return None if reason is None else f"no connection so far: {reason}"

    def clear(self) -> None:
        """Clear the reasons after a success, so that an old error is not blamed for a later one."""
        with self._lock:
            self._last.clear()
            self._first_contact.answered()

    def raise_if_hopeless(self, *, doing: str, where: str) -> None:
        """Raise `AuthenticationError` or `TlsError` if the callback has reported one."""
        if self.last(*HOPELESS) is not None:
            raise translate(
                KafkaError(KafkaError._TIMED_OUT), doing=doing, where=where, reasons=self
            )

    def scrub(self, text: str) -> str:
        """Return the text without secrets, cut to a length that fits a log line."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:REASON_CHARACTERS_MAX]


class Lines(Protocol):
    """A logger for a client's own lines."""

    def log(self, level: int, message: str, /, *args: object) -> None:
        """Log a line, as `logging.Logger.log` does."""


class Polled(Protocol):
    """A client whose callbacks run inside `poll`."""

    def poll(self, timeout: float = ..., /) -> Any:
        """Run due callbacks."""


def open_client(
    make: Callable[..., _Client],
    config: Mapping[str, Any],
    reasons: FaultReasons,
    *,
    lines: Lines | None = None,
) -> _Client:
    """Create a client that reports to `reasons`, and logs to `CLIENT_LOG` or to `lines`.

    Raises `ConfigError` if the client refuses its configuration, and what `with_tokens` raises. It does not connect yet.
    """
    destroy_left()
    _check_files(config)
    reasons.are_of(str(_brokers_in(config)), config)
    config = with_tokens(config, reasons.add)
    try:
        client: _Client = lasting(make)(
            {**config, "error_cb": reasons.add, "throttle_cb": reasons.add_throttle},
            logger=lines or ClientLines(reasons),
        )
    except (KafkaException, ValueError, TypeError) as error:
        text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        reason = reasons.scrub(_with_files(_without_values(text, config), config))
        raise ConfigError(
            f"the Kafka client for {_brokers_in(config)} refuses its settings: {reason}"
        ) from None
    keep_in_children(client)
    return client


def _check_files(config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a file that cannot be read: the client's own errors do not always name it."""
    for key in FILE_SETTINGS:
        path = config.get(key)
        if path is None or path in NO_FILES:
            continue
        try:
            if key in _CERTIFICATES and os.path.isdir(path):
                continue
            # Non-blocking: a FIFO must not block it.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                pattern = _CONTENTS.get(key)
                if pattern and not pattern.search(file.read(_FILE_BYTES_MAX)):
                    raise ValueError(f"it is no {'keytab' if 'keytab' in key else 'PEM file'}")
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise ConfigError(
                f"the file in {key} of the connection to {_brokers_in(config)} cannot be read: {_path(path)}: {reason}"
            ) from None


def _with_files(text: str, config: Mapping[str, Any]) -> str:
    """Return the client's text, with the path of a file if the text names only its setting."""
    for key in FILE_SETTINGS:
        if key in text and (path := config.get(key)) and path not in text:
            return f"{text} ({key}={_path(path)})"
    return text


def _path(path: str) -> str:
    """Return a path for a message; of a long path, the end is kept."""
    return repr(path if len(path) <= _PATH_CHARACTERS_MAX else f"...{path[-_PATH_CHARACTERS_MAX:]}")


def _brokers_in(config: Mapping[str, Any]) -> Any:
    return config.get("bootstrap.servers") or config.get("metadata.broker.list")


def _without_values(text: str, config: Mapping[str, Any]) -> str:
    """Return the client's text without the values of settings, which it repeats when it refuses them."""
    for key, value in config.items():
        if isinstance(value, str) and value and key not in FILE_SETTINGS:
            text = text.replace(f'"{value}"', '"***"')
    return text


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

    Check the result of each future afterwards. Raises early if the callback reports refused credentials or a
    failed TLS handshake, and `BrokerUnreachableError` at the deadline.
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
            if reason := reasons.told():
                # The reason appears in the first line about the wait, not only in the final error.
                waits_for(f"{doing} ({where}; {reason})")
            reasons.raise_if_hopeless(doing=doing, where=where)


def translate(
    error: KafkaException | KafkaError, *, doing: str, where: str, reasons: FaultReasons
) -> KafkaOrderedOpsError:
    """Translate a client's error to one with the action, the place, the reason, and the remedy.

    `doing` completes "while ..." (``"looking up end offsets"``), `where` names the topic, partition, group
    or broker. The reason from the error callback is added.
    """
    fault = error.args[0] if isinstance(error, KafkaException) else error
    code = fault.code()
    text = f"{reasons.scrub(fault.str())} ({fault.name()})"
    facts = {"code": fault.name()}
    context = f"while {doing} ({where})"
    if code in AUTHENTICATION or code == KafkaError._SSL or code in _UNREACHABLE:
        return _unreachable(code, text, context, facts, reasons)
    if code in AUTHORIZATION:
        resource, rights = AUTHORIZATION[code]
        return AuthorizationError(
            f"not authorized {context}: {text}. Grant this principal {rights} on the {resource}",
            **facts,
            resource=resource,
            rights=rights,
        )
    if code in UNKNOWN_TOPIC or code in _NO_TOPIC:
        return UnknownTopicError(
            f"unknown topic or partition {context}: {text}. Check the name, that the topic was "
            "not deleted, and that this principal may DESCRIBE it",
            topics=(where,),
        )
    if code in _WRONG_ARGUMENT:
        return ConfigError(f"the client refuses an argument {context}: {text}")
    return _data_error(code, text, context, where) or BrokerError(
        f"Kafka refuses {context}: {text}", **facts
    )


def _unreachable(
    code: int, text: str, context: str, facts: Mapping[str, str], reasons: FaultReasons
) -> BrokerError:
    refused = reasons.last(ReasonKind.AUTHENTICATION)
    if refused or code in AUTHENTICATION:
        return AuthenticationError(
            f"the {'identity provider' if is_token(refused) else 'broker'} refuses the credentials {context}: "
            f"{refused or text}. Check security.protocol, sasl.mechanism, "
            + ("sasl.oauthbearer.*" if is_token(refused) else "sasl.username and sasl.password"),
            **facts,
        )
    tls = reasons.last(ReasonKind.TLS)
    if tls is None and reasons.last(ReasonKind.TRANSPORT) is None:
        # Only cut handshakes: a restarting broker also refuses connections.
        tls = reasons.last(ReasonKind.TLS_CUT)
    if tls or code == KafkaError._SSL:
        return TlsError(
            f"no TLS connection {context}: {tls or text}. Check security.protocol against the "
            "listener's, ssl.ca.location, that the broker's certificate names its host, and this client's own certificate",
            **facts,
        )
    if token := reasons.last(ReasonKind.TOKEN) or reasons.no_token():
        return BrokerUnreachableError(
            f"no token from the identity provider {context}: {token}. Check sasl.oauthbearer.token.endpoint.url or "
            "sasl.token.provider, and that the provider answers",
            **facts,
        )
    if refused := reasons.refused():
        return BrokerUnreachableError(
            f"no broker can be connected to {context}: {refused}. {_cure(refused)}", **facts
        )
    if throttled := reasons.throttled():
        return BrokerUnreachableError(
            f"no answer from Kafka in time {context}: {text}: {throttled}. Raise the quota, or use another client.id",
            **facts,
        )
    reason = reasons.last(ReasonKind.RESOLVE, ReasonKind.TRANSPORT, ReasonKind.OTHER)
    return BrokerUnreachableError(
        f"no answer from Kafka {context}: {text}{f'; last error: {reason}' if reason else ''}. {_cure(reason)}",
        **facts,
    )


def _cure(reason: str | None) -> str:
    if reason is not None and "Connection refused" in reason:
        return (
            "No broker listens at that address: check bootstrap.servers and the brokers' advertised.listeners, and that the "
            "broker runs"
        )
    return (
        "Check bootstrap.servers, the brokers' advertised.listeners, and security.protocol (a plain "
        "connection to a TLS listener is cut without a reason)"
    )


def _data_error(code: int, text: str, context: str, where: str) -> KafkaOrderedOpsError | None:
    if code in _CORRUPT:
        return CorruptRecordError(
            f"the log is damaged {context}: {text}. Restore the partition from a replica"
        )
    if code in _TOO_LARGE:
        return RecordTooLargeError(
            f"a record or request is too large {context}: {text}. Raise receive.message.max.bytes "
            "to read it, message.max.bytes to write it"
        )
    if code in _OUT_OF_RANGE:
        return RecordsLostError(f"the offset is not in the log {context}: {text}", lost={where: ()})
    if code == KafkaError.OFFSET_METADATA_TOO_LARGE:
        return OffsetMapTooLargeError(
            f"the metadata of a commit is too large {context}: {text}. The broker's limit is "
            "offset.metadata.max.bytes"
        )
    if code in _GROUP_IN_USE:
        return GroupInUseError(
            f"the group has live members {context}: {text}. Stop them first",
            group_id=where,
            members=(),
        )
    return None
