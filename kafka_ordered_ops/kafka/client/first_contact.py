"""Detect whether the brokers of a connection can be reached at all, until one of them has answered this process.

A broker that has answered before and refuses now is restarting, so calls wait for it. One that has never answered more
often has a wrong address, or was not started.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

#: How long a call without its own time limit waits if all addresses refuse.
REFUSED_S: Final = 7.0
#: A refused client retries at least once a second (`reconnect.backoff.max.ms`, varied by a quarter), unless one of the
#: host's addresses accepted the connection.
_RECENT_S: Final = 3.0

_SCHEME: Final = re.compile(r"^\w+://")
#: The beginning of the client's error about a bootstrap address.
_OF_ADDRESS: Final = re.compile(r"(?:\w+://)?(?P<address>\S+)/bootstrap: (?P<reason>.*)", re.DOTALL)
_DEFAULT_PORT: Final = ":9092"

#: ``bootstrap.servers`` whose brokers have answered this process, with the security protocol: another protocol may be wrong.
_answered: set[tuple[str, str]] = set()


class FirstContact:
    """The bootstrap addresses of one connection, and those that refuse. Not thread safe."""

    def __init__(self) -> None:
        self._connection = ("", "")
        self._addresses: frozenset[str] = frozenset()
        self._provider: str | None = None
        self._refusals: dict[str, str] = {}
        self._refused_at = 0.0

    def of(self, brokers: str, config: Mapping[str, Any]) -> None:
        """Set the connection once: later clients also connect to brokers from answers."""
        if not self._addresses:
            protocol = str(config.get("security.protocol", "plaintext"))
            self._connection = (brokers, protocol.lower())
            if str(config.get("sasl.oauthbearer.method", "")).lower() == "oidc":
                self._provider = config.get("sasl.oauthbearer.token.endpoint.url")
            addresses = (_SCHEME.sub("", address.strip()) for address in brokers.split(","))
            self._addresses = frozenset(
                address if re.search(r":\d+$", address) else address + _DEFAULT_PORT
                for address in addresses
                if address
            )

    def note(self, text: str, *, refused: bool) -> None:
        """Record an error of the client, if it is about a bootstrap address."""
        if (match := _OF_ADDRESS.match(text)) is None:
            return
        if not refused:
            self._refusals.pop(match["address"], None)
            return
        reason = re.sub(r" \(after \d.*", "", match["reason"], flags=re.DOTALL)
        self._refusals[match["address"]] = reason.rpartition(" failed: ")[2]
        self._refused_at = time.monotonic()

    def answered(self) -> None:
        """Record that a broker has answered."""
        _answered.add(self._connection)
        self._refusals.clear()

    @property
    def provider(self) -> str | None:
        """The identity provider of a connection over which no broker has answered this process."""
        return None if self._connection in _answered else self._provider

    def refused(self) -> str | None:
        """Return how each address refuses; None unless all refuse, and none has answered this process."""
        if (
            self._connection in _answered
            or not self._addresses
            or not self._addresses <= self._refusals.keys()
            or time.monotonic() - self._refused_at > _RECENT_S
        ):
            return None
        return ", ".join(
            f"{address} ({self._refusals[address]})" for address in sorted(self._addresses)
        )
