"""What is said, and when, about brokers that cannot be reached, refuse, or hold their answers back."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import (
    AuthenticationError,
    BrokerUnreachableError,
    ClientSettings,
    ConfigError,
    KafkaOrderedOpsError,
    OrderedReader,
    OrderedWindows,
    ReadTimeoutError,
    TlsError,
    Window,
)
from kafka_ordered_ops.core.arguments import FILE_SETTINGS, DefaultTimeout
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.embedded.node import free_port
from kafka_ordered_ops.kafka.client import asking
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.read.reader import RangeReader
from kafka_ordered_ops.windows.queries.topics import topic_names
from tests.conftest import MakeTopic, Produce
from tests.support.answering import answering
from tests.support.certificates import write_certificates
from tests.support.forwarding import forwarded
from tests.support.wire import set_quota

_NOWHERE = "127.0.0.1:1,localhost:2"
_NOON = "2026-11-20T12:00:00Z"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits half a second instead of seven for addresses that refuse."""
    monkeypatch.setattr(asking, "REFUSED_S", 0.5)


def _failure(settings: object, **options: float) -> tuple[KafkaOrderedOpsError, float]:
    """The error of a call, and how long it took."""
    began = time.monotonic()
    with (
        OrderedWindows(settings, "first-contact", **options) as windows,  # type: ignore[arg-type]
        pytest.raises(KafkaOrderedOpsError) as caught,
    ):
        windows.list()
    return caught.value, time.monotonic() - began


@contextmanager
def _saying(words: bytes) -> Iterator[str]:
    """A listener that says this to whatever it hears, and ends the connection; its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65_536)
                        connection.sendall(words)

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


# --- nothing listens ---------------------------------------------------------------------------


@pytest.mark.long
def test_a_call_fails_within_ten_seconds_where_every_address_refuses() -> None:
    """By default, and as retriable; the error has each address with its reason."""
    error, took_s = _failure(_NOWHERE)
    assert took_s < 10
    assert isinstance(error, BrokerUnreachableError)
    assert error.retriable
    assert "127.0.0.1:1 (Connection refused), localhost:2 (Connection refused)" in str(error)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_each_kind_of_first_question_ends_soon_where_every_address_refuses() -> None:
    """A name, a pattern, a reader, a query without a service."""
    window = Window("^orders", cutoff=_NOON, starting_offsets="earliest")
    began = time.monotonic()
    with OrderedWindows(_NOWHERE, "first-contact") as windows:
        for call in (
            lambda: windows.preview(window),
            lambda: topic_names(ClientSettings.of(_NOWHERE), ["^orders"]),
            lambda: OrderedReader(_NOWHERE, "orders").__enter__(),
            lambda: OrderedReader(_NOWHERE, "^orders").__enter__(),
        ):
            with pytest.raises(BrokerUnreachableError, match="Connection refused"):
                call()
    assert time.monotonic() - began < 10


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_a_name_without_an_address_is_not_waited_for() -> None:
    """It is reported like an address that refuses."""
    error, took_s = _failure("broker.invalid:9092")
    assert took_s < 5
    assert "broker.invalid:9092 (Failed to resolve" in str(error)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_a_listener_that_comes_up_is_waited_for_where_a_time_limit_is_given(bootstrap: str) -> None:
    """The limit is the caller's own: it is waited out."""
    port = free_port()
    with ExitStack() as stack:
        late = threading.Timer(2.0, lambda: stack.enter_context(forwarded(port, bootstrap)))
        late.start()
        with OrderedWindows(f"127.0.0.1:{port}", "first-contact", timeout_s=30) as windows:
            windows.list()
        late.join()


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_one_address_that_does_not_refuse_is_enough_to_wait() -> None:
    """It takes connections and never answers: it may be slow."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = ClientSettings.of(f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        with (
            Lookup(settings, timeout_s=DefaultTimeout(2.0)) as lookup,
            pytest.raises(BrokerUnreachableError),
        ):
            lookup.topics(["orders"])
    assert time.monotonic() - began >= 2


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_a_broker_that_restarts_is_waited_for() -> None:
    """It has answered this process before: that all of its addresses refuse passes."""
    with EmbeddedKafka() as broker, OrderedWindows(broker.bootstrap, "first-contact") as windows:
        assert windows.list() == []
        broker.kill()
        back = threading.Timer(3.0, broker.restart)
        back.start()
        assert windows.list() == []
        with OrderedWindows(broker.bootstrap, "another") as others:
            assert others.list() == []
        back.join()


def test_what_has_been_read_of_an_address_is_its_last_state() -> None:
    """An address that takes a connection again does not refuse, and one answer of the cluster ends the matter."""
    reasons, brokers = FaultReasons(), "PLAINTEXT://never-asked,never-asked:9093, "
    reasons.are_of(brokers, {})

    def add(address: str, text: str) -> None:
        reasons.add(KafkaError(KafkaError._TRANSPORT, f"ssl://{address}/bootstrap: {text}"))

    refused = (
        "Connect to ipv4#10.0.0.1:9093 failed: Connection refused (after 0ms in state CONNECT)"
    )
    add("never-asked:9092", refused)
    assert reasons.refused() is None
    add("never-asked:9093", refused)
    assert reasons.refused() == (
        "never-asked:9092 (Connection refused), never-asked:9093 (Connection refused)"
    )
    add("never-asked:9093", "Disconnected (after 2ms in state UP)")
    assert reasons.refused() is None
    add("never-asked:9093", refused)
    assert reasons.refused()
    other = FaultReasons()
    other.are_of(brokers, {})
    other.clear()
    assert reasons.refused() is None


# --- the wrong protocol ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_tls_to_a_plain_listener_is_said_soon(bootstrap: str) -> None:
    """With the client's own guess, as an error that needs a person, and though the listener answers others."""
    with OrderedWindows(bootstrap, "first-contact") as windows:
        windows.list()
    error, took_s = _failure({"bootstrap.servers": bootstrap, "security.protocol": "SSL"})
    assert took_s < 5
    assert isinstance(error, TlsError)
    assert "PLAINTEXT broker listener?" in str(error)


def test_a_plain_connection_that_is_cut_is_named_with_its_address() -> None:
    """As a TLS listener cuts it: no error of the client reports it, only its log."""
    with _saying(b"") as address:
        error, _ = _failure(address, timeout_s=1.5)
    assert isinstance(error, BrokerUnreachableError)
    assert f"{address}/bootstrap: Disconnected" in str(error)
    assert "a plain connection to a TLS listener" in str(error)


def test_an_http_server_is_named_as_one() -> None:
    """Not as a broker that is down, or a record that is too large."""
    with _saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        error, _ = _failure(address, timeout_s=1.5)
    assert "an HTTP server answers there, not a Kafka broker" in str(error)


def test_a_refused_client_certificate_is_an_error_of_tls(tmp_path: Path) -> None:
    """At once: the other side has said so, and says it again next time."""
    authority, own = write_certificates(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as server:

        def shake() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with (
                        suppress(OSError),
                        context.wrap_socket(connection, server_side=True) as secure,
                    ):
                        secure.recv(1)

        threading.Thread(target=shake, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        settings = {
            "bootstrap.servers": address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority),
        }
        error, took_s = _failure(settings, timeout_s=20)
        server.shutdown(socket.SHUT_RDWR)
    assert took_s < 5
    assert isinstance(error, TlsError)
    assert "alert" in str(error)
    assert "this client's own certificate" in str(error)


# --- an identity provider ----------------------------------------------------------------------


def _oidc(bootstrap: str, provider: str) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "jobs",
        "sasl.oauthbearer.client.secret": "hunter2",
        "sasl.oauthbearer.token.endpoint.url": f"http://{provider}/token",
    }


@pytest.mark.slow
def test_an_identity_provider_that_is_away_is_waited_for(bootstrap: str) -> None:
    """Retriable, and not told as refused credentials."""
    error, took_s = _failure(_oidc(bootstrap, "127.0.0.1:1"), timeout_s=2)
    assert took_s >= 1.5
    assert isinstance(error, BrokerUnreachableError)
    assert error.retriable
    assert "no token from the identity provider" in str(error)
    assert "127.0.0.1:1" in str(error)
    assert "credentials" not in str(error)


@pytest.mark.slow
def test_an_identity_provider_that_fails_is_named_while_it_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client repeats its request for more than a minute before it reports anything; retriable."""
    caplog.set_level("INFO")
    with answering((503, b"busy")) as provider:
        error, _ = _failure(_oidc("127.0.0.1:1", provider), timeout_s=5)
    assert isinstance(error, BrokerUnreachableError)
    assert error.retriable
    assert f"no token so far from http://{provider}/token" in str(error)
    assert f"no token so far from http://{provider}/token" in caplog.text


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_answer_of_an_identity_provider_that_fails_is_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where the call's limit allows it: with its status, its address, and its text once; retriable."""
    caplog.set_level("INFO")
    with answering((503, b"busy")) as provider:
        error, _ = _failure(_oidc("127.0.0.1:1", provider), timeout_s=120.0, lookup_timeout_s=110.0)
    assert isinstance(error, BrokerUnreachableError)
    assert error.retriable
    assert f'Failed to retrieve OIDC token from "http://{provider}/token": busy (503)' in str(error)
    assert "busy (503)" in caplog.text


@pytest.mark.slow
def test_an_identity_provider_that_refuses_is_named() -> None:
    """Before the time is over, as refused credentials: of the provider, not of the broker."""
    with answering((401, b'{"error":"invalid_client"}')) as provider:
        error, _ = _failure(_oidc("127.0.0.1:1", provider), timeout_s=20)
    assert isinstance(error, AuthenticationError)
    assert "the identity provider refuses the credentials" in str(error)
    assert "invalid_client" in str(error)
    assert "hunter2" not in str(error)


# --- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(FILE_SETTINGS))
def test_a_file_with_other_contents_is_named_with_its_connection(key: str, tmp_path: Path) -> None:
    """Whether the client notices it at once, late, or not at all."""
    if key in ("sasl.oauthbearer.assertion.file", "sasl.oauthbearer.assertion.jwt.template.file"):
        pytest.skip("any text may be right")
    file = tmp_path / "file"
    file.write_bytes(os.urandom(100))
    config = {"bootstrap.servers": "broker:9092", "security.protocol": "SSL", key: str(file)}
    with pytest.raises(ConfigError, match=rf"broker:9092.*{key}|{key}.*broker:9092") as caught:
        open_client(AdminClient, config, FaultReasons())
    assert str(file) in str(caught.value)


# --- quotas --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_throttled_client_is_told_so(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    group_id: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a warning, and in the error of a read in which nothing moves."""
    name, client_id = topic(), f"throttled-{group_id}"
    produce((name, 0, None, os.urandom(10_000), None, ()) for _ in range(100))
    settings = ClientSettings.of(
        {"bootstrap.servers": bootstrap, "client.id": client_id, "fetch.message.max.bytes": 50_000}
    )
    wanted = {TopicPartition(name, 0): OffsetSet.of((0, 100))}

    def read_until_throttled() -> None:
        # Brokers learn of a quota a moment after it is set.
        for _ in range(100):
            with RangeReader(
                settings, group_id, Isolation.READ_COMMITTED, wanted, stall_timeout_s=3
            ) as reader:
                list(reader.batches())

    set_quota(bootstrap, client_id, "consumer_byte_rate", 1_000)
    try:
        with pytest.raises(ReadTimeoutError, match="it throttles this client for") as caught:
            read_until_throttled()
    finally:
        set_quota(bootstrap, client_id, "consumer_byte_rate", None)
    assert "consumer_byte_rate" in str(caught.value)
    assert any("throttles this client" in line for line in caplog.messages)
