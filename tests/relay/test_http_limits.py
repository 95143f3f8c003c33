"""What one client cannot do to a server of the relay."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from kafka_ordered_ops.processing import Record
from kafka_ordered_ops.relay.http.server import Listening
from kafka_ordered_ops.relay.limits import Limits
from tests.support.certificates import write_certificates
from tests.support.relay_fleet import await_true
from tests.support.relay_server import Running, read_to_end, request_bytes, serving

#: Short, so that tests see them pass.
LIMITS = Limits(
    request_timeout_s=0.6,
    response_timeout_s=0.6,
    keep_alive_s=1,
    connections_max=12,
    connections_per_peer_max=8,
)
READ = {"group": "billing"}
HEAD = b"POST /v1/read HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture
def running() -> Iterator[Running]:
    """A server with short deadlines."""
    with serving(Listening(port=0, limits=LIMITS)) as made:
        yield made


def status_of(answer: bytes) -> int:
    """The status of an answer."""
    return int(answer.split(b" ", 2)[1])


def drip(connection: socket.socket, data: bytes, pause_s: float = 0.05) -> bytes:
    """Sends a byte at a time, until the server has enough of it."""
    ends_at = time.monotonic() + 15
    for byte in data * 1_000:
        assert time.monotonic() < ends_at
        try:
            connection.send(bytes([byte]))
            connection.settimeout(pause_s)
            if answer := connection.recv(65_536):
                return answer
            return b""
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return b""
    raise AssertionError


@pytest.mark.parametrize(
    ("first", "dripped"),
    [
        (b"", b"\r\n"),
        (b"", b"POST /v1/read HTTP/1.1\r\n"),
        (b"GET /health HTTP/1.1\r\n", b"x-a: b\r\n"),
        (HEAD + b"content-length: 60000\r\n\r\n", b" "),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["nothing", "request line", "headers", "body", "chunks"],
)
def test_slow_request(running: Running, first: bytes, dripped: bytes) -> None:
    """A request that arrives a byte at a time ends at its deadline, however often a byte comes."""
    with running.connect() as connection:
        began = time.monotonic()
        if first:
            connection.sendall(first)
        answer = drip(connection, dripped)
        assert 0.4 < time.monotonic() - began < 5
    assert not answer or status_of(answer) == 408
    assert httpx.get(f"{running.url}/health").status_code == 200


def test_silent_connection(running: Running) -> None:
    """A connection without a request is closed."""
    with running.connect() as connection:
        assert status_of(read_to_end(connection)) == 408


def test_silence_after_an_answer(running: Running) -> None:
    """A connection is kept for the next request, and closed when none comes."""
    with running.connect() as connection:
        connection.sendall(request_bytes("/v1/read", READ) * 2)
        began = time.monotonic()
        answers = read_to_end(connection)
        assert answers.count(b"HTTP/1.1 200") == 2
        assert 0.9 < time.monotonic() - began < 5


def test_deadline_is_for_the_request_alone(running: Running) -> None:
    """A read may wait longer than its request may take to arrive."""
    with running.connect() as connection:
        connection.sendall(request_bytes("/v1/read", READ | {"wait_s": 1.5}))
        assert status_of(connection.recv(65_536)) == 200


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"])
def test_client_that_takes_nothing(tmp_path: Path, is_encrypted: bool) -> None:
    """An answer that the client does not take is given up, and its memory with it; TLS has buffers of its own."""
    value = b"v" * 500_000
    authority, certificate = write_certificates(tmp_path, "127.0.0.1")
    context = ssl.create_default_context(cafile=authority) if is_encrypted else None
    listening = Listening(
        port=0, limits=LIMITS, tls_certificate=certificate if is_encrypted else None
    )
    with serving(listening) as running, running.connect() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        running.call(
            lambda: running.service.add(
                *(Record("orders", 0, n, n, None, value) for n in range(40))
            )
        )
        named = "127.0.0.1"
        connection = context.wrap_socket(plain, server_hostname=named) if context else plain
        with connection:
            connection.sendall(request_bytes("/v1/read", READ | {"records_max": 40}))
            url, verify = f"{running.url}/metrics", context or True
            given_up = 'refused_total{status="408"} 1'
            await_true(lambda: given_up in httpx.get(url, verify=verify).text)


@pytest.mark.parametrize("is_split", [False, True])
def test_large_header(running: Running, is_split: bool) -> None:
    """A header above 8 KiB is refused, whether it comes at once or in parts, ends or not."""
    for header in (b"x: " + b"a" * 9_000, b"".join(b"x%d: a\r\n" % n for n in range(1_000))):
        with running.connect() as connection:
            sent = b"GET /health HTTP/1.1\r\n" + header
            for part in [sent[:4_000], sent[4_000:], b"a\r\n\r\n"] if is_split else [sent]:
                try:
                    connection.sendall(part)
                    time.sleep(0.05)
                except (BrokenPipeError, ConnectionResetError):
                    break
            answer = read_to_end(connection)
            # A reset may overtake the answer: more was sent than was read.
            assert not answer or status_of(answer) in ({431} if is_split else {431, 408})


def test_header_below_the_limit(running: Running) -> None:
    """8,000 bytes are accepted, in parts as well."""
    sent = b"GET /health HTTP/1.1\r\nconnection: close\r\nx: " + b"a" * 7_900 + b"\r\n\r\n"
    with running.connect() as connection:
        for start in range(0, len(sent), 1_000):
            connection.sendall(sent[start : start + 1_000])
            time.sleep(0.01)
        assert status_of(read_to_end(connection)) == 200


@pytest.mark.parametrize("is_chunked", [False, True])
def test_large_body(running: Running, is_chunked: bool) -> None:
    """A body above 64 KiB is refused, with and without its length given first; one at the limit is not."""
    for size, status in ((65_536, 200), (65_537, 413), (5_000_000, 413)):
        body = json.dumps(READ).encode().ljust(size)
        parts = (body[n : n + 16_000] for n in range(0, size, 16_000))
        try:
            answer = httpx.post(
                f"{running.url}/v1/read",
                content=parts if is_chunked else body,
                headers={"content-type": "application/json"},
            )
        except (httpx.WriteError, httpx.ReadError):
            # The answer came, and the connection was closed, while the client still sent.
            assert size == 5_000_000
        else:
            assert answer.status_code == status


def test_acknowledging_a_large_read_fits(running: Running) -> None:
    """Every second record of a read of 500, as ranges, is a small request."""
    running.call(
        lambda: running.service.add(*(Record("orders", 0, n, n, None, b"") for n in range(500)))
    )
    answer = httpx.post(f"{running.url}/v1/read", json=READ).json()
    [lease] = answer["leases"]
    ranges = [[n, n + 1] for n in range(0, 500, 2)]
    body = {"leases": [{"lease": lease["lease"], "offsets": ranges}]}
    assert httpx.post(f"{running.url}/v1/acknowledge", json=body).status_code == 200
    assert len(running.service.acknowledged) == 250


def test_connections_of_one_client(running: Running) -> None:
    """One connection more than a client may have is refused; once one is closed, there is room."""
    with ExitStack() as stack:
        held = [stack.enter_context(running.connect()) for _ in range(8)]
        for connection in held:
            connection.sendall(request_bytes("/v1/read", READ | {"wait_s": 10}))
        while running.service.readers < 8:
            time.sleep(0.01)
        with running.connect() as another:
            assert status_of(read_to_end(another)) == 429
        refused = httpx.post(f"{running.url}/v1/read", json=READ)
        assert (refused.status_code, refused.json()["error"]["retriable"]) == (429, True)
        held[0].close()
        await_true(lambda: running.service.readers < 8)
        await_true(lambda: httpx.post(f"{running.url}/v1/read", json=READ).status_code == 200)


def test_probes_are_answered_beyond_the_limits(running: Running) -> None:
    """A server with all its connections in use is not dead: its probes are answered, and leave no connection."""
    with ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(running.connect())
            connection.sendall(request_bytes("/v1/read", READ | {"wait_s": 20}))
        await_true(lambda: running.service.readers == 8)
        with httpx.Client(base_url=running.url) as http:
            for path in ("/health", "/ready", "/health?from=kubelet"):
                answer = http.get(path)
                assert answer.status_code == 200
                assert answer.headers["connection"] == "close"
            for path in ("/metrics", "/v1/status", "/", "/openapi.json", "/healthy"):
                assert http.get(path).status_code == 429
        # Nor can somebody who sends nothing keep the place of a probe.
        silent = [stack.enter_context(running.connect()) for _ in range(20)]
        assert all(status_of(read_to_end(one)) == 429 for one in silent)
        assert httpx.get(f"{running.url}/health").status_code == 200
        assert running.service.readers == 8


@pytest.mark.parametrize(
    ("sent", "status", "is_retriable"),
    [
        (b"no request\r\n\r\n", 400, False),
        (b"GET /health HTTP/1.1\r\nx: " + b"a" * 9_000 + b"\r\n\r\n", 431, False),
        (b"GET /health HTTP/1.1\r\n", 408, True),
        (b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n", 404, False),
        (b"POST /v1/status HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n", 405, False),
        (b"GET /v1/status HTTP/1.1\r\nhost: evil.example\r\n\r\n", 421, False),
        (HEAD + b"content-length: 90000\r\n\r\n", 413, False),
        (
            HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\n{}",
            400,
            False,
        ),
        (HEAD.replace(b"json", b"text") + b"content-length: 2\r\n\r\n{}", 415, False),
    ],
)
def test_what_may_be_sent_again(
    running: Running, sent: bytes, status: int, is_retriable: bool
) -> None:
    """A request that can never succeed says so: a client that sent it again would do so for ever."""
    with running.connect() as connection:
        connection.sendall(sent)
        answer = b""
        while b"}}" not in answer:
            answer += connection.recv(65_536)
    assert status_of(answer) == status
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["type"], error["retriable"]) == ("HttpError", is_retriable)


def test_what_clients_send_is_no_news(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Scanners, upgrades and broken connections leave no line in the log, but are counted."""
    # Lines about requests that are answered are another matter, and other tests may have asked for them.
    caplog.set_level(logging.WARNING, logger="uvicorn.access")
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        request_bytes("/v1/read", READ | {"wait_s": 20}),
    ):
        with running.connect() as connection:
            connection.sendall(sent)
            connection.settimeout(0.2)
            with suppress(OSError):
                connection.recv(100)
            # A reset, as by a machine that is gone.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await_true(lambda: running.service.readers == 0)
    assert 'refused_total{status="400"} 2' in httpx.get(f"{running.url}/metrics").text
    assert _lines(caplog) == []


@pytest.mark.slow
def test_a_stop_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is stopped while clients wait, or take none of their answers, ends in seconds and without a traceback."""
    caplog.set_level(logging.INFO)
    with ExitStack() as stack:
        with serving(Listening(port=0)) as running:
            waiting = stack.enter_context(running.connect())
            waiting.sendall(request_bytes("/v1/read", READ | {"wait_s": 25}))
            await_true(lambda: running.service.readers == 1)
            slow = stack.enter_context(running.connect())
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            value = b"v" * 8_000_000
            running.call(
                lambda: running.service.waiting.append(Record("orders", 0, 1, 1, None, value))
            )
            slow.sendall(request_bytes("/v1/read", READ))
            await_true(lambda: len(running.service.leased) == 1)
            began = time.monotonic()
        assert time.monotonic() - began < 6
    assert _lines(caplog) == []


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What went to the log, without what the test's own client says."""
    return [
        one.getMessage() for one in caplog.records if not one.name.startswith(("httpx", "httpcore"))
    ]


@pytest.mark.slow
def test_connections_in_all() -> None:
    """The same for all clients together."""
    limits = Limits(connections_max=3, connections_per_peer_max=8)
    with serving(Listening(port=0, limits=limits)) as running, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(running.connect()).sendall(
                request_bytes("/v1/read", READ | {"wait_s": 10})
            )
        while running.service.readers < 3:
            time.sleep(0.01)
        with running.connect() as another:
            assert status_of(read_to_end(another)) == 503


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/read HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/read HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/read HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request(running: Running, sent: bytes) -> None:
    """They are refused, and the connection is closed."""
    with running.connect() as connection:
        connection.sendall(sent)
        assert status_of(read_to_end(connection)) in {400, 408}


def test_web_pages_cannot_send_requests(running: Running) -> None:
    """Without tokens, neither another type of body nor another host's name gets through."""
    url = f"{running.url}/v1/read"
    plain = httpx.post(url, content=json.dumps(READ), headers={"content-type": "text/plain"})
    assert plain.status_code == 415
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        named = httpx.post(url, content=json.dumps(READ), headers={"content-type": kind})
        assert named.status_code == 200
    for host in ("evil.example", "evil.example:8642", ""):
        assert httpx.post(url, json=READ, headers={"host": host}).status_code == 421
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8642", "127.0.0.2", "[::1]:8642", "[::1]"):
        assert httpx.post(url, json=READ, headers={"host": host}).status_code == 200


def test_websockets_are_not_spoken(running: Running) -> None:
    """An upgrade is not made."""
    upgrade = {"connection": "upgrade", "upgrade": "websocket"}
    assert httpx.get(f"{running.url}/health", headers=upgrade).status_code == 200


@pytest.mark.parametrize(
    ("version", "header", "ends"),
    [
        (b"1.1", b"", False),
        (b"1.1", b"connection: close\r\n", True),
        (b"1.0", b"", True),
        (b"1.1", b"expect: 100-continue\r\n", False),
    ],
    ids=["kept", "closed", "old", "expecting"],
)
def test_answers_keep_to_what_a_request_says(
    running: Running, version: bytes, header: bytes, ends: bool
) -> None:
    """Answers come in the order of pipelined requests, and the connection ends after the last one that it is for."""
    one = request_bytes("/v1/read", READ | {"wait_s": 0})
    last = one.replace(b"HTTP/1.1\r\n", b"HTTP/" + version + b"\r\n" + header)
    with running.connect() as connection:
        connection.sendall(request_bytes("/v1/read", {}) + one + last)
        if not ends:
            connection.sendall(
                b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            )
        found = read_to_end(connection)
    heads = [part for part in found.split(b"HTTP/1.1 ")[1:] if not part.startswith(b"100")]
    assert [part[:3] for part in heads] == [b"400", b"200", b"200"] + [b"200"] * (not ends)
    assert [b"connection: close" in part for part in heads] == [
        False,
        False,
        ends,
        *[True] * (not ends),
    ]
    for part in heads:
        head, _, body = part.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head


def test_answer_to_head_has_no_body(running: Running) -> None:
    """Also where the answer is a refusal."""
    with running.connect() as connection:
        connection.sendall(b"HEAD /v1/status HTTP/1.1\r\nhost: evil.example\r\n\r\n")
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        found = read_to_end(connection)
    assert found.startswith(b"HTTP/1.1 421")
    assert found.partition(b"\r\n\r\n")[2].startswith(b"HTTP/1.1 200")


@pytest.mark.slow
@pytest.mark.parametrize("of_uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_handshakes_that_do_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_uvloop: bool
) -> None:
    """An address has as many of them as connections, and they end in time: more are cut off, and others are served."""
    monkeypatch.setattr("kafka_ordered_ops.relay.http.handshakes.HANDSHAKE_TIMEOUT_S", 2.0)
    authority, certificate = write_certificates(tmp_path, "127.0.0.1")
    listening = Listening(port=0, limits=LIMITS, tls_certificate=certificate)
    run = pytest.importorskip("uvloop").run if of_uvloop else asyncio.run
    other = httpx.HTTPTransport(
        local_address="127.0.0.2", verify=ssl.create_default_context(cafile=authority)
    )
    most = LIMITS.connections_per_peer_max
    with (
        serving(listening, run=run) as running,
        httpx.Client(transport=other, base_url=running.url) as client,
        ExitStack() as stack,
    ):
        silent = [stack.enter_context(running.connect()) for _ in range(3 * most)]
        refused = f'refused_total{{status="429"}} {2 * most}'
        await_true(lambda: refused in client.get("/metrics").text)
        assert [is_closed(one) for one in silent].count(False) == most
        await_true(lambda: all(map(is_closed, silent)))
        # The address has room again, and a request that comes at once with the end of the handshake is answered.
        context = ssl.create_default_context(cafile=authority)

        def is_answered() -> bool:
            with (
                suppress(ConnectionResetError),  # The server is not through with the others.
                context.wrap_socket(running.connect(), server_hostname="127.0.0.1") as tls,
            ):
                tls.sendall(request_bytes("/v1/read", READ))
                return status_of(tls.recv(65_536)) == 200
            return False

        await_true(is_answered)


def test_bytes_that_are_no_handshake(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The connection is closed, and the log has nothing of it."""
    _, certificate = write_certificates(tmp_path, "127.0.0.1")
    with serving(Listening(port=0, limits=LIMITS, tls_certificate=certificate)) as running:
        for sent in (b"GET /health HTTP/1.1\r\n\r\n", b"", b"\x16\x03\x01\xff\xff" + b"x" * 70_000):
            with running.connect() as connection:
                with suppress(ConnectionError):
                    connection.sendall(sent)
                    connection.shutdown(socket.SHUT_WR)
                read_to_end(connection)
    assert not caplog.records


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection on which it has nothing to say."""
    connection.settimeout(0.02)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
