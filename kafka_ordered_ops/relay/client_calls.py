"""The requests and retries of the relay's clients, without any I/O, so that both clients share them.

Each call is a generator: it yields what to send or how long to wait, gets the answer, and returns the result.
"""

from __future__ import annotations

import json
import random
import time
from base64 import b64decode
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any, Final, TypeAlias, TypeVar

from kafka_ordered_ops.core import errors
from kafka_ordered_ops.core.arguments import check_timeout_s
from kafka_ordered_ops.core.errors import (
    ConfigError,
    KafkaOrderedOpsError,
    LeaseError,
    RelayError,
    RelayLimitError,
    RelayUnavailableError,
)
from kafka_ordered_ops.core.processing.record import Record
from kafka_ordered_ops.core.strict_json import PARSER_ERRORS
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.relay.urls import check_url, shown_url

ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"

#: The pause before the first retry of a call; doubled each time.
_FIRST_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 2.0
#: How long a read waits at one of several servers: the next record may be at another one.
_TURN_S: Final = 1.0
#: Added to the wait that is requested from the server: longer than a server waits for Kafka. A hanging server delays a
#: call by this time.
_ANSWER_S: Final = 15.0
#: A hanging server is skipped for this multiple of its delay, if there are others: it must not delay every call.
_RESTS: Final = 2.0
#: The longest interval between acknowledgements of `records`, while there are any.
_ACKNOWLEDGE_S: Final = 1.0
#: The size of a request, far below a server's limit for bodies: a token may have thousands of characters.
_REQUEST_BYTES: Final = 40_000
#: The size of two offsets with their brackets and commas.
_RANGE_BYTES: Final = 42
_RANGES_PER_REQUEST: Final = 500
#: A server accepts no more.
_LEASES_PER_REQUEST: Final = 500

#: How much of an invalid answer an error quotes.
_SHOWN_BYTES: Final = 60

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Lease:
    """Records of one partition that this client holds until the lease ends."""

    token: str
    tp: TopicPartition
    #: Milliseconds since the epoch, by the server's clock.
    until_ms: int
    #: 1 if the records are handed out for the first time.
    attempt: int
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The answer to a read."""

    leases: tuple[Lease, ...]
    #: Whether every record of the window is acknowledged.
    done: bool

    @property
    def records(self) -> list[Record]:
        """The records of all leases."""
        return [record for lease in self.leases for record in lease.records]

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.leases)


@dataclass(frozen=True, slots=True)
class Send:
    """A request to send."""

    url: str
    body: bytes
    accept: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """A time to wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer."""

    status: int
    body: bytes


#: A call: for each request it gets a reply, or the error that occurred instead; `TimeoutError` if there was no reply in time.
Steps: TypeAlias = Generator[Send | Pause, "Reply | Exception | None", _T]


class Calls:
    """The calls of one client.

    Args:
        servers: URLs of servers, or one of them.
        has_token: whether the caller sends an access token.
        plain_http: whether credentials may be sent without TLS to other machines.
        timeout_s: how long to retry a call, at all servers in turn.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        has_token: bool = False,
        plain_http: bool = False,
        timeout_s: float,
    ) -> None:
        urls = [servers] if isinstance(servers, str) else list(servers)
        if not urls:
            raise ConfigError("no server is named: give at least one URL")
        for url in urls:
            check_url(url, has_token=has_token, plain_http=plain_http)
        self._servers = [url.rstrip("/") for url in urls]
        self._timeout_s = check_timeout_s(timeout_s, what="timeout_s")
        # Clients start with different servers.
        self._turn = random.randrange(len(self._servers))
        #: The `time.monotonic` time until which servers that did not answer are skipped.
        self._rests_until: dict[str, float] = {}

    def call(
        self, path: str, body: Any, *, accept: str = "*/*", wait_s: float = 0.0
    ) -> Steps[Reply]:
        """Send a request to one server after the other, until one succeeds."""
        sent = json.dumps(body, separators=(",", ":")).encode()
        ends_at, pause_s = time.monotonic() + self._timeout_s, _FIRST_PAUSE_S
        while True:
            server, sent_at = self._server(), time.monotonic()
            url = server + path
            reply = yield Send(url, sent, accept, wait_s + _ANSWER_S)
            if isinstance(reply, Reply) and reply.status == 200:
                return reply
            error = _error_of(reply, shown_url(url))
            if isinstance(reply, TimeoutError):
                now = time.monotonic()
                self._rests_until[server] = now + _RESTS * (now - sent_at)
            if not error.retriable or time.monotonic() + pause_s >= ends_at:
                raise error
            self._turn += 1
            yield Pause(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def read(self, body: dict[str, Any], *, accept: str, wait_s: float) -> Steps[Reply]:
        """Ask every server for records, then wait at each for a while."""
        if not isfinite(wait_s):
            raise ConfigError(f"wait_s {wait_s} is no time: give seconds")
        ends_at, calls, others = time.monotonic() + wait_s, 0, len(self._servers) - 1
        while True:
            left_s = max(ends_at - time.monotonic(), 0.0)
            turn_s = left_s if not others else min(left_s, _TURN_S) if calls > others else 0.0
            reply = yield from self.call(
                "/v1/read", body | {"wait_s": turn_s}, accept=accept, wait_s=turn_s
            )
            calls += 1
            self._turn += 1
            # Each server knows when a window is done, but hands out only the records of its own partitions.
            if not _understood(reply, partial(_is_empty, accept=accept)) or (
                calls > others and time.monotonic() >= ends_at
            ):
                return reply

    def _server(self) -> str:
        """Return the next server in turn that is not skipped; if all are, the one that is available first."""
        now, count = time.monotonic(), len(self._servers)
        in_turn = [self._servers[(self._turn + at) % count] for at in range(count)]
        return min(in_turn, key=lambda server: max(self._rests_until.get(server, 0.0), now))

    def deliver(self, body: dict[str, Any], wait_s: float) -> Steps[Delivery]:
        """Read records."""
        reply = yield from self.read(body, accept="application/json", wait_s=wait_s)
        return _understood(reply, _delivery)

    def table(self, body: dict[str, Any], wait_s: float) -> Steps[tuple[Any, bool]]:
        """Read records as an Arrow table, and whether the window is done."""
        reply = yield from self.read(body, accept=ARROW_TYPE, wait_s=wait_s)
        return _understood(reply, _table_of)

    def change_chosen(
        self, path: str, leases: Sequence[Lease | str], offsets: Iterable[int] | None
    ) -> Steps[None]:
        """Acknowledge or cancel leases, or offsets of a single lease."""
        if offsets is not None and len(leases) != 1:
            raise ConfigError(f"offsets are of one lease, and {len(leases)} are given")
        yield from self.change(path, [(_token(lease), offsets) for lease in leases])

    def change(self, path: str, leases: Iterable[tuple[str, Iterable[int] | None]]) -> Steps[None]:
        """Acknowledge or cancel leases, or some of their offsets."""
        for part in _requests([(token, _ranges(offsets)) for token, offsets in leases]):
            yield from self.call(path, {"leases": part})

    def extend(self, leases: Sequence[Lease | str], lease_s: float) -> Steps[list[int]]:
        """Extend leases."""
        until_ms: list[int] = []
        for part in _requests([(_token(lease), None) for lease in leases]):
            leases = [entry["lease"] for entry in part]
            reply = yield from self.call("/v1/extend", {"leases": leases, "lease_s": lease_s})
            until_ms += _understood(reply, lambda body: list(json.loads(body)["until_ms"]))
        return until_ms

    def window(self, plan: WindowPlan, group: str | None) -> Steps[str]:
        """Open a window."""
        reply = yield from self.call("/v1/windows", {"plan": plan.to_json(), "group": group})
        return _understood(reply, lambda body: str(json.loads(body)["group"]))


def read_body(
    group: str, records_max: int, lease_s: float, topics: str | Iterable[str] | None
) -> dict[str, Any]:
    """Return the body of a read, without its wait."""
    body: dict[str, Any] = {"group": group, "records_max": records_max, "lease_s": lease_s}
    if topics is not None:
        body["topics"] = [topics] if isinstance(topics, str) else list(topics)
    return body


@dataclass(slots=True)
class _Held:
    lease: Lease
    waiting: set[int]
    #: Offsets that are done, and not acknowledged yet.
    done: list[int] = field(default_factory=list)


class Taken:
    """Track the records of one read in a loop: which are done, and which leases to extend."""

    def __init__(self, calls: Calls, delivery: Delivery, lease_s: float) -> None:
        self._calls, self._lease_s = calls, lease_s
        self._held = [
            _Held(lease, {record.offset for record in lease.records}) for lease in delivery
        ]
        self._began(time.monotonic())
        self._acknowledged_s = time.monotonic()

    def _began(self, now_s: float) -> None:
        self._extend_s, self._ends_s = now_s + self._lease_s / 2, now_s + self._lease_s

    def __iter__(self) -> Iterator[tuple[_Held, Record]]:
        for held in self._held:
            for record in held.lease.records:
                yield held, record

    def done(self, held: _Held, record: Record) -> Steps[bool]:
        """Mark a record as done; return whether this client still holds the rest."""
        held.waiting.discard(record.offset)
        held.done.append(record.offset)
        now_s = time.monotonic()
        if now_s >= self._acknowledged_s + _ACKNOWLEDGE_S:
            yield from self.acknowledge()
        if now_s < self._extend_s:
            return True
        tokens = [other.lease.token for other in self._held if other.waiting]
        try:
            if tokens:
                yield from self._calls.extend(tokens, self._lease_s)
        except LeaseError:
            # Another client may hold the records by now.
            for other in self._held:
                other.waiting.clear()
            return False
        self._began(now_s)
        return True

    def acknowledge(self) -> Steps[None]:
        """Acknowledge the records that are done."""
        done = [
            (
                held.lease.token,
                held.done if held.waiting or len(held.done) < len(held.lease.records) else None,
            )
            for held in self._held
            if held.done
        ]
        if done:
            yield from self._calls.change("/v1/acknowledge", done)
        for held in self._held:
            held.done = []
        self._acknowledged_s = time.monotonic()

    def end(self) -> Steps[None]:
        """Acknowledge the records that are done, and give the rest back."""
        yield from self.acknowledge()
        rest = [(held.lease.token, held.waiting) for held in self._held if held.waiting]
        if rest and time.monotonic() < self._ends_s:
            yield from self._calls.change("/v1/cancel", rest)


def _ranges(offsets: Iterable[int] | None) -> list[list[int]] | None:
    if offsets is None:
        return None
    ranges: list[list[int]] = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] >= offset:
            ranges[-1][1] = offset + 1
        else:
            ranges.append([offset, offset + 1])
    return ranges


def _requests(
    leases: Sequence[tuple[str, list[list[int]] | None]],
) -> Iterator[list[dict[str, Any]]]:
    """Yield parts that fit into one request each."""
    part: list[dict[str, Any]] = []
    room = _REQUEST_BYTES
    for token, ranges in leases:
        pieces: list[list[list[int]] | None] = [None]
        if ranges is not None:
            starts = range(0, len(ranges), _RANGES_PER_REQUEST)
            pieces = [ranges[start : start + _RANGES_PER_REQUEST] for start in starts]
        for piece in pieces:
            size = len(token) + _RANGE_BYTES * (1 + len(piece or ()))
            if part and (len(part) >= _LEASES_PER_REQUEST or size > room):
                yield part
                part, room = [], _REQUEST_BYTES
            part.append({"lease": token} | ({} if piece is None else {"offsets": piece}))
            room -= size
    if part:
        yield part


#: Arrow's parser raises some more than others.
_NOT_UNDERSTOOD: Final = (*PARSER_ERRORS, MemoryError, OSError, RuntimeError)


def _understood(reply: Reply, read: Callable[[bytes], _T]) -> _T:
    """Return the content of an answer; raise `RelayError` for an answer that is not a relay's."""
    try:
        return read(reply.body)
    except _NOT_UNDERSTOOD as error:
        raise RelayError(
            f"a server's answer is not a relay's, {reply.body[:_SHOWN_BYTES]!r}: check its URL, and whether a proxy or a "
            "login page answers for it"
        ) from error


def _delivery(body: bytes) -> Delivery:
    answer = json.loads(body)
    return Delivery(tuple(_lease(fields) for fields in answer["leases"]), answer["done"])


def _lease(fields: dict[str, Any]) -> Lease:
    tp, attempt = TopicPartition(fields["topic"], fields["partition"]), fields["attempt"]
    records = tuple(
        Record(
            tp.topic,
            tp.partition,
            record["offset"],
            record["timestamp_ms"],
            _bytes(record["key"]),
            _bytes(record["value"]),
            tuple((name, _bytes(value)) for name, value in record["headers"]),
            attempt,
        )
        for record in fields["records"]
    )
    return Lease(fields["lease"], tp, fields["until_ms"], attempt, records)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _is_empty(body: bytes, accept: str) -> bool:
    if accept == ARROW_TYPE:
        table, is_done = _table_of(body)
        return not table.num_rows and not is_done
    return body == b'{"leases":[],"done":false}'


def _table_of(body: bytes) -> tuple[Any, bool]:
    """Return the table of an Arrow stream, and whether every record of the window is acknowledged."""
    import pyarrow as pa

    table = pa.ipc.open_stream(body).read_all()
    return table, bool(table.schema.metadata[b"done"] == b"true")


def _token(lease: Lease | str) -> str:
    return lease if isinstance(lease, str) else lease.token


def _error_of(reply: Reply | Exception | None, url: str) -> KafkaOrderedOpsError:
    if not isinstance(reply, Reply):
        return RelayUnavailableError(f"no answer from {url}: {reply!r}")
    try:
        facts = json.loads(reply.body)["error"]
        kind, message = str(facts["type"]), str(facts["message"])
        retriable = facts["retriable"] is True
    except (LookupError, RecursionError, TypeError, ValueError):
        # For example, a proxy answered.
        kind, message, retriable = "", reply.body[:200].decode(errors="replace"), False
    text = f"{url} answered {reply.status}: {message}"
    if kind == "RelayLimitError":
        return RelayLimitError(text)
    if retriable or reply.status in (408, 429, 502, 503, 504):
        return RelayUnavailableError(text)
    if reply.status in (401, 403):
        return errors.AccessDeniedError(text)
    error_type = getattr(errors, kind, None) if kind in _KNOWN else None
    return RelayError(text) if error_type is None else error_type(text)


#: Errors of a server that a client raises with the same class: the message has their facts.
_KNOWN: Final = frozenset({"ConfigError", "LeaseError", "UnknownTopicError"})
