"""Connections of the relay: deadlines and bounds that uvicorn does not have.

uvicorn waits without end for the rest of a request, and for a client that takes nothing of its answer. Here, a request that is
not there in time, or has too large a header, and a connection too many, end with an answer that says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from kafka_ordered_ops.relay.answers import AT_ONCE, CLOSE
from kafka_ordered_ops.relay.limits import Limits

_LOG: Final = logging.getLogger(__name__)

#: For the last bytes of an answer, when the connection is closed.
_LINGER_S: Final = 5.0

_PHRASES: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Connections:
    """The open connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.by_peer: Counter[str] = Counter()
        self.total = 0
        #: Connections, requests and answers that were cut off, by status.
        self.refused: Counter[int] = Counter()

    def protocol(self) -> type[RelayProtocol]:
        """Return the class that uvicorn makes one of for each connection."""
        return type("BoundedProtocol", (RelayProtocol,), {"open": self})

    def add(self, peer: str) -> int | None:
        """Count a connection; return the status to refuse it with, if it is one too many."""
        self.total += 1
        self.by_peer[peer] += 1
        if self.total > self.limits.connections_max:
            return 503
        return 429 if self.by_peer[peer] > self.limits.connections_per_peer_max else None

    def remove(self, peer: str) -> None:
        """Take note that a connection is gone."""
        self.total -= 1
        self.by_peer[peer] -= 1
        if not self.by_peer[peer]:
            del self.by_peer[peer]


class _HeaderTooLargeError(Exception):
    pass


class RelayProtocol(HttpToolsProtocol):
    """One connection."""

    open: Connections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _LOG
        self._peer = ""
        self._header_bytes = self._incomplete_bytes = 0
        self._is_header = self._is_request = False
        self._refusal = 400
        self._request_timer: asyncio.TimerHandle | None = None
        self._response_timer: asyncio.TimerHandle | None = None

    # --- asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and wait for its first byte."""
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        status = self.open.add(self._peer)
        if status is not None:
            self._refuse(status, "too many connections")
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_request_timer()
        self._stop_response_timer()
        self.open.remove(self._peer)
        super().connection_lost(exc)
        # uvicorn leaves it armed when the client broke the connection.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived, and see whether it is a whole request."""
        if self.transport.is_closing():
            return
        was_header = self._is_header
        super().data_received(data)
        if was_header and self._is_header:
            # The parser reports a header when it is complete: one without an end counts by its bytes.
            self._incomplete_bytes += len(data)
            if self._incomplete_bytes > self.open.limits.header_bytes_max:
                self._refuse(431, "the header is too large")
                return
        if self._is_request or self._is_idle:
            self._await_request()

    def pause_writing(self) -> None:
        """Wait for the client to take what was written."""
        super().pause_writing()
        if self._response_timer is None:
            self._response_timer = self.loop.call_later(
                self.open.limits.response_timeout_s, self._cut_off
            )

    def resume_writing(self) -> None:
        """Go on writing."""
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
        """Go on to the body."""
        self._is_header = False
        super().on_headers_complete()
        # The application starts later.
        self.scope["extensions"] = {AT_ONCE: {"send": partial(_answer_at_once, self.cycle)}}

    def on_message_complete(self) -> None:
        """End a request."""
        self._is_request = False
        self._stop_request_timer()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is no HTTP, or whose header is too large."""
        self._refuse(self._refusal, "the header is too large" if self._refusal == 431 else msg)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._abort_later()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.open.limits.header_bytes_max:
            self._refusal = 431
            raise _HeaderTooLargeError

    @property
    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type leaves out the None
        return cycle is None or cycle.response_complete

    # --- deadlines -------------------------------------------------------------------------------

    def _await_request(self) -> None:
        # One deadline for the whole request: a byte now and then does not move it.
        if self._request_timer is None:
            self._request_timer = self.loop.call_later(
                self.open.limits.request_timeout_s, self._request_late
            )

    def _request_late(self) -> None:
        self._request_timer = None
        self._refuse(408, "the request did not arrive in time")

    def _refuse(self, status: int, why: str) -> None:
        self._stop_request_timer()
        if self.transport.is_closing():
            return
        self.open.refused[status] += 1
        # Between headers and the end of the body, the application may have begun an answer.
        if self._is_idle or not self.cycle.response_started:
            body = f'{{"error":{{"type":"HttpError","message":"{why}","retriable":true}}}}'.encode()
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        _LOG.debug("a request of %s was refused with %d: %s", self._peer, status, why)
        self.transport.close()
        self._abort_later()

    def _abort_later(self) -> None:
        # Closing waits until everything is sent: without end, if the client takes nothing.
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
    """Send a whole answer; return False where only uvicorn's steps will do.

    uvicorn sends its head and its body one after the other: two writes to the socket, which are half of what HTTP costs
    for a small answer.
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
        headers = [*(one for one in headers if one not in CLOSE), *CLOSE]
    head = b"".join([STATUS_LINE[status], *(b"%b: %b\r\n" % one for one in headers), b"\r\n"])
    cycle.transport.write(head + body)
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
