"""An address that leads to a broker as long as a test wants it to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress


@contextmanager
def forwarded(
    port: int, bootstrap: str, answer: Callable[[bytes], bytes | None] | None = None
) -> Iterator[None]:
    """Brings connections to a port to the broker, but those whose first request has an answer."""
    host, _, number = bootstrap.rpartition(":")

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while some := source.recv(65_536):
                target.sendall(some)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    with ExitStack() as stack, socket.create_server(("127.0.0.1", port)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    ours, _ = server.accept()
                    if answer and (reply := answer(ours.recv(65_536, socket.MSG_PEEK))):
                        with closing(ours):
                            ours.sendall(reply)
                        continue
                    theirs = socket.create_connection((host, int(number)))
                    for one, other in ((ours, theirs), (theirs, ours)):
                        stack.enter_context(closing(one))
                        threading.Thread(target=pump, args=(one, other), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield
        server.shutdown(socket.SHUT_RDWR)
