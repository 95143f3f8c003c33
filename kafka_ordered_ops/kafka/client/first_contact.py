"""Whether the brokers of a connection can be reached at all, as long as none of them has answered this process.

A broker that has answered once and refuses later restarts, which is waited for. One that has never answered is more
often a wrong address, or not started.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final

#: How long a call without its own time limit waits for addresses that all refuse.
REFUSED_S: Final = 7.0
#: A client that is refused tries again at least once a second (`reconnect.backoff.max.ms`, varied by a quarter), unless one
#: of the host's addresses took the connection.
_RECENT_S: Final = 3.0

_SCHEME: Final = re.compile(r"^\w+://")
#: How the client begins an error of a bootstrap address.
_OF_ADDRESS: Final = re.compile(r"(?:\w+://)?(?P<address>\S+)/bootstrap: (?P<reason>.*)", re.DOTALL)
_DEFAULT_PORT: Final = ":9092"

#: ``bootstrap.servers`` whose brokers have answered this process, each by its security protocol: one of them may be wrong.
_answered: set[tuple[str, str]] = set()


class FirstContact:
    """The bootstrap addresses of one connection, and which of them refuse. Not thread safe."""

    def __init__(self) -> None:
        self._connection = ("", "")
        self._addresses: frozenset[str] = frozenset()
        self._provider: str | None = None
        self._refusals: dict[str, str] = {}
        self._refused_at = 0.0

    def of(self, brokers: str, config: Mapping[str, Any]) -> None:
        """Set the connection. Clients that are made later also ask brokers that answers have named."""
        if not self._addresses:
            protocol = str(config.get("security.protocol", "plaintext"))
            self._connection = (brokers, protocol.lower())
            if str(config.get("sasl.oauthbearer.method", "")).lower() == "oidc":
                self._provider = config.get("sasl.oauthbearer.token.endpoint.url")
            given = (_SCHEME.sub("", one.strip()) for one in brokers.split(","))
            self._addresses = frozenset(
                one if re.search(r":\d+$", one) else one + _DEFAULT_PORT for one in given if one
            )

    def note(self, text: str, *, refused: bool) -> None:
        """Note an error of the client, if it is one of a bootstrap address."""
        if (found := _OF_ADDRESS.match(text)) is None:
            return
        if not refused:
            self._refusals.pop(found["address"], None)
            return
        reason = re.sub(r" \(after \d.*", "", found["reason"], flags=re.DOTALL)
        self._refusals[found["address"]] = reason.rpartition(" failed: ")[2]
        self._refused_at = time.monotonic()

    def answered(self) -> None:
        """Note that a broker has answered."""
        _answered.add(self._connection)
        self._refusals.clear()

    @property
    def provider(self) -> str | None:
        """The identity provider of a connection over which no broker has answered this process."""
        return None if self._connection in _answered else self._provider

    def refused(self) -> str | None:
        """Return how each address refuses; None unless all do, and none has answered this process."""
        if (
            self._connection in _answered
            or not self._addresses
            or not self._addresses <= self._refusals.keys()
            or time.monotonic() - self._refused_at > _RECENT_S
        ):
            return None
        return ", ".join(f"{one} ({self._refusals[one]})" for one in sorted(self._addresses))
