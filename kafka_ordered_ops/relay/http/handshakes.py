"""TLS handshakes of the relay's connections, which are limited before anything else of a connection.

An event loop that encrypts by itself does not report a connection before its handshake is complete. So clients that begin
a handshake and then stay silent could open any number of connections.
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

#: The limit for a client that connects, but does not complete the handshake.
HANDSHAKE_TIMEOUT_S: Final = 10.0


class Handshakes:
    """The connections of one server with an incomplete handshake: as many as complete connections are allowed."""

    def __init__(self, context: ssl.SSLContext, connections: Connections) -> None:
        self._context, self._connections = context, connections
        self._by_peer: Counter[str] = Counter()
        self._open: dict[_Handshake, asyncio.Task[None]] = {}

    def protocol(self) -> Callable[..., asyncio.Protocol]:
        """Return the factory that uvicorn calls for each connection."""
        inner = self._connections.protocol()
        return lambda **arguments: _Handshake(self, lambda: inner(**arguments))

    def begin(self, handshake: _Handshake, transport: asyncio.Transport, peer: str) -> None:
        """Begin a handshake, or close a connection beyond the limits."""
        limits = self._connections.limits
        if self._by_peer[peer] >= limits.connections_per_peer_max:
            self._refuse(transport, 429)
        elif len(self._open) >= limits.connections_max:
            self._refuse(transport, 503)
        else:
            self._by_peer[peer] += 1
            # The next bytes are for TLS, so it starts at once: a task would start too late.
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
        """Cancel the handshakes that are not complete."""
        for task in self._open.values():
            task.cancel()

    def _refuse(self, transport: asyncio.Transport, status: int) -> None:
        # Without TLS, no answer can be sent yet.
        self._connections.refused[status] += 1
        transport.abort()

    def _end(self, handshake: _Handshake, peer: str) -> None:
        del self._open[handshake]
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]


class _Handshake(asyncio.Protocol):
    """One connection until its handshake is complete; then the protocol that `make` returns takes over."""

    def __init__(self, all_of_them: Handshakes, make: Callable[[], asyncio.Protocol]) -> None:
        self._all, self._make = all_of_them, make
        #: Data that arrives between the end of the handshake and the loop's next round.
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
        """Pass the connection on once it is secure."""
        try:
            secure = await secured
        except (OSError, asyncio.CancelledError):
            # Clients' mistakes are not logged; errors of TLS and timeouts are also `OSError`.
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
    """A coroutine whose first step runs at once; to be awaited once."""

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
