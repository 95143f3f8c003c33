"""What one server of the relay accepts, so that no client takes all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Of a read: more are no faster, and a server holds them in memory until they are sent.
RECORDS_MAX: Final = 10_000
#: Of a read, about: a server has its answer in memory several times until it is sent.
READ_BYTES_MAX: Final = 16 * 1024**2
#: Of a waiting read: below what proxies cut.
WAIT_S_MAX: Final = 30.0
LEASE_S_LEAST: Final = 1.0
LEASE_S_MAX: Final = 3_600.0
#: Of a call that acknowledges, cancels or extends.
LEASES_MAX: Final = 1_000
#: Of one lease in such a call: every second offset of the largest read.
RANGES_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server."""

    #: Request line and headers.
    header_bytes_max: int = 8 * 1024
    #: From a request's first byte to the last of its headers and body; also for the first byte of a connection.
    request_timeout_s: float = 10.0
    #: A client that takes nothing of its answer for so long is cut off.
    response_timeout_s: float = 30.0
    #: Between two requests of a connection.
    keep_alive_s: int = 60
    #: A call with 1,000 leases needs more.
    body_bytes_max: int = 64 * 1024
    connections_max: int = 256
    #: By the address of the client; a node with many workers is one.
    connections_per_peer_max: int = 64
