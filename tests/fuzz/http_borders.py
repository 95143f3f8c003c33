"""What comes over HTTP: requests to a relay, a relay's answers, and those of a schema registry."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import math
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from kafka_ordered_ops import RelayUnavailableError
from kafka_ordered_ops.core import errors as package_errors
from kafka_ordered_ops.core.window.formats import Avro, Json
from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.kafka.schema_registry import Registry
from tests.fuzz.borders import Border, Text
from tests.support.stored_values import LEASE, PLAN, SIGNER

_STATUSES: Final = (200, 204, 400, 401, 403, 404, 409, 422, 429, 503)


# --- requests to a relay -------------------------------------------------------------------------


def _requests() -> Border:
    """A path, a header and a body: each is answered, and never by "the server failed"."""
    from kafka_ordered_ops.relay.http.app import RelayApp
    from kafka_ordered_ops.relay.http.callers import Callers
    from kafka_ordered_ops.relay.http.metrics import Metrics
    from kafka_ordered_ops.relay.http.protocol import Connections
    from kafka_ordered_ops.relay.limits import Limits
    from kafka_ordered_ops.relay.ports import LeasedOffsets
    from tests.support.relay_fake import FakeService

    class Service(FakeService):
        """With the tokens of a relay."""

        def _check(self, tokens: Sequence[str]) -> None:
            for token in tokens:
                SIGNER.lease_of(token)

        async def acknowledge(self, leases: Sequence[LeasedOffsets]) -> None:
            self._check([token for token, _ in leases])

    limits, service = Limits(), Service()
    app = RelayApp(service, Callers(None, is_local=True), Metrics(Connections(limits)), limits)
    loop = asyncio.new_event_loop()

    async def answered(path: str, header: tuple[bytes, bytes], body: bytes) -> tuple[int, bytes]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            header,
        ]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST" if body else "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await app(scope, receive, send)
        start, *parts = sent
        return start["status"], b"".join(part["body"] for part in parts)

    def read(data: bytes) -> None:
        path, _, rest = data.partition(b"\n")
        header, _, body = rest.partition(b"\n")
        name, _, value = header.partition(b":")
        # As a server hands them over.
        text = path.decode("utf-8", "replace")
        pair = name.strip().lower(), value.strip()
        status, answer = loop.run_until_complete(answered(text, pair, body))
        if status >= 400:
            error = json.loads(answer)["error"]
            assert status != 500, answer
            assert error["type"] == "HttpError" or hasattr(package_errors, error["type"])

    token = SIGNER.token_of(LEASE)
    bodies: dict[str, Any] = {
        "/v1/read": {
            "group": "g",
            "records_max": 5,
            "lease_s": 30.5,
            "topics": ["orders"],
        },
        "/v1/acknowledge": {"leases": [{"lease": token, "offsets": [[100, 150], [300, 301]]}]},
        "/v1/cancel": {"leases": [{"lease": token}]},
        "/v1/extend": {"leases": [token], "lease_s": 60},
        "/v1/windows": {"plan": PLAN.to_json(), "group": "w"},
    }
    valid = [f"{path}\naccept: */*\n{json.dumps(body)}" for path, body in bodies.items()]
    valid += ["/v1/status\nauthorization: Bearer koo_x\n", "/v1/groups/g\nhost: localhost:80\n"]
    return Border([text.encode() for text in valid], read, cost=10, close=loop.close)


def _connections() -> Border:
    """All that a client sends over one connection to a server, which answers others afterwards."""
    from kafka_ordered_ops.relay.http.server import Listening
    from tests.support.relay_server import read_to_end, request_bytes, serving

    running = ExitStack()
    server = running.enter_context(serving(Listening(port=0)))

    def sent(data: bytes) -> bytes:
        with server.connect() as connection:
            with suppress(ConnectionError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            return read_to_end(connection)

    health = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"

    def read(data: bytes) -> None:
        answer = sent(data)
        assert not answer or answer.startswith(b"HTTP/1.1 ")
        assert b"HTTP/1.1 500" not in answer, answer
        assert sent(health).startswith(b"HTTP/1.1 200")

    valid = [
        health,
        request_bytes("/v1/read", {"group": "g", "records_max": 1}),
        request_bytes("/v1/read", {"group": "g"}) + health,
        b"POST /v1/cancel HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ]
    return Border(valid, read, cost=50, close=running.close)


# --- a relay's answers ---------------------------------------------------------------------------


def _answers() -> Border:
    """A byte for the kind of answer and its status, and the body."""
    import pyarrow as pa

    from kafka_ordered_ops.relay.client_calls import Calls, Reply, read_body
    from kafka_ordered_ops.relay.http.bodies import LEASED_SCHEMA

    calls = Calls("http://localhost:1", timeout_s=0.001)
    body = read_body("g", 10, 60.0, None)
    steps: tuple[Callable[[], Any], ...] = (
        lambda: calls.deliver(body, 0.0),
        lambda: calls.table(body, 0.0),
        lambda: calls.extend(["token"], 60.0),
        lambda: calls.window(PLAN, None),
    )

    def read(data: bytes) -> None:
        kind = data[0] if data else 0
        status = _STATUSES[kind // len(steps) % len(_STATUSES)]
        step = steps[kind % len(steps)]()
        next(step)
        try:
            step.send(Reply(status, data[1:]))
        except StopIteration:
            return
        raise RelayUnavailableError("it is asked again")

    record = {
        "offset": 1,
        "timestamp_ms": 2,
        "key": None,
        "value": "YQ==",
        "headers": [["h", "YQ=="]],
    }
    lease: dict[str, Any] = {
        "lease": "t",
        "topic": "orders",
        "partition": 0,
        "until_ms": 3,
        "attempt": 1,
        "records": [record],
    }
    sink = pa.BufferOutputStream()
    schema = LEASED_SCHEMA.with_metadata({"done": "true"})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(schema.empty_table())
    valid = [
        b"\0" + json.dumps({"leases": [lease], "done": False}).encode(),
        b"\1" + sink.getvalue().to_pybytes(),
        b"\2" + json.dumps({"until_ms": [3]}).encode(),
        b"\3" + json.dumps({"group": "w"}).encode(),
    ]
    return Border(valid, read, cost=2)


# --- answers of a schema registry ----------------------------------------------------------------


def _registry() -> Border:
    """A line with the status, and the body of every answer: of a subject's newest schema, and of a writer's."""
    answer = [b"200", b"{}"]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer
            code = int(status) if status.isdigit() and int(status) in _STATUSES[:-2] else 200
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    registry = Registry(f"http://127.0.0.1:{server.server_port}")

    def close() -> None:
        server.shutdown()
        server.server_close()

    def read(data: bytes) -> None:
        import pyarrow as pa

        status, _, body = data.partition(b"\n")
        answer[:] = [status[:3], body]
        client = registry.connect()
        schema = pa.schema([("value", pa.binary())])
        kind = Avro if b"AVRO" in body else Json
        wanted: Any = kind(subject="orders-value")
        Decoder(wanted, None, registry=client).schema_of(schema)

    avro = {"subject": "orders-value", "version": 3, "id": 7, "guid": None, "schemaType": "AVRO"}
    record = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    objects = {"type": "object", "properties": {"id": {"type": "integer"}}}
    valid = [
        {**avro, "schema": json.dumps(record)},
        {**avro, "schemaType": "JSON", "schema": json.dumps(objects)},
    ]
    valid_answers = [b"200\n" + json.dumps(answer).encode() for answer in valid]
    return Border(valid_answers, read, cost=200, cpu_s=1, close=close)


# --- others --------------------------------------------------------------------------------------


def _identity_provider() -> Border:
    """The answer with a token: it has characters of tokens, and an end."""
    from kafka_ordered_ops.kafka.client.token_providers import NoTokensError
    from kafka_ordered_ops.kafka.read.tokens import _token

    def read(data: bytes) -> None:
        token = _token(data, ())
        assert token.text.isascii()
        assert math.isfinite(token.expires_s)

    claims = base64.urlsafe_b64encode(json.dumps({"exp": 4_102_444_800}).encode()).decode()
    answer = {"access_token": f"e30.{claims.rstrip('=')}.x", "token_type": "Bearer"}
    return Border([json.dumps(answer).encode()], read, (NoTokensError,))


def _claims() -> Border:
    """What a token says."""
    border = _identity_provider()

    def read(data: bytes) -> None:
        claims = base64.urlsafe_b64encode(data).decode().rstrip("=")
        border.read(json.dumps({"access_token": f"e30.{claims}.x"}).encode())

    return Border([b'{"exp": 4102444800, "sub": "x"}'], read, border.errors)


def _registry_settings() -> Border:
    """The URLs of a registry's client; what stands before their hosts is not shown."""

    def read(data: bytes) -> None:
        repr(Registry({"url": Text(data).decode(), "basic.auth.user.info": "user:secret"}))
        assert "canary" not in repr(Registry(f"https://u:canary@{Text(data).decode()}"))

    return Border([b"https://registry:8081", b"http://a,https://u:p@b/"], read)


BORDERS: Final[dict[str, Callable[[], Border]]] = {
    "relay: requests": _requests,
    "relay: connections": _connections,
    "relay: answers": _answers,
    "schema registry: answers": _registry,
    "schema registry: settings": _registry_settings,
    "identity provider: answers": _identity_provider,
    "identity provider: claims": _claims,
}
