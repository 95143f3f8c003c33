"""A relay's server in a thread of the test, and requests by hand."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka_ordered_ops.relay.http.server import Listening, RelayServer
from kafka_ordered_ops.relay.ports import RelayService
from tests.support.relay_fake import FakeService

#: Makes a service.
Makes = Callable[[], RelayService]

_T = TypeVar("_T")
_TIMEOUT_S = 20.0


class Running:
    """A server that runs."""

    def __init__(self, server: RelayServer, service: FakeService | None) -> None:
        self.server = server
        if service is not None:
            self.service = service
        self.url = server.url
        self.loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self.url.rpartition("//")[2].rsplit(":", 1)
        return host, int(port)

    def call(self, function: Callable[[], _T]) -> _T:
        """What a function returns on the server's loop."""

        async def called() -> _T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(_TIMEOUT_S)

    def connect(self) -> socket.socket:
        """A connection of the test's own."""
        return socket.create_connection(self.address, timeout=_TIMEOUT_S)


@contextmanager
def serving(
    listening: Listening,
    service: FakeService | Makes | None = None,
    *,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> Iterator[Running]:
    """A server of a service, which is a fake one by default; `run` makes the event loop."""
    fake = None if callable(service) else service or FakeService()
    server = RelayServer(listening, service if callable(service) else lambda: fake or FakeService())
    running = Running(server, fake)
    begun = threading.Event()

    async def serve() -> None:
        running.loop = asyncio.get_running_loop()
        begun.set()
        await server.serve()

    thread = threading.Thread(target=lambda: run(serve()), name="relay-server")
    thread.start()
    try:
        assert begun.wait(_TIMEOUT_S)
        yield running
    finally:
        server.stop()
        thread.join(_TIMEOUT_S)
        assert not thread.is_alive()


def request_bytes(
    path: str, body: Any, *, host: str = "localhost", token: str | None = None
) -> bytes:
    """A request as it goes over the wire."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    access = "" if token is None else f"authorization: Bearer {token}\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{access}"
        f"content-length: {len(sent)}\r\n\r\n"
    )
    return head.encode() + sent


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def read_to_end(connection: socket.socket) -> bytes:
    """All that a server sends until it closes the connection."""
    parts = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)
