"""The limits of one server of the relay, so that no client takes all of its capacity.

A configurable limit has a name: ``relay serve --limit NAME=VALUE`` sets a limit of the server, ``relay token --limit`` one of
a token. The others are constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from kafka_ordered_ops.core.arguments import as_span, check_count, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import duration_text

#: Records of a read: more are not faster, and a server holds them in memory until they are sent.
RECORDS_MAX: Final = 10_000
#: Approximate bytes of a read: a server has the answer in memory several times until it is sent.
READ_BYTES_MAX: Final = 16 * 1024**2
#: The longest wait of a read, below the timeouts of proxies.
WAIT_S_MAX: Final = 30.0
#: A shorter lease could end before its answer arrives.
LEASE_S_LEAST: Final = 1.0
#: Leases in a call that acknowledges, cancels or extends.
LEASES_MAX: Final = 1_000
#: Ranges of one lease in such a call: every second offset of the largest read.
RANGES_MAX: Final = 5_000
#: Large answers that are being sent to clients with one token: slow clients must not fill the memory. 16 of the largest
#: answers take about 350 MB.
ANSWERS_MAX: Final = 16
#: Concurrent requests with a plan from clients with one token: a plan may have 16 MiB.
PLANS_MAX: Final = 4
#: The size from which an answer is large: the client's buffers cannot hold it at once.
ANSWER_BYTES: Final = 64 * 1024

#: The largest values of a limit: a time of a day, for leases too, and a number of 10**12.
TIME_S_MAX: Final = 86_400.0
_TIME_S_LEAST: Final = 1.0
_COUNT_MAX: Final = 10**12


def _limit(name: str, default: float) -> Any:
    """Return the field of a configurable limit: a time if its default is a float."""
    return field(default=default, metadata={"name": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one server."""

    #: Connections in all. Each is an open file, and may be a waiting read.
    connections_max: int = _limit("connections", 256)
    #: Connections from one client address; a node with many workers is one address.
    connections_per_peer_max: int = _limit("connections-per-address", 64)
    #: The size of request line and headers: far more than HTTP clients send.
    header_bytes_max: int = _limit("header-bytes", 8 * 1024)
    #: The size of a body; a call with 1,000 leases needs more.
    body_bytes_max: int = _limit("body-bytes", 64 * 1024)
    #: The time for a whole request, from its first byte on; also for the first byte of a connection.
    request_timeout_s: float = _limit("request-time", 10.0)
    #: A client that does not receive its answer for this time is cut off.
    response_timeout_s: float = _limit("answer-time", 30.0)
    #: The idle time between two requests of a connection.
    keep_alive_s: float = _limit("idle-time", 60.0)
    #: The longest lease. Longer leases block the records of a dead worker for longer.
    lease_s_max: float = _limit("lease", 3_600.0)
    #: Groups that are read at the same time. Each takes a thread and a client.
    groups_max: int = _limit("groups", 100)
    #: Held records of one group in one partition.
    held_records_max: int = _limit("held-records", 20_000)
    #: Approximate bytes of held records of all groups and partitions, shared equally.
    held_bytes_max: int = _limit("held-bytes", 1024**3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """The limits of all clients with one token together, at each server."""

    #: Records under leases: as many as a server holds of one group in one partition.
    pending_max: int = _limit("pending", 20_000)
    #: The longest lease: the servers' default.
    lease_s_max: float = _limit("lease", 3_600.0)
    #: Groups that the token may begin in all, and that a server reads for it at the same time: a fifth of a server's limit.
    groups_max: int = _limit("groups", 20)
    #: Unfinished windows that the token has opened: each is in the memory of every server.
    windows_max: int = _limit("windows", 1_000)
    #: Requests per second: a quarter of what one server can answer.
    requests_max: int = _limit("requests", 1_000)


_Limits = TypeVar("_Limits", Limits, TokenLimits)


def limits_of(kind: type[_Limits], values: Mapping[str, Any]) -> _Limits:
    """Parse limits by name: numbers as such or as text, and times as ISO 8601 text.

    Raises:
        ConfigError: an unknown name or an invalid value.
    """
    known = _by_name(kind)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            guess = get_close_matches(name, known, 1)
            hint = f"did you mean {guess[0]!r}?" if guess else f"there are {', '.join(known)}"
            raise ConfigError(f"there is no limit {shown(name)}: {hint}")
        check = _time_s if isinstance(known[name].default, float) else _count
        arguments[known[name].name] = check(value, f"the limit {name!r}")
    return kind(**arguments)


def pairs_of(texts: Iterable[str]) -> dict[str, str]:
    """Split limits in the form ``NAME=VALUE``; raise `ConfigError` for other text or a duplicate name."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"the limit {shown(text)} is not NAME=VALUE")
        if name in pairs:
            raise ConfigError(f"the limit {shown(name)} is given twice")
        pairs[name] = value
    return pairs


def limits_json(limits: TokenLimits) -> dict[str, int | str]:
    """Return limits in the form that `limits_of` parses."""
    texts: dict[str, int | str] = {}
    for name, limit in _by_name(TokenLimits).items():
        value = getattr(limits, limit.name)
        texts[name] = duration_text(round(value * 1_000)) if isinstance(value, float) else value
    return texts


def _by_name(kind: type[Limits] | type[TokenLimits]) -> dict[str, Field[Any]]:
    return {limit.metadata["name"]: limit for limit in fields(kind)}


def _count(value: Any, what: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    return check_count(value, what=what, least=1, greatest=_COUNT_MAX)


def _time_s(value: Any, what: str) -> float:
    seconds = as_span(value, what=what).total_seconds()
    if not _TIME_S_LEAST <= seconds <= TIME_S_MAX:
        raise ConfigError(f"{what} is {shown(value)}: give PT1S to P1D")
    return seconds
