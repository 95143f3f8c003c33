"""TLS of the relay's connections: handshakes count before anything else of a connection does.

An event loop that encrypts by itself tells nobody of a connection before its handshake is over: clients that begin one and say
nothing more would be open files without number.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, TypeVar, cast

from kafka_ordered_ops.relay.http.protocol import Connections

_T = TypeVar("_T")

#: A client that connects, and does not go on with TLS.
HANDSHAKE_TIMEOUT_S: Final = 10.0


class Handshakes:
    """The connections of one server whose handshake is not over: as many as there may be of the others."""

    def __init__(self, context: ssl.SSLContext, connections: Connections) -> None:
        self._context, self._connections = context, connections
        self._by_peer: Counter[str] = Counter()
        self._open: dict[_Handshake, asyncio.Task[None]] = {}

    def protocol(self) -> Callable[..., asyncio.Protocol]:
        """Return what uvicorn calls for each connection."""
        inner = self._connections.protocol()
        return lambda **given: _Handshake(self, lambda: inner(**given))

    def begin(self, handshake: _Handshake, transport: asyncio.Transport, peer: str) -> None:
        """Begin a handshake, or close a connection that is one too many."""
        limits = self._connections.limits
        if self._by_peer[peer] >= limits.connections_per_peer_max:
            self._refuse(transport, 429)
        elif len(self._open) >= limits.connections_max:
            self._refuse(transport, 503)
        else:
            self._by_peer[peer] += 1
            # What comes next is for TLS: a task would begin too late.
            secured = _Begun(
                asyncio.get_running_loop().start_tls(
                    transport,
                    handshake,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                )
            )
            task = asyncio.ensure_future(handshake.run(transport, secured))
            self._open[handshake] = task
            task.add_done_callback(lambda _: self._end(handshake, peer))

    def abort(self) -> None:
        """End those that are not over."""
        for task in self._open.values():
            task.cancel()

    def _refuse(self, transport: asyncio.Transport, status: int) -> None:
        # There is nothing yet in which an answer could be sent.
        self._connections.refused[status] += 1
        transport.abort()

    def _end(self, handshake: _Handshake, peer: str) -> None:
        del self._open[handshake]
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]


class _Handshake(asyncio.Protocol):
    """One connection until its handshake is over; it then belongs to the protocol that `make` makes."""

    def __init__(self, all_of_them: Handshakes, make: Callable[[], asyncio.Protocol]) -> None:
        self._all, self._make = all_of_them, make
        #: What arrives between the end of the handshake and the loop's next round.
        self._early: list[bytes] = []
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._all.begin(self, cast("asyncio.Transport", transport), address)

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    async def run(
        self, transport: asyncio.Transport, secured: Awaitable[asyncio.Transport | None]
    ) -> None:
        """Pass the connection on when it is a secure one."""
        try:
            secure = await secured
        except (OSError, asyncio.CancelledError):
            # What clients send is no news; errors of TLS and deadlines are errors of the system, too.
            secure = None
        if secure is None or self._is_lost:
            transport.abort()
            return
        made: Any = self._make()
        secure.set_protocol(made)
        made.connection_made(secure)
        for data in self._early:
            made.data_received(data)


class _Begun(Awaitable[_T]):
    """A coroutine whose first step is made at once; to be awaited once."""

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        self._waits_for = coroutine.send(None)

    def __await__(self) -> Generator[Any, Any, _T]:
        waits_for = self._waits_for
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001, a cancellation is passed on, too
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, sent)
            try:
                waits_for = step()
            except StopIteration as ended:
                return cast("_T", ended.value)
