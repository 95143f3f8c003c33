"""Clients of a relay that cost little, so that the server is what is measured: one event loop, and HTTP by hand."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from kafka_ordered_ops.relay.limits import RECORDS_MAX

_WAIT_S: Final = 1.0
_LEASE_S: Final = 300.0
#: A group's first read looks up where it begins.
_BEGIN_S: Final = 30.0

_LEASES: Final = re.compile(rb'"lease":"([^"]+)"')
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RECORD: Final = b'{"offset":'


_T = TypeVar("_T")


class _Connection(asyncio.Protocol):
    """One connection that is kept alive, with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._received = bytearray()
        self._whole = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one, and not of its class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if not self._whole:
            head = received.find(b"\r\n\r\n")
            if head < 0:
                return
            length = _LENGTH.search(received, 0, head + 2)
            self._whole = head + 4 + (int(length[1]) if length else 0)
        if len(received) >= self._whole and self._answer is not None:
            answer, self._answer = self._answer, None
            self._whole, self._received = 0, bytearray()
            if not answer.done():
                answer.set_result(bytes(received))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(f"the server hung up: {exc}"))

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    async def post(self, path: str, body: bytes) -> bytes:
        """Send a request; return the whole answer, its head included."""
        if self._transport is None:
            raise AssertionError("connected")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        found = await self._answer
        if not found.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"{path}: {found[:400].decode(errors='replace')}")
        return found


@dataclass(frozen=True)
class Load:
    """What clients of one group ask of a server.

    Args:
        port: the server's, on this machine.
        group: a new one reads from the topics' start.
        batch: the most records of a read. What it returns is acknowledged by one request.
        connections: how many there are; each has one request at a time.
    """

    port: int
    group: str
    batch: int
    connections: int

    def first_s(self) -> float:
        """Reads and acknowledges one record, of a group that has just begun; returns how long the read took."""
        return _run(self._first())

    def drain(self, records: int) -> float:
        """Reads and acknowledges so many records, each client as fast as it is answered; returns the seconds."""
        return _run(self._drain(records))

    def pace(self, rate: float, seconds: float) -> list[float]:
        """Sends so many requests a second, whether or not those before are answered: a read, then its acknowledgement.

        Returns:
            The seconds of each request from when it was due to its answer, sorted. Waits for a free connection are in it.
        """
        return sorted(_run(self._pace(rate, seconds)))

    async def _first(self) -> float:
        (connection,) = await self._connect(1)
        began = time.perf_counter()
        while not (leases := await self._read(connection, 1))[0]:
            if time.perf_counter() - began > _BEGIN_S:
                raise TimeoutError(f"group {self.group} got nothing within {_BEGIN_S:g} s")
        took = time.perf_counter() - began
        await self._acknowledge(connection, leases[0])
        connection.close()
        return took

    async def _drain(self, records: int) -> float:
        connections = await self._connect(self.connections)
        left = acknowledged = records
        began = time.perf_counter()

        async def work(connection: _Connection) -> None:
            nonlocal left, acknowledged
            while left > 0:
                asked = min(self.batch, left)
                left -= asked
                leases, count = await self._read(connection, asked)
                left += asked - count
                if leases:
                    await self._acknowledge(connection, leases)
                    acknowledged -= count

        async with asyncio.TaskGroup() as tasks:
            for one in connections:
                tasks.create_task(work(one))
        took = time.perf_counter() - began
        if acknowledged:
            raise AssertionError(f"{acknowledged} records are not acknowledged")
        for one in connections:
            one.close()
        return took

    async def _pace(self, rate: float, seconds: float) -> list[float]:
        connections = await self._connect(self.connections)
        idle, due = deque(connections), deque[float]()
        leased = deque[list[bytes]]()
        took: list[float] = []
        is_read = False

        async def send(connection: _Connection, at: float) -> None:
            nonlocal is_read
            while True:
                is_read = not is_read or not leased
                if is_read:
                    leases, _ = await self._read(connection, self.batch)
                    if leases:
                        leased.append(leases)
                else:
                    await self._acknowledge(connection, leased.popleft())
                took.append(time.perf_counter() - at)
                if not due:
                    break
                at = due.popleft()
            idle.append(connection)

        async with asyncio.TaskGroup() as tasks:
            began = time.perf_counter()
            for at in _times(began, rate, seconds):
                while (early := at - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                if idle:
                    tasks.create_task(send(idle.popleft(), at))
                else:
                    due.append(at)
        for one in connections:
            one.close()
        return took

    async def _connect(self, count: int) -> list[_Connection]:
        loop = asyncio.get_running_loop()
        return [
            (await loop.create_connection(_Connection, "127.0.0.1", self.port))[1]
            for _ in range(count)
        ]

    async def _read(self, connection: _Connection, records_max: int) -> tuple[list[bytes], int]:
        body = (
            f'{{"group":"{self.group}","records_max":{min(records_max, RECORDS_MAX)},"wait_s":{_WAIT_S},'
            f'"lease_s":{_LEASE_S}}}'
        )
        answer = await connection.post("/v1/read", body.encode())
        return _LEASES.findall(answer), answer.count(_RECORD)

    async def _acknowledge(self, connection: _Connection, leases: list[bytes]) -> None:
        named = b",".join([b'{"lease":"%s"}' % one for one in leases])
        await connection.post("/v1/acknowledge", b'{"leases":[%s]}' % named)


def _times(began: float, rate: float, seconds: float) -> Iterator[float]:
    for n in range(int(rate * seconds)):
        yield began + n / rate


def _run(load: Coroutine[Any, Any, _T]) -> _T:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load)


def percentile(of_sorted: list[float], share: float) -> float:
    """The value that so large a share is not above."""
    return of_sorted[min(len(of_sorted) - 1, int(len(of_sorted) * share))]
