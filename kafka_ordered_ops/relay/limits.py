"""What one server of the relay accepts, so that no client takes all of it.

A limit that can be set has a name: ``relay serve --limit NAME=VALUE`` sets one of the server, ``relay token --limit`` one of a
token. The others are constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from kafka_ordered_ops.core.arguments import as_span, check_count, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import duration_text

#: Of a read: more are no faster, and a server holds them in memory until they are sent.
RECORDS_MAX: Final = 10_000
#: Of a read, about: a server has its answer in memory several times until it is sent.
READ_BYTES_MAX: Final = 16 * 1024**2
#: Of a waiting read: below what proxies cut.
WAIT_S_MAX: Final = 30.0
#: A shorter lease could end while its answer is on the way.
LEASE_S_LEAST: Final = 1.0
#: Of a call that acknowledges, cancels or extends.
LEASES_MAX: Final = 1_000
#: Of one lease in such a call: every second offset of the largest read.
RANGES_MAX: Final = 5_000
#: Large answers on their way to clients with one token: clients that take them slowly must not fill the memory. 16 of the largest
#: are some 350 MB.
ANSWERS_MAX: Final = 16
#: Requests with a plan, of clients with one token: a plan may have 16 MiB.
PLANS_MAX: Final = 4
#: From here on, an answer is large: the client's buffers no longer take it at once.
ANSWER_BYTES: Final = 64 * 1024

#: The largest value that a limit can be set to: a time of a day, for leases too, and a number of a million million.
TIME_S_MAX: Final = 86_400.0
_TIME_S_LEAST: Final = 1.0
_COUNT_MAX: Final = 10**12


def _limit(name: str, default: float) -> Any:
    """Return the field of a limit that can be set: a time if its default is a float."""
    return field(default=default, metadata={"name": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one server."""

    #: In all. Each is an open file, and may be a read that waits.
    connections_max: int = _limit("connections", 256)
    #: By the address of the client; a node with many workers is one.
    connections_per_peer_max: int = _limit("connections-per-address", 64)
    #: Request line and headers: far more than HTTP clients send.
    header_bytes_max: int = _limit("header-bytes", 8 * 1024)
    #: A call with 1,000 leases needs more.
    body_bytes_max: int = _limit("body-bytes", 64 * 1024)
    #: From a request's first byte to the last of its headers and body; also for the first byte of a connection.
    request_timeout_s: float = _limit("request-time", 10.0)
    #: A client that takes nothing of its answer for so long is cut off.
    response_timeout_s: float = _limit("answer-time", 30.0)
    #: Between two requests of a connection.
    keep_alive_s: float = _limit("idle-time", 60.0)
    #: Longer leases keep the records of a worker that died from the others for longer.
    lease_s_max: float = _limit("lease", 3_600.0)
    #: Groups whose records are read at the same time. Each takes a thread and a client.
    groups_max: int = _limit("groups", 100)
    #: Records that are held of one group in one partition.
    held_records_max: int = _limit("held-records", 20_000)
    #: Their bytes, of all groups and partitions, about; each has the same share.
    held_bytes_max: int = _limit("held-bytes", 1024**3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """The limits of all clients with one token, together, at each server."""

    #: Records under leases: as many as a server holds of one group in one partition.
    pending_max: int = _limit("pending", 20_000)
    #: Of one lease: what servers allow by default.
    lease_s_max: float = _limit("lease", 3_600.0)
    #: Groups that the token begins in all, and that a server reads for it at the same time: a fifth of what a server reads.
    groups_max: int = _limit("groups", 20)
    #: Windows that the token has opened and that are not done: each is in the memory of every server.
    windows_max: int = _limit("windows", 1_000)
    #: Requests in a second: a quarter of what one server answers.
    requests_max: int = _limit("requests", 1_000)


_Limits = TypeVar("_Limits", Limits, TokenLimits)


def limits_of(kind: type[_Limits], values: Mapping[str, Any]) -> _Limits:
    """Return limits by name, numbers as such or as text, and times as ISO 8601 text.

    Raises:
        ConfigError: an unknown name or an invalid value.
    """
    known = _by_name(kind)
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            guess = get_close_matches(name, known, 1)
            hint = f"did you mean {guess[0]!r}?" if guess else f"there are {', '.join(known)}"
            raise ConfigError(f"there is no limit {shown(name)}: {hint}")
        check = _time_s if isinstance(known[name].default, float) else _count
        given[known[name].name] = check(value, f"the limit {name!r}")
    return kind(**given)


def pairs_of(texts: Iterable[str]) -> dict[str, str]:
    """Return limits given as ``NAME=VALUE``; raise `ConfigError` for other text, or a name that is given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"the limit {shown(text)} is not NAME=VALUE")
        if name in found:
            raise ConfigError(f"the limit {shown(name)} is given twice")
        found[name] = value
    return found


def limits_json(limits: TokenLimits) -> dict[str, int | str]:
    """Return limits as `limits_of` takes them."""
    found: dict[str, int | str] = {}
    for name, one in _by_name(TokenLimits).items():
        value = getattr(limits, one.name)
        found[name] = duration_text(round(value * 1_000)) if isinstance(value, float) else value
    return found


def _by_name(kind: type[Limits] | type[TokenLimits]) -> dict[str, Field[Any]]:
    return {one.metadata["name"]: one for one in fields(kind)}


def _count(value: Any, what: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    return check_count(value, what=what, least=1, greatest=_COUNT_MAX)


def _time_s(value: Any, what: str) -> float:
    seconds = as_span(value, what=what).total_seconds()
    if not _TIME_S_LEAST <= seconds <= TIME_S_MAX:
        raise ConfigError(f"{what} is {shown(value)}: give PT1S to P1D")
    return seconds
