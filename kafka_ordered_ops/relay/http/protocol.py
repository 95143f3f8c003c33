"""Connections of the relay, with deadlines and limits that uvicorn does not have.

uvicorn waits forever for the rest of a request, and for a client that does not receive its answer. Here, a late request, a
request with too large a header, and a connection beyond the limits get an error answer. Health probes are answered even
beyond the limits, so that a busy server is not mistaken for a dead one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from kafka_ordered_ops.relay.http.answers import CLOSE, RETRIABLE, WIRE, Wire
from kafka_ordered_ops.relay.limits import Limits

_LOG: Final = logging.getLogger(__name__)
#: uvicorn's log, without its lines about single requests; see `is_news`.
_WEB: Final = logging.getLogger(f"{__name__}.web")

#: Requests that need no token and are answered on connections beyond the limits.
PROBES: Final = frozenset({b"/health", b"/ready"})
#: Connections of one address beyond the limits: each is closed after its answer, or soon if there is no request.
_PROBES_MAX: Final = 4
_PROBE_TIMEOUT_S: Final = 1.0

#: How long a closed connection may take for the last bytes of an answer.
_LINGER_S: Final = 5.0

_TOO_MANY: Final = "too many connections"
_LARGE_HEADER: Final = "the header is too large"
_UPGRADE: Final = "a request with a body asks for another protocol: send it as HTTP/1.1, without the header upgrade"
#: Headers of requests with a body.
_OF_BODIES: Final = frozenset({b"content-length", b"transfer-encoding"})
_PHRASES: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def is_news(record: logging.LogRecord) -> bool:
    """Return whether to log a line of uvicorn: clients' mistakes are only counted, and a cancelled task is not an error."""
    error = record.exc_info[1] if record.exc_info else None
    return record.levelno >= logging.ERROR and not isinstance(error, asyncio.CancelledError)


_WEB.addFilter(is_news)


class Connections:
    """The open connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.by_peer: Counter[str] = Counter()
        self.total = 0
        self._beyond: Counter[str] = Counter()
        #: The number of connections, requests and answers that were refused or cut off, by status.
        self.refused: Counter[int] = Counter()

    def protocol(self) -> type[RelayProtocol]:
        """Return the class that uvicorn instantiates for each connection."""
        return type("BoundedProtocol", (RelayProtocol,), {"open": self})

    def add(self, peer: str) -> int | None:
        """Count a connection; return the status to refuse its requests with if it is beyond the limits."""
        self.total += 1
        self.by_peer[peer] += 1
        if self.by_peer[peer] > self.limits.connections_per_peer_max:
            return 429
        return 503 if self.total > self.limits.connections_max else None

    def may_probe(self, peer: str) -> bool:
        """Count a connection beyond the limits; return whether it may send a probe."""
        self._beyond[peer] += 1
        return self._beyond[peer] <= _PROBES_MAX

    def end_probe(self, peer: str) -> None:
        """Uncount a connection beyond the limits."""
        self._beyond[peer] -= 1
        if not self._beyond[peer]:
            del self._beyond[peer]

    def remove(self, peer: str) -> None:
        """Uncount a connection."""
        self.total -= 1
        self.by_peer[peer] -= 1
        if not self.by_peer[peer]:
            del self.by_peer[peer]


class _RefusedError(Exception):
    """Ends the parsing of a request that is refused."""


class _OwnWire(Wire):
    """The connection of a request."""

    def __init__(self, protocol: RelayProtocol) -> None:
        self._protocol, self._cycle = protocol, protocol.cycle

    @property
    def is_gone(self) -> bool:
        return self._protocol.is_lost

    def call_when_gone(self, function: Callable[[], object] | None) -> None:
        self._protocol.when_gone = function

    def send(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        return self.is_gone or _answer_at_once(self._cycle, status, headers, body)

    async def drained(self) -> None:
        # Some event loops write in their next round, and only then notice that the client is slow.
        await asyncio.sleep(0)
        await self._cycle.flow.drain()


class RelayProtocol(HttpToolsProtocol):
    """One connection."""

    open: Connections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _WEB
        #: Called when the client closes the connection.
        self.when_gone: Callable[[], object] | None = None
        self.is_lost = False
        self._peer = ""
        self._header_bytes = self._incomplete_bytes = 0
        self._is_header = self._is_request = False
        #: The status and message for a request that the parser rejects or that exceeds the limits.
        self._refusal: tuple[int, str] | None = None
        #: The status for a connection beyond the limits: its requests are refused with it, except probes.
        self._is_beyond: int | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        self._response_timer: asyncio.TimerHandle | None = None

    # --- asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and wait for its first byte."""
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self._is_beyond = self.open.add(self._peer)
        if self._is_beyond is not None and not self.open.may_probe(self._peer):
            self._refuse(self._is_beyond, _TOO_MANY)
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Uncount the connection."""
        self._stop_request_timer()
        self._stop_response_timer()
        self.open.remove(self._peer)
        if self._is_beyond is not None:
            self.open.end_probe(self._peer)
        super().connection_lost(exc)
        self.is_lost = True
        if self.when_gone is not None:
            self.when_gone()
        # uvicorn does not cancel this timer when the client breaks the connection.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse received data, and check whether the request is complete."""
        if self.transport.is_closing():
            return
        was_header = self._is_header
        super().data_received(data)
        if was_header and self._is_header:
            # The parser reports only complete headers, so the bytes of an endless one are counted here.
            self._incomplete_bytes += len(data)
            if self._incomplete_bytes > self.open.limits.header_bytes_max:
                self._refuse(431, _LARGE_HEADER)
                return
        if self._is_request or self._is_idle:
            self._await_request()

    def pause_writing(self) -> None:
        """Wait for the client to receive what was written."""
        super().pause_writing()
        if self._response_timer is None:
            self._response_timer = self.loop.call_later(
                self.open.limits.response_timeout_s, self._cut_off
            )

    def resume_writing(self) -> None:
        """Continue writing."""
        super().resume_writing()
        self._stop_response_timer()

    # --- the parser ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._is_header = self._is_request = True
        self._header_bytes = self._incomplete_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, with its colon and line break."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Continue with the body."""
        self._is_header = False
        if self.parser.should_upgrade() and any(name in _OF_BODIES for name, _ in self.headers):
            # The parser does not deliver the body of such a request.
            self._refusal = 400, _UPGRADE
            raise _RefusedError
        if self._is_beyond is not None:
            if self.url.partition(b"?")[0] not in PROBES:
                self._refusal = self._is_beyond, _TOO_MANY
                raise _RefusedError
            super().on_headers_complete()
            self.cycle.keep_alive = False
        else:
            super().on_headers_complete()
        # Set before the application starts.
        self.scope["extensions"] = {WIRE: {"wire": _OwnWire(self)}}

    def on_message_complete(self) -> None:
        """End a request."""
        self._is_request = False
        self._stop_request_timer()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP, or exceeds the limits."""
        self._refuse(*(self._refusal or (400, msg)))

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._abort_later()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.open.limits.header_bytes_max:
            self._refusal = 431, _LARGE_HEADER
            raise _RefusedError

    @property
    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type leaves out the None
        return cycle is None or cycle.response_complete

    # --- deadlines -------------------------------------------------------------------------------

    def _await_request(self) -> None:
        # One deadline for the whole request: slow single bytes do not extend it.
        if self._request_timer is None:
            timeout_s = self.open.limits.request_timeout_s
            if self._is_beyond is not None:
                timeout_s = min(timeout_s, _PROBE_TIMEOUT_S)
            self._request_timer = self.loop.call_later(timeout_s, self._request_late)

    def _request_late(self) -> None:
        self._request_timer = None
        if self._is_beyond is not None:
            self._refuse(self._is_beyond, _TOO_MANY)
        else:
            self._refuse(408, "the request did not arrive in time")

    def _refuse(self, status: int, why: str) -> None:
        self._stop_request_timer()
        if self.transport.is_closing():
            return
        self.open.refused[status] += 1
        # The application may have begun an answer before the end of the body.
        if self._is_idle or not self.cycle.response_started:
            retriable = "true" if status in RETRIABLE else "false"
            body = f'{{"error":{{"type":"HttpError","message":"{why}","retriable":{retriable}}}}}'.encode()
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        _LOG.debug("a request of %s was refused with %d: %s", self._peer, status, why)
        self.transport.close()
        self._abort_later()

    def _abort_later(self) -> None:
        # Closing waits until everything is sent, which is forever if the client does not receive it.
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _cut_off(self) -> None:
        self._response_timer = None
        self.open.refused[408] += 1
        self.transport.abort()

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_response_timer(self) -> None:
        if self._response_timer is not None:
            self._response_timer.cancel()
            self._response_timer = None


def _answer_at_once(
    cycle: RequestResponseCycle, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> bool:
    """Send a whole answer; return False if it must be sent by uvicorn's own steps.

    uvicorn sends head and body separately: two writes to the socket, which are half of the cost of HTTP for a small answer.
    """
    if (
        cycle.flow.write_paused
        or cycle.disconnected
        or cycle.response_started
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.keep_alive = cycle.keep_alive and not set(CLOSE) & set(headers)
    if not cycle.keep_alive:
        headers = [*(header for header in headers if header not in CLOSE), *CLOSE]
    head = b"".join([STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers), b"\r\n"])
    cycle.transport.write(head + body)
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
