"""A small schema registry over HTTP, for what the real one of the tests lacks: GUIDs, and failures on request."""

from __future__ import annotations

import http.server
import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_GUID: Final = re.compile(r"/schemas/guids/([0-9a-f-]{36})")
_ID: Final = re.compile(r"/schemas/ids/(\d+)")
_VERSIONS: Final = re.compile(r"/subjects/([^/]+)/versions(?:/(\w+))?")


class StubRegistry:
    """Schemas with ids and GUIDs. `status` answers every request, if it is set."""

    def __init__(self) -> None:
        self.url = ""
        self.status: int | None = None
        self.requests: list[str] = []
        self._schemas: list[dict[str, Any]] = []

    def register(self, subject: str, schema: Any, kind: str = "AVRO") -> dict[str, Any]:
        """Register a schema; return it with its ``id`` and ``guid``."""
        number = len(self._schemas) + 1
        version = 1 + sum(one["subject"] == subject for one in self._schemas)
        text = schema if isinstance(schema, str) else json.dumps(schema)
        guid = str(uuid.UUID(int=number << 64))
        known = {"subject": subject, "id": number, "guid": guid, "version": version}
        self._schemas.append({**known, "schemaType": kind, "schema": text})
        return self._schemas[-1]

    def answer(self, path: str) -> tuple[int, Any]:
        """Return a status and JSON."""
        self.requests.append(path)
        path = path.partition("?")[0]
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "as the test asked"}
        found: Any = None
        if match := _GUID.fullmatch(path):
            found = [one for one in self._schemas if one["guid"] == match[1]]
        elif match := _ID.fullmatch(path):
            found = [one for one in self._schemas if one["id"] == int(match[1])]
        elif match := _VERSIONS.fullmatch(path):
            found = [one for one in self._schemas if one["subject"] == match[1]]
            if match[2] is None and found:
                return 200, [one["version"] for one in found]
            if match[2] != "latest":
                found = [one for one in found if str(one["version"]) == match[2]]
        return (200, found[-1]) if found else (404, {"error_code": 40403, "message": "not found"})


@contextmanager
def stub_registry() -> Iterator[StubRegistry]:
    """Serve schemas on the loopback interface."""
    stub = StubRegistry()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = stub.answer(self.path)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stub.url = f"http://127.0.0.1:{server.server_port}"
        yield stub
        server.shutdown()
