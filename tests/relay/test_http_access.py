"""Who may use a relay: tokens, their file, TLS, and the log of denied calls."""

from __future__ import annotations

import json
import logging
import os
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from kafka_ordered_ops import AccessDeniedError, ConfigError
from kafka_ordered_ops.processing import Record
from kafka_ordered_ops.relay.http import server as http_server
from kafka_ordered_ops.relay.http.access import Tokens, add_entry, new_token, read_entries
from kafka_ordered_ops.relay.http.server import Listening, RelayServer
from kafka_ordered_ops.relay.limits import TokenLimits
from kafka_ordered_ops.relay.rights import Verb
from tests.support.certificates import write_certificates
from tests.support.relay_fake import FakeService
from tests.support.relay_fleet import await_true
from tests.support.relay_server import Running, request_bytes, serving

READ = {"group": "billing"}


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


def add(
    file: Path,
    name: str = "workers",
    verbs: tuple[Verb, ...] = tuple(Verb),
    topics: tuple[str, ...] = ("*",),
    groups: tuple[str, ...] = ("*",),
    expires_ms: int | None = None,
    **limits: Any,
) -> str:
    """A new token of the file."""
    token, entry = new_token(
        name,
        topics=topics,
        groups=groups,
        verbs=verbs,
        limits=TokenLimits(**limits),
        expires_ms=expires_ms,
    )
    add_entry(file, entry)
    return token


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A tokens file."""
    return tmp_path / "tokens"


def test_file_is_private_and_has_no_token(file: Path) -> None:
    """The file is for its owner alone, and its lines have hashes."""
    token = add(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in file.read_text()
    assert token.removeprefix("koo_")[:10] not in file.read_text()
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_file_that_others_can_open(file: Path, mode: int) -> None:
    """It is refused."""
    add(file)
    file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        Tokens(file)


LINE: dict[str, Any] = {
    "version": 1,
    "name": "a",
    "sha256": "0" * 64,
    "topics": ["orders"],
    "groups": ["billing-*"],
    "verbs": ["read"],
    "limits": {"pending": 5, "lease": "PT1M", "groups": 2, "windows": 3, "requests": 10},
    "expires": None,
}


def write_line(file: Path, line: str) -> None:
    """A tokens file with an empty line and this one."""
    file.write_text(f"\n{line}\n")
    file.chmod(0o600)


def test_line_of_the_file(file: Path) -> None:
    """It says what the token allows, and reading it gives that again."""
    write_line(file, json.dumps(LINE))
    [entry] = read_entries(file)
    assert json.loads(entry.to_json()) == LINE
    assert entry.access.limits == TokenLimits(
        pending_max=5, lease_s_max=60.0, groups_max=2, windows_max=3, requests_max=10
    )
    add(file, "b")
    assert next(one.access for one in read_entries(file)) == entry.access


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "token",
        json.dumps(LINE | {"sha256": "00"}),
        *(json.dumps({name: LINE[name] for name in LINE if name != left}) for left in LINE),
        *(
            json.dumps(LINE | {name: value})
            for name in ("topics", "groups")
            for value in (None, "orders", [], [""], ["a*b"], ["**"], [5], ["x" * 256], ["a\n"])
        ),
        json.dumps(LINE | {"verbs": ["rule"]}),
        json.dumps(LINE | {"expires": "soon"}),
        json.dumps(LINE | {"more": 1}),
        *(
            json.dumps(LINE | {"limits": value})
            for value in (
                None,
                {"pendign": 5},
                {"pending": 0},
                {"pending": -1},
                {"pending": 10**13},
                {"pending": 1.5},
                {"pending": True},
                {"lease": 60},
                {"lease": "PT0.5S"},
                {"lease": "P2D"},
                {"lease": "forever"},
            )
        ),
    ],
)
def test_invalid_line(file: Path, line: str) -> None:
    """It is named, and no token is valid."""
    write_line(file, line)
    with pytest.raises(ConfigError, match="line 2"):
        read_entries(file)


def test_limits_that_a_line_leaves_out(file: Path) -> None:
    """They are the usual ones: a person who writes a line need not know all of them."""
    write_line(file, json.dumps(LINE | {"limits": {"groups": 3}}))
    [entry] = read_entries(file)
    assert entry.access.limits == TokenLimits(groups_max=3)


def test_misspelt_limit(file: Path) -> None:
    """The error has the name that was meant."""
    write_line(file, json.dumps(LINE | {"limits": {"pendign": 5}}))
    with pytest.raises(ConfigError, match="did you mean 'pending'"):
        read_entries(file)


def test_file_of_somebody_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns the file makes tokens: it is refused, unless that is root."""
    add(file)
    owner = file.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 4_242)
    if owner == 0:
        Tokens(file)
        os.chown(file, 4_243, -1)
    with pytest.raises(ConfigError, match="belongs to the user"):
        Tokens(file)


def test_file_that_is_a_pipe(file: Path) -> None:
    """It is refused at once: a server must not wait for somebody who writes to it."""
    os.mkfifo(file, 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        Tokens(file)


def test_rotation(file: Path) -> None:
    """Two tokens of a name are valid at once, and a third one replaces the older."""
    first, second = add(file), add(file)
    clock = Clock()
    tokens = Tokens(file, clock)
    assert tokens.access_of(first.encode()).name == "workers"
    assert tokens.access_of(second.encode()).name == "workers"
    third = add(file)
    clock.now_s += 2
    tokens.access_of(second.encode())
    tokens.access_of(third.encode())
    with pytest.raises(AccessDeniedError, match="unknown"):
        tokens.access_of(first.encode())


def test_expired_token(file: Path) -> None:
    """A token is valid until it expires, and makes room for another."""
    clock = Clock()
    token = add(file, expires_ms=round(clock.now_s * 1000) + 60_000)
    tokens = Tokens(file, clock)
    tokens.access_of(token.encode())
    clock.now_s += 61
    with pytest.raises(AccessDeniedError, match="expired"):
        tokens.access_of(token.encode())


def test_revoked_token(file: Path) -> None:
    """A line that is removed counts within seconds; a bad edit changes nothing, and is logged."""
    token = add(file)
    clock = Clock()
    tokens = Tokens(file, clock)
    text = file.read_text()
    file.write_text("no token\n")
    clock.now_s += 2
    tokens.access_of(token.encode())
    file.write_text(text.replace('"workers"', '"others"'))
    clock.now_s += 2
    assert tokens.access_of(token.encode()).name == "others"
    file.write_text("\n")
    clock.now_s += 2
    with pytest.raises(AccessDeniedError):
        tokens.access_of(token.encode())


def test_unknown_and_odd_tokens(file: Path) -> None:
    """Nothing but the token itself is accepted."""
    token = add(file)
    tokens = Tokens(file)
    [entry] = read_entries(file)
    for odd in (b"", b"\xff", token[:-1].encode(), token.upper().encode(), entry.sha256.encode()):
        with pytest.raises(AccessDeniedError):
            tokens.access_of(odd)


@pytest.fixture
def running(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server with tokens, of two topics, that looks at its file for every call."""
    monkeypatch.setattr("kafka_ordered_ops.relay.http.access._LOOK_S", 0.0)
    add(file, "first")
    with serving(Listening(port=0, tokens=file), FakeService(("orders", "payments"))) as made:
        yield made


def client(running: Running, token: str | None) -> httpx.Client:
    """A client with a token."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=running.url, headers=headers, timeout=20)


def with_token(running: Running, file: Path, **given: Any) -> httpx.Client:
    """A client with a new token."""
    return client(running, add(file, **given))


def test_open_and_closed_paths(running: Running) -> None:
    """Without a token, only what has no facts in it is answered."""
    with client(running, None) as http:
        for path in ("/health", "/ready", "/", "/openapi.json"):
            assert http.get(path).status_code == 200
        for path in ("/v1/status", "/v1/groups/billing", "/metrics", "/v1/elsewhere"):
            answer = http.get(path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert http.post("/v1/read", json=READ).status_code == 401
        assert http.post("/health", json={}).status_code == 405
        basic = {"authorization": "Basic abc"}
        assert http.post("/v1/read", json=READ, headers=basic).status_code == 401


def test_verbs(running: Running, file: Path) -> None:
    """Each call needs its verb."""
    running.call(lambda: running.service.add(Record("orders", 0, 1, 1, None, b"")))
    with with_token(running, file, name="reader", verbs=(Verb.READ,)) as http:
        [lease] = http.post("/v1/read", json=READ).json()["leases"]
        acknowledged = {"leases": [{"lease": lease["lease"]}]}
        for path in ("/v1/acknowledge", "/v1/cancel"):
            assert http.post(path, json=acknowledged).status_code == 403
        extended = {"leases": [lease["lease"]]}
        assert http.post("/v1/extend", json=extended).status_code == 403
    with with_token(running, file, name="other", verbs=(Verb.ACKNOWLEDGE,)) as http:
        assert http.post("/v1/read", json=READ).status_code == 403
        assert http.post("/v1/acknowledge", json=acknowledged).status_code == 200


def test_no_body_is_read_for_a_caller_without_the_right(running: Running, file: Path) -> None:
    """A plan has room for 16 MiB: whoever may not open windows is refused before the first byte of it."""
    token = add(file, "reader", (Verb.READ, Verb.ACKNOWLEDGE))
    sent = request_bytes("/v1/windows", b" " * 1_000_000, token=token)
    with running.connect() as connection:
        connection.sendall(sent[: sent.index(b"\r\n\r\n") + 4])
        assert connection.recv(100).startswith(b"HTTP/1.1 403")


def test_topics(running: Running, file: Path) -> None:
    """A token sees its topics and nothing of others."""
    running.call(lambda: running.service.add(Record("orders", 0, 1, 1, None, b"")))
    with client(running, add(file, "all")) as http:
        [lease] = http.post("/v1/read", json=READ).json()["leases"]
    with with_token(running, file, name="paid", topics=("payments",)) as http:
        asked = READ | {"topics": ["orders"]}
        assert http.post("/v1/read", json=asked).status_code == 403
        assert http.post("/v1/read", json=READ).status_code == 200
        body = {"leases": [{"lease": lease["lease"]}]}
        assert http.post("/v1/acknowledge", json=body).status_code == 403
        assert running.service.acknowledged == []
        parts = http.get("/v1/status").json()["partitions"]
        assert {one["topic"] for one in parts} == {"payments"}
        assert "orders" not in http.get("/metrics").text
    with with_token(running, file, name="none", topics=("elsewhere",)) as http:
        assert http.post("/v1/read", json=READ).status_code == 403


def test_denied_calls_are_logged(
    running: Running, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each has a line with who, what and why; the token is in none."""
    secret = "koo_" + "s" * 43
    with caplog.at_level(logging.INFO), client(running, secret) as http:
        http.post("/v1/read", json=READ)
        http.post("/v1/read%0a%0d", json=READ)
    with (
        caplog.at_level(logging.INFO),
        with_token(running, file, name="reader", verbs=(Verb.READ,)) as http,
    ):
        http.post("/v1/extend", json={"leases": ["orders-lease"]})
    lines = [one.getMessage() for one in caplog.records if one.name.endswith("relay.audit")]
    assert len(lines) == 3
    assert "POST '/v1/read' from 127.0.0.1 by None" in lines[0]
    assert "by 'reader'" in lines[2]
    assert all("\n" not in line for line in lines)
    assert secret not in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "relay.example"])
def test_other_machines_need_tls_and_proof(host: str, file: Path, tmp_path: Path) -> None:
    """A server that others could reach is refused without TLS, and without tokens or an authority."""
    _, certificate = write_certificates(tmp_path, "127.0.0.1")
    add(file)
    with pytest.raises(ConfigError, match="no TLS"):
        Listening(host=host, tokens=file)
    with pytest.raises(ConfigError, match="anyone"):
        Listening(host=host, tls_certificate=certificate)
    Listening(host=host, tls_certificate=certificate, tokens=file)
    Listening(host=host, tls_certificate=certificate, client_authority=certificate)


@pytest.mark.parametrize("address", ["", ":1", "a:b", "127.0.0.1:99999", "127.0.0.1:-1"])
def test_invalid_address(address: str) -> None:
    """It is refused by name."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Listening.at(address)


def test_addresses() -> None:
    """Names, numbers and IPv6, with and without a port."""
    assert (Listening.at("localhost").host, Listening.at("localhost").port) == ("localhost", 8642)
    assert (Listening.at("[::1]:1").host, Listening.at("[::1]:1").port) == ("::1", 1)
    assert Listening.at("[::1]").host == "::1"
    assert Listening.at("127.0.0.2:0").port == 0


def test_address_in_use(tmp_path: Path) -> None:
    """A second server on the same port is refused before it begins."""
    server = RelayServer(Listening(port=0), FakeService)
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match="in use"):
        RelayServer(Listening(port=port), FakeService)
    server.close()


def test_bad_certificate(tmp_path: Path) -> None:
    """Files that are no certificates are refused before the server begins."""
    for text in ("", "no certificate"):
        (tmp_path / "bad.pem").write_text(text)
        with pytest.raises(ConfigError, match="TLS"):
            RelayServer(Listening(port=0, tls_certificate=tmp_path / "bad.pem"), FakeService)


def test_key_with_a_password(tmp_path: Path) -> None:
    """It is refused: OpenSSL would wait for somebody at the terminal."""
    _, certificate = write_certificates(tmp_path, "127.0.0.1")
    key = load_pem_private_key(certificate.read_bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    (tmp_path / "key.pem").write_bytes(key)
    listening = Listening(port=0, tls_certificate=certificate, tls_key=tmp_path / "key.pem")
    with pytest.raises(ConfigError, match="TLS"):
        RelayServer(listening, FakeService)


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    """With an authority for clients, only its certificates get through; plain text never does."""
    authority, certificate = write_certificates(tmp_path, "127.0.0.1")
    listening = Listening(port=0, tls_certificate=certificate, client_authority=authority)
    with serving(listening) as running:
        trusting = ssl.create_default_context(cafile=authority)
        # TLS 1.3 reports the missing certificate with the first answer.
        with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
            httpx.get(f"{running.url}/health", verify=trusting)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{running.url}/health".replace("https", "http"))
        trusting.load_cert_chain(certificate)
        assert httpx.post(f"{running.url}/v1/read", json=READ, verify=trusting).status_code == 200


def test_a_renewed_certificate_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections get the new one; one that cannot be used changes nothing, and connections stay."""
    monkeypatch.setattr(http_server, "_WATCH_S", 0.02)
    authority, certificate = write_certificates(tmp_path, "127.0.0.1")
    old = ssl.create_default_context(cafile=authority)
    with serving(Listening(port=0, tls_certificate=certificate)) as running:
        url = f"{running.url}/health"
        with httpx.Client(verify=old) as kept:
            assert kept.get(url).status_code == 200
            write_certificates(tmp_path, "127.0.0.1")
            new = ssl.create_default_context(cafile=authority)
            await_true(lambda: _trusts(url, new))
            assert not _trusts(url, old)
            certificate.write_text("no certificate")
            await_true(lambda: "stays in use" in caplog.text)
            assert _trusts(url, new)
            assert kept.get(url).status_code == 200


def _trusts(url: str, context: ssl.SSLContext) -> bool:
    try:
        return httpx.get(url, verify=context).status_code == 200
    except httpx.ConnectError:
        return False


def test_tokens_file_of_the_loopback_is_optional_and_used(file: Path) -> None:
    """On this machine alone, a server without tokens serves everybody, one with tokens nobody else."""
    with serving(Listening(port=0)) as running:
        assert httpx.post(f"{running.url}/v1/read", json=READ).status_code == 200
    token = add(file)
    with serving(Listening(port=0, tokens=file)) as running:
        assert httpx.post(f"{running.url}/v1/read", json=READ).status_code == 401
        with client(running, token) as http:
            assert http.post("/v1/read", json=READ).status_code == 200


def test_file_made_by_others(file: Path) -> None:
    """A file that is not there, or is a folder, is refused."""
    with pytest.raises(ConfigError, match="cannot read tokens"):
        Tokens(file)
    os.mkdir(file)
    with pytest.raises(ConfigError, match="cannot read tokens"):
        Tokens(file)
