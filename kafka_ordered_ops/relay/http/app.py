"""The relay over HTTP: an ASGI application.

POST requests are looked up in a table and answered directly: FastAPI's dispatch takes longer than all other work of such a
call. FastAPI describes them in the OpenAPI document, and answers all other requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from kafka_ordered_ops.core.errors import (
    AccessDeniedError,
    KafkaOrderedOpsError,
    RelayLimitError,
)
from kafka_ordered_ops.core.strict_json import JsonError, whole_number
from kafka_ordered_ops.relay.http.answers import (
    CLOSE,
    Answer,
    ClientGoneError,
    HttpError,
    answer_of,
    unauthorized,
    wire_of,
)
from kafka_ordered_ops.relay.http.api import ACCESS, OPEN_PATHS, described_api
from kafka_ordered_ops.relay.http.bodies import JSON_TYPE
from kafka_ordered_ops.relay.http.callers import Callers
from kafka_ordered_ops.relay.http.metrics import Metrics
from kafka_ordered_ops.relay.http.operations import Call, Operations, Post, posts
from kafka_ordered_ops.relay.http.slots import Slots
from kafka_ordered_ops.relay.limits import PLANS_MAX, Limits
from kafka_ordered_ops.relay.ports import RelayService
from kafka_ordered_ops.relay.rights import EVERYTHING, Access

_LOG: Final = logging.getLogger(__name__)

#: The operation in the metrics for all requests that FastAPI answers: callers choose the paths.
_OTHER: Final = "other"


class RelayApp:
    """The application of one server.

    Args:
        service: the service that answers the calls.
        callers: the check of callers.
        metrics: the counters of the server.
        limits: the limits of requests.
    """

    def __init__(
        self, service: RelayService, callers: Callers, metrics: Metrics, limits: Limits
    ) -> None:
        self._callers, self._metrics = callers, metrics
        self._plans = Slots(PLANS_MAX)
        self._posts = posts(Operations(service, metrics, limits), limits.body_bytes_max)
        self.api = described_api(
            service,
            metrics,
            self._posts,
            lambda scope, error: self._deny(scope, scope.get(ACCESS), error),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.api(scope, receive, send)
            return
        began_s = time.perf_counter()
        post = self._posts.get(scope["path"]) if scope["method"] == "POST" else None
        headers = dict(scope["headers"])
        access = self._access(scope, headers, is_open=post is None and scope["path"] in OPEN_PATHS)
        if post is not None:
            answer = (
                access
                if isinstance(access, Answer)
                else await self._posted(scope, post, access, headers, receive)
            )
        elif isinstance(access, Answer):
            answer = access
        else:
            scope[ACCESS] = access
            await self.api(scope, receive, self._counted(began_s, send))
            return
        if answer is not None:
            seconds = time.perf_counter() - began_s
            self._metrics.request(_OTHER if post is None else post.name, answer.status, seconds)
            await answer.send(scope, send)

    def _access(
        self, scope: Scope, headers: Mapping[bytes, bytes], *, is_open: bool
    ) -> Access | Answer:
        """Return the caller's rights, or the answer to a caller without any."""
        if is_open:
            return EVERYTHING
        try:
            access = self._callers.access_of(headers)
            self._callers.count(access)
            return access
        except RelayLimitError as error:
            return answer_of(error)
        except AccessDeniedError as error:
            self._deny(scope, None, error)
            return unauthorized(error)
        except HttpError as error:
            self._deny(scope, None, error)
            return answer_of(error)

    async def _posted(
        self,
        scope: Scope,
        post: Post,
        access: Access,
        headers: Mapping[bytes, bytes],
        receive: Receive,
    ) -> Answer | None:
        """Return the answer; None if the client is gone."""
        try:
            access.check(post.verb)
            async with self._plans.of(access.name) if post.has_plan else nullcontext():
                body = await _body(headers, receive, post.bytes_max)
                return await post.run(Call(access, body, headers, wire_of(scope)))
        except ClientGoneError:
            return None
        except AccessDeniedError as error:
            self._deny(scope, access, error)
            return answer_of(error)
        except (HttpError, KafkaOrderedOpsError) as error:
            return answer_of(error)
        except Exception as error:  # noqa: BLE001 - a bug must not end the connection without an answer
            _LOG.exception("%s failed", post.name)
            return answer_of(error)

    def _deny(self, scope: Scope, access: Access | None, error: Exception) -> None:
        self._metrics.denied += 1
        self._callers.denied(scope, access, error)

    def _counted(self, began_s: float, send: Send) -> Send:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = time.perf_counter() - began_s
                self._metrics.request(_OTHER, message["status"], seconds)
            await send(message)

        return counted


async def _body(headers: Mapping[bytes, bytes], receive: Receive, bytes_max: int) -> bytes:
    """Return the body; the connection limits how long it may take."""
    # A page of another site can send other types without a CORS preflight.
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON_TYPE.encode():
        raise HttpError(415, f"the body must be JSON: send content-type: {JSON_TYPE}", CLOSE)
    try:
        size = whole_number(headers.get(b"content-length", b"0"))
    except JsonError as error:
        raise HttpError(400, f"content-length: {error}", CLOSE) from None
    if size > bytes_max:
        raise _too_large(bytes_max)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        parts, size = [body], len(body)
        while message.get("more_body"):
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > bytes_max:
                raise _too_large(bytes_max)
        body = b"".join(parts)
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    return body


def _too_large(bytes_max: int) -> HttpError:
    return HttpError(
        413, f"the body has more than {bytes_max:,} bytes: send several requests", CLOSE
    )
