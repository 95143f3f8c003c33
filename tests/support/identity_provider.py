"""An identity provider (OIDC) that issues tokens without a signature, as brokers of tests accept them."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

USER = "jobs"
SECRET = "hunter2"
PATH = "/token"


def unsecured(lifetime_s: float, user: str = USER) -> str:
    """A token that a broker's unsecured validator accepts."""
    now = time.time()
    claims = {"sub": user, "iat": now, "exp": now + lifetime_s}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()) for part in ({"alg": "none"}, claims)
    ]
    return b".".join([*(part.rstrip(b"=") for part in parts), b""]).decode()


class IdentityProvider(http.server.ThreadingHTTPServer):
    """The provider; what it answers may be changed at any time."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lifetime_s = 3_600.0
        #: An answer instead of a token, with its status.
        self.answer: tuple[int, bytes] | None = None
        #: A token instead of a new one.
        self.token: str | None = None
        self.location = ""
        self.issued: list[str] = []
        #: Forms that this package has sent: librdkafka asks as well.
        self.forms: list[dict[str, list[str]]] = []

    @property
    def url(self) -> str:
        """Where tokens are asked for."""
        return f"http://127.0.0.1:{self.server_port}{PATH}"

    def settings(self, **more: str) -> dict[str, str]:
        """Of a client that authenticates with tokens of this provider."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": USER,
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.token.endpoint.url": self.url,
            **more,
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    server: IdentityProvider

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if "Python" in self.headers.get("User-Agent", ""):
            self.server.forms.append(form)
        expected = base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
        if self.server.answer is not None:
            status, body = self.server.answer
        elif self.headers["Authorization"] != f"Basic {expected}" or self.path != PATH:
            status, body = 401, b'{"error":"invalid_client"}'
        else:
            token = self.server.token or unsecured(self.server.lifetime_s)
            self.server.issued.append(token)
            status, body = 200, json.dumps({"access_token": token, "token_type": "bearer"}).encode()
        self.send_response(status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """A provider that runs until the end."""
    with IdentityProvider() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
