"""An address that leads to a broker as long as a test wants it to."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress


@contextmanager
def forwarded(
    port: int,
    bootstrap: str,
    answer: Callable[[bytes], bytes | None] | None = None,
    watch: Callable[[int, bytes, bool], None] | None = None,
) -> Iterator[None]:
    """Brings connections to a port to the broker, but those whose first request has an answer.

    `watch` gets a connection's number, a request or a response, and whether it is a request.
    """
    host, _, number = bootstrap.rpartition(":")

    def pump(source: socket.socket, target: socket.socket, is_request: bool, count: int) -> None:
        with suppress(OSError):
            for some in iter(lambda: _frame(source) if watch else source.recv(65_536), b""):
                if watch:
                    watch(count, some, is_request)
                target.sendall(some)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    with ExitStack() as stack, socket.create_server(("127.0.0.1", port)) as server:

        def accept() -> None:
            with suppress(OSError):
                for count in itertools.count():
                    ours, _ = server.accept()
                    if answer and (reply := answer(ours.recv(65_536, socket.MSG_PEEK))):
                        with closing(ours):
                            ours.sendall(reply)
                        continue
                    theirs = socket.create_connection((host, int(number)))
                    for one, other, is_request in ((ours, theirs, True), (theirs, ours, False)):
                        stack.enter_context(closing(one))
                        threading.Thread(
                            target=pump, args=(one, other, is_request, count), daemon=True
                        ).start()

        threading.Thread(target=accept, daemon=True).start()
        yield
        server.shutdown(socket.SHUT_RDWR)


def _frame(source: socket.socket) -> bytes:
    """Return a request or response of Kafka with its size; nothing at the end of the connection."""
    size = source.recv(4, socket.MSG_WAITALL)
    rest = int.from_bytes(size, "big") if len(size) == len(b"size") else 0
    # A response may be larger than what one call returns.
    parts = [size]
    while rest:
        part = source.recv(min(rest, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        rest -= len(part)
    return b"".join(parts)
