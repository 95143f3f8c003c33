"""The operations of clients: check rights, call the service, and answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import (
    AccessDeniedError,
    ConfigError,
    KafkaOrderedOpsError,
    RelayUnavailableError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.window.plan import PLAN_BYTES_MAX, WindowPlan
from kafka_ordered_ops.relay.http import bodies
from kafka_ordered_ops.relay.http.answers import Answer, ClientGoneError, Wire
from kafka_ordered_ops.relay.http.metrics import Metrics
from kafka_ordered_ops.relay.http.slots import Slots
from kafka_ordered_ops.relay.limits import ANSWER_BYTES, ANSWERS_MAX, Limits
from kafka_ordered_ops.relay.ports import Delivered, LeasedOffsets, RelayService
from kafka_ordered_ops.relay.rights import Access, Verb

#: Added to the client's wait, for the brokers to store the change.
_ANSWER_S: Final = 30.0

#: The approximate size of a record in an answer without its contents.
_RECORD_BYTES: Final = 100
_DONE: Final = Answer(b"{}")

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, with its caller's rights and its body."""

    access: Access
    body: bytes
    headers: Mapping[bytes, bytes]
    wire: Wire


class Operations:
    """The calls of clients, from the bytes of a request to an answer."""

    def __init__(self, service: RelayService, metrics: Metrics, limits: Limits) -> None:
        self._service, self._metrics, self._limits = service, metrics, limits
        self._large_answers = Slots(ANSWERS_MAX)

    async def read(self, call: Call) -> Answer:
        """Hand out records."""
        request = _parsed(bodies.ReadBody, call.body)
        topics = self._check_read(call.access, request)
        delivered, done = await self._read(call, request, topics)
        if not _is_large(delivered):
            return self._read_answer(call, delivered, done, None)
        # The answer is in memory several times until it is sent, so this caller's other large answers wait.
        turn = self._large_answers.of(call.access.name)
        await turn.acquire()
        try:
            await self._check_there(call, delivered)
            return self._read_answer(call, delivered, done, turn.release)
        except BaseException:
            turn.release()
            raise

    def _read_answer(
        self,
        call: Call,
        delivered: Sequence[Delivered],
        done: bool,
        sent: Callable[[], None] | None,
    ) -> Answer:
        self._metrics.records_delivered += sum(len(delivery.records) for delivery in delivered)
        if bodies.ARROW_TYPE.encode() in call.headers.get(b"accept", b""):
            body = bodies.read_arrow(delivered, done=done)
            return Answer(body, content_type=bodies.ARROW_TYPE, sent=sent)
        return Answer(bodies.read_json(delivered, done=done), sent=sent)

    async def acknowledge(self, call: Call) -> Answer:
        """Acknowledge records."""
        leases = self._leases(call)
        async with _deadline():
            await self._service.acknowledge(leases)
        self._metrics.leases_acknowledged += len(leases)
        return _DONE

    async def cancel(self, call: Call) -> Answer:
        """Give records back."""
        leases = self._leases(call)
        async with _deadline():
            await self._service.cancel(leases)
        self._metrics.leases_cancelled += len(leases)
        return _DONE

    async def extend(self, call: Call) -> Answer:
        """Extend leases."""
        request = _parsed(bodies.ExtendBody, call.body)
        self._check_leases(call.access, request.leases)
        self._check_lease_s(call.access, request.lease_s)
        async with _deadline():
            until_ms = await self._service.extend(request.leases, request.lease_s)
        self._metrics.leases_extended += len(request.leases)
        return Answer(json.dumps({"until_ms": until_ms}).encode())

    async def open_window(self, call: Call) -> Answer:
        """Open a group with the records of a window."""
        is_large = len(call.body) > self._limits.body_bytes_max
        # Parsing the largest plan takes half a second, which must not block other calls.
        plan, name = await asyncio.to_thread(_plan, call.body) if is_large else _plan(call.body)
        group = plan.window_id if name is None else name
        call.access.check(Verb.ADMIN, topics=plan.topics, groups=[group])
        async with _deadline():
            opened = await self._service.open_window(plan, name, call.access.reader)
        return Answer(json.dumps({"group": opened}).encode())

    # --- rights --------------------------------------------------------------------------------------

    def _check_read(self, access: Access, request: bodies.ReadBody) -> frozenset[str] | None:
        """Return the topics to read; None for all. An error names only topics that the caller may know."""
        access.check(Verb.READ, topics=request.topics or (), groups=[request.group])
        self._check_lease_s(access, request.lease_s)
        if request.topics is None and access.topics.is_all:
            return None
        allowed = frozenset(topic for topic in self._service.topics if access.topics.allow(topic))
        if not allowed:
            raise AccessDeniedError(
                f"the token {access.name!r} allows none of the topics that are served"
            )
        topics = allowed if request.topics is None else frozenset(request.topics)
        if unknown := sorted(topics - allowed):
            raise UnknownTopicError(
                f"this relay does not serve {', '.join(unknown)}: it serves {', '.join(sorted(allowed))}",
                topics=unknown,
            )
        return topics

    def _leases(self, call: Call) -> list[LeasedOffsets]:
        request = _parsed(bodies.LeasesBody, call.body)
        self._check_leases(call.access, [lease.lease for lease in request.leases])
        return request.offsets()

    def _check_leases(self, access: Access, tokens: Sequence[str]) -> None:
        # For a caller with all rights, tokens are not decoded here: the service decodes them anyway.
        places = () if access.is_whole else {self._service.place_of(token) for token in tokens}
        access.check(
            Verb.ACKNOWLEDGE,
            topics={place.topic for place in places},
            groups={place.group for place in places},
        )

    def _check_lease_s(self, access: Access, lease_s: float) -> None:
        most_s = self._limits.lease_s_max
        if lease_s > most_s:
            raise ConfigError(f"lease_s is {lease_s:g}: this server allows {most_s:g} s at most")
        access.check_lease(lease_s)

    # --- reading -------------------------------------------------------------------------------------

    async def _read(
        self, call: Call, request: bodies.ReadBody, topics: frozenset[str] | None
    ) -> tuple[list[Delivered], bool]:
        """Read while the client is connected: records for a lost client would be blocked for a whole lease."""
        with call.wire.cancelled_when_gone():
            async with _deadline(request.wait_s):
                delivered, done = await self._service.read(
                    request.group,
                    records_max=request.records_max,
                    wait_s=request.wait_s,
                    lease_s=request.lease_s,
                    topics=topics,
                    reader=call.access.reader,
                )
        await self._check_there(call, delivered)
        return delivered, done

    async def _check_there(self, call: Call, delivered: Sequence[Delivered]) -> None:
        """Give records back and raise `ClientGoneError` if the client has disconnected in the meantime."""
        if not call.wire.is_gone:
            return
        with suppress(KafkaOrderedOpsError):
            if delivered:
                await self._service.cancel([(delivery.lease, None) for delivery in delivered])
        raise ClientGoneError


def _is_large(delivered: Sequence[Delivered]) -> bool:
    size = _RECORD_BYTES * sum(len(delivery.records) for delivery in delivered)
    for delivery in delivered:
        if size >= ANSWER_BYTES:
            break
        for record in delivery.records:
            size += len(record.value or b"") + len(record.key or b"")
            if record.headers:
                size += sum(len(name) + len(value or b"") for name, value in record.headers)
    return size >= ANSWER_BYTES


class _deadline:
    """Raise `RelayUnavailableError` if the service takes too long."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self._timeout = asyncio.timeout(wait_s + _ANSWER_S)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        try:
            await self._timeout.__aexit__(*exc_info)
        except TimeoutError as error:
            raise RelayUnavailableError(
                f"no answer within {_ANSWER_S:g} s: a change may have been stored. Repeat the request"
            ) from error


def _plan(body: bytes) -> tuple[WindowPlan, str | None]:
    """Return the plan and the name of the group, if any, from a request that opens a window."""
    try:
        request = bodies.WindowBody.model_validate(
            strict_json.loads(body, limit_bytes=PLAN_BYTES_MAX)
        )
        return WindowPlan.from_json(request.plan), request.group
    except ValidationError as error:
        raise bodies.body_error(error) from None
    except JsonError as error:
        raise ConfigError(f"this is not a window plan: {error}") from error


def _parsed(model: type[_Model], body: bytes) -> _Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise bodies.body_error(error) from None


Run = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Post:
    """A POST operation for clients."""

    run: Run
    #: The right that a caller needs before even its body is read.
    verb: Verb
    body: type[BaseModel]
    answer: type[BaseModel]
    bytes_max: int

    @property
    def name(self) -> str:
        """The name in metrics."""
        return self.run.__name__

    @property
    def has_plan(self) -> bool:
        """Whether the body has a plan, which may be large."""
        return self.bytes_max == PLAN_BYTES_MAX


def posts(run: Operations, bytes_max: int) -> dict[str, Post]:
    """Return the POST operations by path; only a plan may have more than `bytes_max`."""
    leases, done = bodies.LeasesBody, bodies.DoneAnswer
    return {
        "/v1/read": Post(run.read, Verb.READ, bodies.ReadBody, bodies.ReadAnswer, bytes_max),
        "/v1/acknowledge": Post(run.acknowledge, Verb.ACKNOWLEDGE, leases, done, bytes_max),
        "/v1/cancel": Post(run.cancel, Verb.ACKNOWLEDGE, leases, done, bytes_max),
        "/v1/extend": Post(
            run.extend, Verb.ACKNOWLEDGE, bodies.ExtendBody, bodies.ExtendAnswer, bytes_max
        ),
        "/v1/windows": Post(
            run.open_window, Verb.ADMIN, bodies.WindowBody, bodies.WindowAnswer, PLAN_BYTES_MAX
        ),
    }
