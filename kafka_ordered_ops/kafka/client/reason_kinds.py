"""The kinds of errors that a client's callback reports, and how informative each is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from confluent_kafka import KafkaError

#: Parts of errors that show what to do.
_TELLING: Final = (
    "listener?",
    "Connect to ",
    "Failed to resolve",
    "OIDC token from ",
    "token provider ",
    "verify failed",
    "not a Kafka broker",
)


class ReasonKind(StrEnum):
    """The kinds of errors that a callback reports, most specific first."""

    AUTHENTICATION = "authentication"
    TLS = "tls"
    AUTHORIZATION = "authorization"
    TOKEN = "token"
    RESOLVE = "resolve"
    TLS_CUT = "tls cut"
    TRANSPORT = "transport"
    OTHER = "other"


#: Reasons for which waiting cannot help: the client would retry the same credentials again and again. A handshake that the
#: other side cuts is not one of them, because a restarting broker does that too.
HOPELESS: Final = (ReasonKind.AUTHENTICATION, ReasonKind.TLS)

#: Reasons of an address that refuses all connections, in addition to "Connection refused".
REFUSALS: Final = (ReasonKind.RESOLVE, ReasonKind.TLS_CUT)

#: Reasons for a wait, most specific first.
OF_CONNECTIONS: Final = (
    ReasonKind.TOKEN,
    ReasonKind.RESOLVE,
    ReasonKind.TLS_CUT,
    ReasonKind.TRANSPORT,
)

#: The beginning of the client's error about the identity provider, in the callback and in its log; and the answers of a
#: provider that has checked the credentials (RFC 6749, 5.2). With another answer or none, the provider is unavailable.
_TOKEN: Final = re.compile("SASL OAUTHBEARER token|OIDC token")
_PROVIDER_REFUSES: Final = re.compile(
    r'"error"\s*:\s*"(invalid_|unauthorized_client|unsupported_grant|access_denied)'
)
#: The line has the provider's address and the HTTP status, and the bodies of all its answers as one text.
_TOKEN_LINE: Final = re.compile(r"(.*OIDC token from .*?: )(.*)( \(-?\d+\))", re.DOTALL)
_TOKEN_REQUESTS: Final = 5
#: The reason of a client without a token, which does not connect, and reports nothing.
NO_TOKEN: Final = "no token so far from {}, whose 5xx answers the client reports only after 75 s; or no broker answers"
#: The first bytes of an answer, which the client reads as its length, if another server listens instead of a broker.
_OTHER_PROTOCOLS: Final = {
    b"HTTP": "an HTTP server answers there",
    b"\x15\x03": "a TLS listener answers there",
}
_ANSWER_SIZE: Final = re.compile(r"Invalid response size (-?\d+)")
#: The beginning of the client's log lines: the failure, the client's name, and its thread.
LINE_PREFIX: Final = re.compile(r"^.*?\[thrd:\S+\]: ")

AUTHENTICATION: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
#: code -> (resource, rights to grant)
AUTHORIZATION: Final[Mapping[int, tuple[str, str]]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("topic", "READ and DESCRIBE (to write: WRITE)"),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("group", "READ"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("transactional id", "WRITE and DESCRIBE"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "cluster",
        "the right named by the operation (CREATE, DESCRIBE or IDEMPOTENT_WRITE)",
    ),
    KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED: ("delegation token", "DESCRIBE"),
}


def kind_of(error: KafkaError) -> ReasonKind:
    """Return the kind of an error from its code, or from its text if the client has no specific code."""
    code, text = error.code(), error.str()
    if code in AUTHENTICATION:
        is_away = is_token(text) and not _PROVIDER_REFUSES.search(text)
        return ReasonKind.TOKEN if is_away else ReasonKind.AUTHENTICATION
    is_alert = "SSL alert number" in text and "internal error" not in text
    if code == KafkaError._SSL or is_alert:
        return ReasonKind.TLS
    if code in AUTHORIZATION:
        return ReasonKind.AUTHORIZATION
    if code == KafkaError._RESOLVE:
        return ReasonKind.RESOLVE
    if code == KafkaError._TRANSPORT:
        # The client has no specific code for a handshake that the other side cuts.
        cut = "SSL handshake failed" in text or "SSL_HANDSHAKE" in text
        return ReasonKind.TLS_CUT if cut else ReasonKind.TRANSPORT
    if _ANSWER_SIZE.search(text):
        return ReasonKind.TRANSPORT
    return ReasonKind.OTHER


def is_token(text: str | None) -> bool:
    """Return whether an error is about a token of an identity provider."""
    return text is not None and _TOKEN.search(text) is not None


def token_fault(line: str) -> str:
    """Return the client's line about a token, without repetitions of the provider's answer to each request."""
    if (match := _TOKEN_LINE.fullmatch(line)) is None:
        return line
    begin, answer, status = match.groups()
    for count in range(_TOKEN_REQUESTS, 1, -1):
        single = answer[: len(answer) // count]
        if single * count == answer:
            return f"{begin}{single}{status}"
    return line


def with_protocol(text: str) -> str:
    """Return the text, with the kind of server that answers instead of a broker, if its first bytes show it."""
    if (size := _ANSWER_SIZE.search(text)) is None:
        return text
    begin = (int(size[1]) % 2**32).to_bytes(4, "big")
    spoken = next((what for mark, what in _OTHER_PROTOCOLS.items() if begin.startswith(mark)), None)
    return text if spoken is None else f"{text}: {spoken}, not a Kafka broker"


def says(text: str) -> int:
    """Return how informative an error's text is about its reason."""
    if any(part in text for part in _TELLING):
        return 2
    # "All brokers are down" only summarizes what other errors explain.
    return 0 if not text or "Disconnected" in text or "brokers are down" in text else 1


def throttled_for(seconds: float) -> str:
    """Return that, and for how long, a broker throttles a client."""
    return (
        f"it throttles this client for {seconds:.0f} s, by a quota of its user or client id "
        "(consumer_byte_rate, producer_byte_rate or request_percentage)"
    )
