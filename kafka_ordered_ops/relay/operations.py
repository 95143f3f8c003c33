"""What clients ask for: checks of rights, calls of the service, and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.types import Receive

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import (
    AccessDeniedError,
    ConfigError,
    KafkaOrderedOpsError,
    RelayUnavailableError,
)
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.plan import PLAN_BYTES_MAX, WindowPlan
from kafka_ordered_ops.relay import bodies
from kafka_ordered_ops.relay.access import Access, Verb
from kafka_ordered_ops.relay.answers import Answer, ClientGoneError
from kafka_ordered_ops.relay.metrics import Metrics
from kafka_ordered_ops.relay.ports import Delivered, LeasedOffsets, RelayService

#: Beyond the client's wait: for the brokers to store the change.
_ANSWER_S: Final = 30.0

_DONE: Final = Answer(b"{}")

_Model = TypeVar("_Model", bound=BaseModel)


class Operations:
    """The calls of clients, from the bytes of a request to an answer."""

    def __init__(self, service: RelayService, metrics: Metrics) -> None:
        self._service, self._metrics = service, metrics

    async def read(
        self, access: Access, body: bytes, headers: Mapping[bytes, bytes], receive: Receive
    ) -> Answer:
        """Hand out records."""
        asked = _parsed(bodies.ReadBody, body)
        topics = self._topics(access, asked.topics)
        delivered, done = await self._read(asked, topics, 0.0)
        if not delivered and not done and asked.wait_s:
            delivered, done = await self._read_while_there(asked, topics, receive)
        self._metrics.records_delivered += sum(len(one.records) for one in delivered)
        if bodies.ARROW_TYPE.encode() in headers.get(b"accept", b""):
            return Answer(bodies.read_arrow(delivered, done=done), content_type=bodies.ARROW_TYPE)
        return Answer(bodies.read_json(delivered, done=done))

    async def acknowledge(
        self, access: Access, body: bytes, _headers: Mapping[bytes, bytes], _receive: Receive
    ) -> Answer:
        """Note that records are done."""
        leases = self._leases(access, body)
        async with _deadline():
            await self._service.acknowledge(leases)
        self._metrics.leases_acknowledged += len(leases)
        return _DONE

    async def cancel(
        self, access: Access, body: bytes, _headers: Mapping[bytes, bytes], _receive: Receive
    ) -> Answer:
        """Give records back."""
        leases = self._leases(access, body)
        async with _deadline():
            await self._service.cancel(leases)
        self._metrics.leases_cancelled += len(leases)
        return _DONE

    async def extend(
        self, access: Access, body: bytes, _headers: Mapping[bytes, bytes], _receive: Receive
    ) -> Answer:
        """Let leases end later."""
        asked = _parsed(bodies.ExtendBody, body)
        self._check_leases(access, asked.leases)
        async with _deadline():
            until_ms = await self._service.extend(asked.leases, asked.lease_s)
        self._metrics.leases_extended += len(asked.leases)
        return Answer(json.dumps({"until_ms": until_ms}).encode())

    async def open_window(
        self, access: Access, body: bytes, _headers: Mapping[bytes, bytes], _receive: Receive
    ) -> Answer:
        """Begin a group with the records of a window."""
        try:
            asked = bodies.WindowBody.model_validate(
                strict_json.loads(body, limit_bytes=PLAN_BYTES_MAX)
            )
            plan = WindowPlan.from_json(Fields(asked.plan, "plan"))
        except ValidationError as error:
            raise bodies.body_error(error) from None
        except JsonError as error:
            raise ConfigError(f"this is not a window plan: {error}") from error
        access.check(Verb.ADMIN, plan.topics)
        async with _deadline():
            group = await self._service.open_window(plan, asked.group)
        return Answer(json.dumps({"group": group}).encode())

    def _topics(self, access: Access, asked: Sequence[str] | None) -> frozenset[str] | None:
        if asked is not None:
            access.check(Verb.READ, asked)
            return frozenset(asked)
        access.check(Verb.READ)
        if access.topics is None:
            return None
        topics = access.topics & self._service.topics
        if not topics:
            raise AccessDeniedError(
                f"the token {access.name!r} allows none of the topics that are served"
            )
        return topics

    def _leases(self, access: Access, body: bytes) -> list[LeasedOffsets]:
        asked = _parsed(bodies.LeasesBody, body)
        self._check_leases(access, [one.lease for one in asked.leases])
        return asked.offsets()

    def _check_leases(self, access: Access, tokens: Sequence[str]) -> None:
        # A caller with all topics is spared the look into each token: the service looks as well.
        topics = () if access.topics is None else {self._service.topic_of(one) for one in tokens}
        access.check(Verb.ACKNOWLEDGE, topics)

    async def _read(
        self, asked: bodies.ReadBody, topics: frozenset[str] | None, wait_s: float
    ) -> tuple[list[Delivered], bool]:
        async with _deadline(wait_s):
            return await self._service.read(
                asked.group,
                records_max=asked.records_max,
                wait_s=wait_s,
                lease_s=asked.lease_s,
                topics=topics,
            )

    async def _read_while_there(
        self, asked: bodies.ReadBody, topics: frozenset[str] | None, receive: Receive
    ) -> tuple[list[Delivered], bool]:
        """Wait for records as long as the client does: records for one that is gone would be nobody's for a whole lease."""
        reading = asyncio.ensure_future(self._read(asked, topics, asked.wait_s))
        leaving = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
            reading.cancel()
            with suppress(asyncio.CancelledError, KafkaOrderedOpsError):
                delivered, _ = await reading
                await self._service.cancel([(one.lease, None) for one in delivered])
            raise ClientGoneError
        finally:
            leaving.cancel()
            reading.cancel()


class _deadline:
    """Raise `RelayUnavailableError` when the service takes too long."""

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


def _parsed(model: type[_Model], body: bytes) -> _Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise bodies.body_error(error) from None


Run = Callable[[Access, bytes, Mapping[bytes, bytes], Receive], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Post:
    """A POST request that clients may send."""

    run: Run
    #: What its caller must be allowed, to have as much as its body read.
    verb: Verb
    body: type[BaseModel]
    answer: type[BaseModel]
    bytes_max: int

    @property
    def name(self) -> str:
        """Its name, in metrics."""
        return self.run.__name__


def posts(run: Operations, bytes_max: int) -> dict[str, Post]:
    """Return all of them by path; only a plan may have more than `bytes_max`."""
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
