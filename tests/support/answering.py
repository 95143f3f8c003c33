"""An HTTP server that answers everything in one way."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def answering(answer: tuple[int, bytes], bodies: list[bytes] | None = None) -> Iterator[str]:
    """A status and a body for every request; gives the server's address, and keeps the requests' own `bodies`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if bodies is not None:
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(answer[1])))
            self.end_headers()
            self.wfile.write(answer[1])

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
