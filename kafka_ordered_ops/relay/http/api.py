"""FastAPI's part: the OpenAPI document, and all requests that are not time-critical."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final, TypeAlias

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import Scope

from kafka_ordered_ops.core.errors import AccessDeniedError
from kafka_ordered_ops.relay.http import bodies
from kafka_ordered_ops.relay.http.answers import Answer, HttpError, answer_of, wire_of
from kafka_ordered_ops.relay.http.metrics import TEXT_TYPE, Metrics
from kafka_ordered_ops.relay.http.operations import Call, Post
from kafka_ordered_ops.relay.http.page import PAGE, PAGE_HEADERS
from kafka_ordered_ops.relay.ports import PartitionStatus, RelayService
from kafka_ordered_ops.relay.rights import Access

#: The key of the caller's rights in a request's scope.
ACCESS: Final = "kafka_ordered_ops.access"

#: Paths without facts about topics or groups, which need no token.
OPEN_PATHS: Final = frozenset({"/", "/health", "/ready", "/openapi.json"})

#: FastAPI changes warning filters while it inspects a function, and Python has one list of filters for all threads.
_BUILDING: Final = threading.Lock()

_Responses: TypeAlias = dict[int | str, dict[str, Any]]

_ERRORS: Final[_Responses] = {
    status: {"model": bodies.ErrorAnswer, "description": about}
    for status, about in {
        400: "The request is invalid.",
        401: "No valid access token.",
        403: "The access token does not allow this.",
        404: "An unknown topic or path.",
        405: "The path does not support this method.",
        408: "The request did not arrive in time.",
        409: "A lease is invalid, or has ended; or the group or the topic cannot be read by this relay.",
        413: "The body is too large.",
        415: "The body is not JSON.",
        421: "The server listens on this machine only, and the request names another host.",
        429: "A limit of the token, the address or the server is reached: try again later.",
        431: "The header is too large.",
        503: "Not ready, or the brokers cannot be reached: try again.",
    }.items()
}
_ARROW: Final[_Responses] = {
    200: {
        "content": {bodies.ARROW_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        "description": "Records, as JSON or as an Arrow stream.",
    }
}


def described_api(
    service: RelayService,
    metrics: Metrics,
    posts: Mapping[str, Post],
    denied: Callable[[Scope, AccessDeniedError], None],
) -> FastAPI:
    """Return the FastAPI application: it describes the POST requests, and answers the others.

    Args:
        service: the relay's service.
        metrics: the counters of the server.
        posts: the POST requests by path.
        denied: called for each denied call.
    """

    async def deny(request: Request, error: Exception) -> Response:
        if isinstance(error, AccessDeniedError):
            denied(request.scope, error)
        return _response(answer_of(error))

    api = FastAPI(
        title="Kafka Ordered Ops relay",
        description="Read, acknowledge and cancel records of Kafka, from any number of workers.",
        version="1",
        # These pages would load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        # An error is clearer than a redirect without a body.
        redirect_slashes=False,
    )
    with _BUILDING:
        for path, post in posts.items():
            _describe(api, path, post)
        _Looks(service, metrics).add_to(api)
    api.add_exception_handler(HTTPException, _http_error)
    api.add_exception_handler(AccessDeniedError, deny)
    return api


def _describe(api: FastAPI, path: str, post: Post) -> None:
    async def run(body: Any, request: Request) -> Response:
        sent = await request.body()
        scope = request.scope
        answer = await post.run(Call(scope[ACCESS], sent, dict(scope["headers"]), wire_of(scope)))
        if answer.sent is not None:
            answer.sent()
        return _response(answer)

    run.__annotations__["body"] = post.body
    responses = _ERRORS | (_ARROW if post.answer is bodies.ReadAnswer else {})
    api.add_api_route(
        path,
        run,
        methods=["POST"],
        name=post.name,
        operation_id=post.name,
        summary=(post.run.__doc__ or "").strip(),
        response_model=post.answer,
        responses=responses,
    )


class _Looks:
    """The GET requests: they change nothing."""

    def __init__(self, service: RelayService, metrics: Metrics) -> None:
        self._service, self._metrics = service, metrics

    def add_to(self, api: FastAPI) -> None:
        refused: _Responses = {status: _ERRORS[status] for status in (401, 403)}
        status, ready = bodies.StatusAnswer, bodies.ReadyAnswer
        api.get("/v1/status", responses=refused, response_model=status)(self.status)
        api.get("/v1/groups/{group:path}", responses=refused, response_model=status)(self.group)
        api.get("/health")(self.health)
        not_ready: _Responses = {
            503: {"model": ready, "description": "The logs are still being read."}
        }
        api.get("/ready", response_model=ready, responses=not_ready)(self.ready)
        api.get("/metrics", responses=refused, response_class=Response)(self.metrics)
        api.get("/", include_in_schema=False)(self.page)

    async def status(self, request: Request) -> bodies.StatusAnswer:
        """Return this server's status of the topics and groups that the caller may use."""
        return self._answer(self._allowed(request))

    async def group(self, group: str, request: Request) -> bodies.StatusAnswer:
        """Return this server's status of one group."""
        access: Access = request.scope[ACCESS]
        access.check_names(access.groups, [group])
        return self._answer(status for status in self._allowed(request) if status.group == group)

    async def health(self) -> dict[str, bool]:
        """Report that the server runs."""
        return {"ok": True}

    async def ready(self, response: Response) -> bodies.ReadyAnswer:
        """Return whether reads are served, and how far the logs have been read so far."""
        # Each log once: it covers all groups.
        logs = {
            (status.topic, status.partition): status for status in self._service.status()
        }.values()
        is_ready = self._service.is_ready
        response.status_code = 200 if is_ready else 503
        return bodies.ReadyAnswer(
            ready=is_ready,
            replayed=sum(log.replayed for log in logs),
            replayed_of=_sum_or_none(log.replayed_of for log in logs),
        )

    async def metrics(self, request: Request) -> Response:
        """Return metrics in the Prometheus text format; those of the whole server for tokens with all topics and groups."""
        access: Access = request.scope[ACCESS]
        text = self._metrics.text(
            self._allowed(request), is_ready=self._service.is_ready, is_whole=access.is_whole
        )
        return Response(text, headers={"content-type": TEXT_TYPE})

    async def page(self) -> Response:
        """Return the status page. It contains no data; it requests the status with the token that the user enters."""
        return Response(PAGE, headers=PAGE_HEADERS)

    def _allowed(self, request: Request) -> list[PartitionStatus]:
        """Return the rows that the caller may see: for each partition of its topics its groups, or the partition alone."""
        access: Access = request.scope[ACCESS]
        if access.is_whole:
            return self._service.status()
        allowed: list[PartitionStatus] = []
        for _, statuses in groupby(
            self._service.status(), lambda status: (status.topic, status.partition)
        ):
            rows = list(statuses)
            if access.topics.allow(rows[0].topic):
                own = [row for row in rows if row.group and access.groups.allow(row.group)]
                allowed += own or [rows[0].without_group()]
        return allowed

    def _answer(self, partitions: Iterable[PartitionStatus]) -> bodies.StatusAnswer:
        return bodies.StatusAnswer(
            ready=self._service.is_ready,
            now_ms=time.time_ns() // 1_000_000,
            partitions=[bodies.PartitionAnswer(**asdict(status)) for status in partitions],
        )


def _sum_or_none(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if there are no numbers, or one is unknown."""
    values = list(numbers)
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


async def _http_error(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    answer = answer_of(HttpError(status, str(getattr(error, "detail", "the server failed"))))
    return _response(answer, getattr(error, "headers", None))


def _response(answer: Answer, headers: Mapping[str, str] | None = None) -> Response:
    return Response(answer.body, answer.status, headers=headers, media_type=answer.content_type)
