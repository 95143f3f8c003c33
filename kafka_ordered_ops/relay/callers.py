"""Who calls: the access of a request, and a line in the log for every denied one."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import Any, Final

from kafka_ordered_ops.core.errors import AccessDeniedError
from kafka_ordered_ops.relay.access import EVERYTHING, Access, Tokens
from kafka_ordered_ops.relay.answers import HttpError

_AUDIT: Final = logging.getLogger("kafka_ordered_ops.relay.audit")

#: Of a path in the log: the caller chose it.
_SHOWN_LENGTH: Final = 80


class Callers:
    """Callers of one server.

    Args:
        tokens: the access tokens; None: whoever can connect may do everything.
        is_local: whether the server listens on this machine alone.
    """

    def __init__(self, tokens: Tokens | None, *, is_local: bool) -> None:
        self._tokens, self._is_local = tokens, is_local

    def access_of(self, headers: Mapping[bytes, bytes]) -> Access:
        """Return what the caller may do.

        Raises:
            AccessDeniedError: no valid token.
            HttpError: the request was sent by a web page of somebody else.
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

    def denied(self, scope: Mapping[str, Any], access: Access | None, error: Exception) -> None:
        """Write the line; the token is never in it."""
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
        # A page whose name was made to point to this machine can send requests, but not under our name.
        name = host.decode("latin-1").lower()
        name = name if name.endswith("]") else name.rpartition(":")[0] or name
        if name != "localhost" and not _is_loopback(name.removeprefix("[").removesuffix("]")):
            raise HttpError(
                421,
                "the server listens on this machine only, and the request names another host: use localhost",
            )


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
