"""Callers: check the access of a request, limit the rate of requests, and log denied ones."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka_ordered_ops.core.errors import AccessDeniedError, RelayLimitError
from kafka_ordered_ops.relay.http.access import Tokens
from kafka_ordered_ops.relay.http.answers import HttpError
from kafka_ordered_ops.relay.rights import EVERYTHING, Access

_AUDIT: Final = logging.getLogger("kafka_ordered_ops.relay.audit")

#: How much of a path is logged: the caller chooses it.
_SHOWN_LENGTH: Final = 80
#: The limit of lines per second: callers without a token must not fill the disk.
_LINES: Final = 20
#: More than the number of tokens: removed names are forgotten.
_RATES_MAX: Final = 1_000


class Callers:
    """Callers of one server.

    Args:
        tokens: the access tokens; None allows everything to everyone who can connect.
        is_local: whether the server listens only on this machine.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        tokens: Tokens | None,
        *,
        is_local: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens, self._is_local, self._clock = tokens, is_local, clock
        self._rates: dict[str, _Rate] = {}
        self._lines = _Rate(clock())
        self._unsaid = 0

    def access_of(self, headers: Mapping[bytes, bytes]) -> Access:
        """Return the caller's rights.

        Raises:
            AccessDeniedError: there is no valid token.
            HttpError: a foreign web page sent the request.
        """
        if self._tokens is None:
            if self._is_local:
                self._check_host(headers.get(b"host", b""))
            return EVERYTHING
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not token:
            raise AccessDeniedError(
                "an access token is needed: send the header Authorization: Bearer TOKEN"
            )
        return self._tokens.access_of(token.strip())

    def count(self, access: Access) -> None:
        """Count a request of a token; raise `RelayLimitError` if it is one too many."""
        if access.limits is None:
            return
        now_s = self._clock()
        rate = self._rates.get(access.name)
        if rate is None:
            if len(self._rates) >= _RATES_MAX:
                self._rates.clear()
            rate = self._rates[access.name] = _Rate(now_s)
        if not rate.take(access.limits.requests_max, now_s):
            raise RelayLimitError(
                f"the token {access.name!r} sends more than {access.limits.requests_max:,} requests a second to this server: "
                "read and acknowledge more records at once, or raise its limit 'requests'"
            )

    def denied(self, scope: Mapping[str, Any], access: Access | None, error: Exception) -> None:
        """Log a denied request, unless there are too many; the line never contains the token."""
        if not self._lines.take(_LINES, self._clock()):
            self._unsaid += 1
            return
        if self._unsaid:
            _AUDIT.warning("denied: %d more calls, without a line for each", self._unsaid)
            self._unsaid = 0
        client = scope["client"]
        _AUDIT.warning(
            "denied: %s %r from %s by %r: %s",
            scope["method"],
            scope["path"][:_SHOWN_LENGTH],
            client[0] if client else "an unknown address",
            None if access is None else access.name,
            error,
        )

    def _check_host(self, host: bytes) -> None:
        # A page whose host name was made to point to this machine can send requests, but not with our host name.
        name = host.decode("latin-1").lower()
        name = name if name.endswith("]") else name.rpartition(":")[0] or name
        if name != "localhost" and not _is_loopback(name.removeprefix("[").removesuffix("]")):
            raise HttpError(
                421,
                "the server listens on this machine only, and the request names another host: use localhost",
            )


class _Rate:
    """Allow a number of requests per second, and as many at once after a quiet second."""

    __slots__ = ("_at_s", "_used")

    def __init__(self, now_s: float) -> None:
        self._at_s, self._used = now_s, 0.0

    def take(self, most: int, now_s: float) -> bool:
        self._used = max(self._used - most * (now_s - self._at_s), 0.0)
        self._at_s = now_s
        if self._used + 1 > most:
            return False
        self._used += 1
        return True


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
