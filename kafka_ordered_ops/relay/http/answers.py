"""Answers over HTTP, their connections, and the answers for errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope, Send

from kafka_ordered_ops.core.errors import (
    AccessDeniedError,
    ClosedError,
    ConfigError,
    GroupInUseError,
    KafkaOrderedOpsError,
    LeaseError,
    RelayLimitError,
    RelayLogRecordError,
    TopicRecreatedError,
    UnknownTopicError,
)
from kafka_ordered_ops.relay.http.bodies import JSON_TYPE

Headers = tuple[tuple[bytes, bytes], ...]

#: An ASGI extension, whose "wire" is the `Wire` of the request.
WIRE: Final = "kafka_ordered_ops.wire"

#: The part size of a large answer: at least the size of a client's buffers, but small in memory.
_PART_BYTES: Final = 256 * 1024

#: Statuses after which the same request may succeed later.
RETRIABLE: Final = frozenset({408, 429, 503})
CLOSE: Final[Headers] = ((b"connection", b"close"),)
#: In seconds, for a temporary error.
_RETRY_AFTER: Final[Headers] = ((b"retry-after", b"1"),)
_BEARER: Final[Headers] = ((b"www-authenticate", b"Bearer"),)


class ClientGoneError(Exception):
    """The client has closed the connection, so nobody waits for the answer."""


class Wire:
    """The connection of one request. This class knows nothing about it; the server's own subclass does."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed it."""
        return False

    @contextmanager
    def cancelled_when_gone(self) -> Iterator[None]:
        """Cancel the task of the block when the client closes the connection; the block then raises `ClientGoneError`."""
        task = asyncio.current_task()
        self.call_when_gone(None if task is None else task.cancel)
        try:
            yield
        except asyncio.CancelledError:
            if task is None or not self.is_gone:
                raise
            task.uncancel()
            raise ClientGoneError from None
        finally:
            self.call_when_gone(None)

    def call_when_gone(self, function: Callable[[], object] | None) -> None:
        """Set the function to call when the client closes the connection; it replaces an earlier one."""

    def send(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send a whole answer; return False if it must be sent by ASGI messages."""
        return False

    async def drained(self) -> None:
        """Wait until the client has received nearly all of the answer, or the connection is closed."""


_UNKNOWN_WIRE: Final = Wire()


def wire_of(scope: Scope) -> Wire:
    """Return the connection of a request."""
    wire: Wire = scope.get("extensions", {}).get(WIRE, {}).get("wire", _UNKNOWN_WIRE)
    return wire


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer."""

    body: bytes
    status: int = 200
    content_type: str = JSON_TYPE
    headers: Headers = ()
    #: Called when the client has received nearly all of the answer, if set.
    sent: Callable[[], None] | None = None

    async def send(self, scope: Scope, send: Send) -> None:
        """Send the answer, in one write if the connection can."""
        wire = wire_of(scope)
        try:
            headers = [
                (b"content-type", self.content_type.encode()),
                (b"content-length", str(len(self.body)).encode()),
                *self.headers,
            ]
            if len(self.body) > _PART_BYTES or not wire.send(self.status, headers, self.body):
                await self._send_in_parts(headers, send)
            if self.sent is not None:
                await wire.drained()
        finally:
            if self.sent is not None:
                self.sent()

    async def _send_in_parts(self, headers: list[tuple[bytes, bytes]], send: Send) -> None:
        """Send the answer in parts, each after the client has received the earlier ones.

        In one write, the answer would be in the buffers of TLS, where a client that does not receive it goes unnoticed.
        """
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        left = memoryview(self.body)
        while True:
            part, left = left[:_PART_BYTES], left[_PART_BYTES:]
            more = bool(left)
            await send({"type": "http.response.body", "body": bytes(part), "more_body": more})
            if not more:
                return


class HttpError(Exception):
    """An error that is answered with a status of HTTP itself."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


def answer_of(error: Exception) -> Answer:
    """Return the answer for an error."""
    match error:
        case HttpError():
            is_retriable = error.status in RETRIABLE
            return _error(error.status, "HttpError", error.message, is_retriable, error.headers)
        case ClosedError():
            # This server is being stopped; other servers may still run.
            return _error(
                503, "RelayUnavailableError", "the server is stopping", True, _RETRY_AFTER
            )
        case AccessDeniedError():
            return _error(403, "AccessDeniedError", error.message)
        case KafkaOrderedOpsError():
            status = _status_of(error)
            kind = type(error).__name__
            headers = _RETRY_AFTER if status in (429, 503) else ()
            return _error(status, kind, error.message, error.retriable, headers)
        case _:
            # The error's text may contain anything, so it is only in the log.
            return _error(500, "InternalError", "the server failed; see its log")


def unauthorized(error: AccessDeniedError) -> Answer:
    """Return the answer to a caller without a valid token."""
    return _error(401, "AccessDeniedError", error.message, headers=_BEARER)


def _status_of(error: KafkaOrderedOpsError) -> int:
    match error:
        case ConfigError() | RelayLogRecordError():
            return 400
        case LeaseError() | TopicRecreatedError() | GroupInUseError(retriable=False):
            return 409
        case UnknownTopicError():
            return 404
        case RelayLimitError():
            return 429
        case _:
            return 503 if error.retriable else 500


def _error(
    status: int, kind: str, message: str, retriable: bool = False, headers: Headers = ()
) -> Answer:
    error = {"type": kind, "message": message, "retriable": retriable}
    return Answer(json.dumps({"error": error}).encode(), status, headers=headers)
