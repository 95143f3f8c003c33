"""Answers over HTTP, and which one an error becomes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope, Send

from kafka_ordered_ops.core.errors import (
    AccessDeniedError,
    ClosedError,
    ConfigError,
    KafkaOrderedOpsError,
    LeaseError,
    RelayLogRecordError,
    TopicRecreatedError,
    UnknownTopicError,
)
from kafka_ordered_ops.relay.bodies import JSON_TYPE

Headers = tuple[tuple[bytes, bytes], ...]

#: An extension of ASGI: its function "send" sends a whole answer, and returns whether it could.
AT_ONCE: Final = "kafka_ordered_ops.answer_at_once"

CLOSE: Final[Headers] = ((b"connection", b"close"),)
#: Seconds, for an error that goes away.
_RETRY_AFTER: Final[Headers] = ((b"retry-after", b"1"),)
_BEARER: Final[Headers] = ((b"www-authenticate", b"Bearer"),)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer."""

    body: bytes
    status: int = 200
    content_type: str = JSON_TYPE
    headers: Headers = ()

    async def send(self, scope: Scope, send: Send) -> None:
        """Send it: at once, if the connection can."""
        headers = [
            (b"content-type", self.content_type.encode()),
            (b"content-length", str(len(self.body)).encode()),
            *self.headers,
        ]
        at_once = scope.get("extensions", {}).get(AT_ONCE)
        if at_once is not None and at_once["send"](self.status, headers, self.body):
            return
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class HttpError(Exception):
    """A request that HTTP itself has an answer for."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


class ClientGoneError(Exception):
    """The client closed the connection: nobody waits for the answer."""


def answer_of(error: Exception) -> Answer:
    """Return the answer for an error."""
    match error:
        case HttpError():
            return _error(error.status, "HttpError", error.message, False, error.headers)
        case ClosedError():
            # The server is being stopped; others are not.
            return _error(
                503, "RelayUnavailableError", "the server is stopping", True, _RETRY_AFTER
            )
        case AccessDeniedError():
            return _error(403, "AccessDeniedError", error.message)
        case KafkaOrderedOpsError():
            status = _status_of(error)
            kind = type(error).__name__
            headers = _RETRY_AFTER if status == 503 else ()
            return _error(status, kind, error.message, error.retriable, headers)
        case _:
            # Its text may have anything in it; the log has it.
            return _error(500, "InternalError", "the server failed; see its log")


def unauthorized(error: AccessDeniedError) -> Answer:
    """Return the answer to a caller without a valid token."""
    return _error(401, "AccessDeniedError", error.message, headers=_BEARER)


def _status_of(error: KafkaOrderedOpsError) -> int:
    match error:
        case ConfigError() | RelayLogRecordError():
            return 400
        case LeaseError() | TopicRecreatedError():
            return 409
        case UnknownTopicError():
            return 404
        case _:
            return 503 if error.retriable else 500


def _error(
    status: int, kind: str, message: str, retriable: bool = False, headers: Headers = ()
) -> Answer:
    error = {"type": kind, "message": message, "retriable": retriable}
    return Answer(json.dumps({"error": error}).encode(), status, headers=headers)
