"""A store whose way is bad: a proxy before a server of S3 that refuses requests, or cuts connections and answers."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

#: By method and path; what becomes of a request: None, ``refused``, ``answer lost`` or ``answer cut``.
Fault = Callable[[str, str], str | None]


class FaultyStore:
    """The proxy; `fault` may be replaced at any time."""

    def __init__(self, endpoint: str) -> None:
        self.fault: Fault = lambda method, path: None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                fault = server.fault(self.command, self.path)
                if fault == "refused":
                    self.send_response(503)
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                status, headers, content = _forwarded(
                    endpoint, self.command, self.path, body, self.headers
                )
                if fault == "answer lost":
                    self._cut()
                    return
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                length = next((v for n, v in headers if n.lower() == "content-length"), None)
                self.send_header("content-length", length or str(len(content)))
                self.end_headers()
                if fault == "answer cut":
                    self.wfile.write(content[: len(content) // 2])
                    self._cut()
                    return
                self.wfile.write(content)

            def _cut(self) -> None:
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, name="faulty store", daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def faulty_store(options: dict[str, str]) -> Iterator[tuple[FaultyStore, dict[str, str]]]:
    """A bad way to a server of S3, and the storage options that take it."""
    proxy = FaultyStore(options["aws_endpoint"])
    try:
        yield proxy, {**options, "aws_endpoint": proxy.endpoint}
    finally:
        proxy.close()


def _forwarded(
    endpoint: str, method: str, path: str, body: bytes, headers: Any
) -> tuple[int, list[tuple[str, str]], bytes]:
    address = urlsplit(endpoint)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    try:
        connection.request(method, path, body, dict(headers.items()))
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()
