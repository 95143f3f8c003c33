"""The native reader with tokens of an identity provider, and over sessions that a broker ends after some seconds."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import AuthenticationError, ClientSettings, ConfigError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.embedded import EmbeddedKafka, Listener
from kafka_ordered_ops.embedded.node import HOST, free_ports
from kafka_ordered_ops.kafka.client.token_providers import NoTokensError
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.read import tokens
from kafka_ordered_ops.kafka.read.native import NativeReader
from kafka_ordered_ops.kafka.read.reader import RangeReader
from tests.support.certificates import write_certificates
from tests.support.forwarding import forwarded
from tests.support.identity_provider import SECRET, IdentityProvider, identity_provider, unsecured
from tests.support.readers import needs_native
from tests.support.windows_support import BASE_MS, TIMEOUT_S

pytestmark = [needs_native, pytest.mark.native, pytest.mark.slow]

RECORDS = 2_000
PARTITIONS = 3
REAUTHENTICATED_MS = 3_000
#: One to look for the leaders, one to read, and both again where a busy machine was late. A reader whose sessions the broker
#: ends makes two for each of them.
CONNECTIONS_MAX = 4
#: Many fetches, and few records that wait.
SMALL = {
    "fetch.max.bytes": "20000",
    "fetch.message.max.bytes": "10000",
    "queued.max.messages.kbytes": "1",
}
_LOGIN = "org.apache.kafka.common.security"


class Broker:
    """A broker with a listener for tokens, and with two whose sessions end soon; connections to them are counted."""

    def __init__(self) -> None:
        names = ("TOKENS", "SHORTTOKENS", "SHORTPLAIN")
        ports = free_ports(2 * len(names))
        self._ports = dict(zip(names, ports[::2], strict=True))
        self._advertised = dict(zip(names, ports[1::2], strict=True))
        #: Connections of the native reader.
        self.connections = 0
        properties = {"sasl.enabled.mechanisms": "OAUTHBEARER,PLAIN"}
        for name in map(str.lower, names):
            properties[f"listener.name.{name}.oauthbearer.sasl.jaas.config"] = (
                f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="admin";'
            )
            properties[f"listener.name.{name}.plain.sasl.jaas.config"] = (
                f'{_LOGIN}.plain.PlainLoginModule required user_job="secret";'
            )
            if name.startswith("short"):
                for mechanism in ("oauthbearer", "plain"):
                    key = f"listener.name.{name}.{mechanism}.connections.max.reauth.ms"
                    properties[key] = str(REAUTHENTICATED_MS)
        listeners = [
            Listener(name, port, "SASL_PLAINTEXT", self._advertised[name])
            for name, port in self._ports.items()
        ]
        self.kafka = EmbeddedKafka(properties, listeners=listeners)

    def address(self, listener: str) -> dict[str, str]:
        """The setting of a listener's address."""
        return {"bootstrap.servers": f"{HOST}:{self._advertised[listener]}", "reader": "native"}

    @contextmanager
    def running(self) -> Iterator[None]:
        """The broker runs, and connections are brought to it."""
        with ExitStack() as stack:
            stack.enter_context(self.kafka)
            for name, port in self._ports.items():
                there = f"{HOST}:{port}"
                stack.enter_context(forwarded(self._advertised[name], there, self._count))
            yield

    def _count(self, request: bytes) -> None:
        self.connections += b"kafka-ordered-ops-native" in request


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The broker of these tests."""
    broker = Broker()
    with broker.running():
        yield broker


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    """A provider for each test."""
    with identity_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def wanted(broker: Broker) -> dict[TopicPartition, OffsetSet]:
    """All records of a topic."""
    topic = f"tokens-{uuid.uuid4().hex[:8]}"
    bootstrap = broker.kafka.bootstrap
    new = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 20})
    for number in range(RECORDS * PARTITIONS):
        producer.produce(
            topic, bytes(200), partition=number % PARTITIONS, timestamp=BASE_MS + number
        )
    assert producer.flush(TIMEOUT_S) == 0
    return {
        TopicPartition(topic, number): OffsetSet.of((0, RECORDS)) for number in range(PARTITIONS)
    }


def read(
    settings: dict[str, str],
    wanted: dict[TopicPartition, OffsetSet],
    each: Callable[[], None] = lambda: None,
) -> None:
    """Every wanted record, once and in order; after each batch, something may happen."""
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    by = ClientSettings.of(settings)
    with open_reader(by, "g", Isolation.READ_COMMITTED, wanted, batch_records=100) as reader:
        assert isinstance(reader, NativeReader)
        for batch in reader.batches():
            offsets: Any = batch["offset"].to_pylist()
            found[batch["partition"][0].as_py()] += offsets
            each()
    assert found == {number: list(range(RECORDS)) for number in range(PARTITIONS)}


def test_records_are_read_with_a_token(
    broker: Broker, provider: IdentityProvider, wanted: dict[TopicPartition, OffsetSet]
) -> None:
    """One token is enough for a read, and the provider is asked as librdkafka asks it."""
    more = {
        "sasl.oauthbearer.scope": "kafka read",
        "sasl.oauthbearer.extensions": "team=data,env=test",
    }
    read({**broker.address("TOKENS"), **provider.settings(**more)}, wanted)
    assert provider.forms == [{"grant_type": ["client_credentials"], "scope": ["kafka read"]}]


@pytest.mark.long
def test_a_token_is_replaced_before_it_expires(
    broker: Broker,
    provider: IdentityProvider,
    wanted: dict[TopicPartition, OffsetSet],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A read over several lives of tokens, each of which ends a session: every record once, and nothing to report."""
    provider.lifetime_s = 3
    began, before = time.monotonic(), broker.connections
    read(
        {**broker.address("TOKENS"), **provider.settings(), **SMALL},
        wanted,
        lambda: time.sleep(0.15),
    )
    assert broker.connections - before <= CONNECTIONS_MAX
    assert time.monotonic() - began > 2 * provider.lifetime_s
    assert len(provider.forms) >= 3
    assert caplog.text == ""


def test_a_token_that_expired_while_nobody_read_is_replaced(
    broker: Broker, provider: IdentityProvider, wanted: dict[TopicPartition, OffsetSet]
) -> None:
    """Its owner was busy for longer than a token lives."""
    provider.lifetime_s = 2
    naps = iter([3.0])
    read(
        {**broker.address("TOKENS"), **provider.settings(), **SMALL},
        wanted,
        lambda: time.sleep(next(naps, 0)),
    )
    assert len(provider.forms) >= 2


@pytest.mark.long
@pytest.mark.parametrize("by", ["tokens", "password"])
def test_sessions_are_renewed(
    broker: Broker,
    provider: IdentityProvider,
    wanted: dict[TopicPartition, OffsetSet],
    caplog: pytest.LogCaptureFixture,
    by: str,
) -> None:
    """On the same connection, before the broker ends it: every record once, and nothing to report."""
    password = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "job",
        "sasl.password": "secret",
    }
    settings = (
        {**broker.address("SHORTTOKENS"), **provider.settings()}
        if by == "tokens"
        else {**broker.address("SHORTPLAIN"), **password}
    )
    began, before = time.monotonic(), broker.connections
    read({**settings, **SMALL}, wanted, lambda: time.sleep(0.15))
    assert time.monotonic() - began > 2 * REAUTHENTICATED_MS / 1_000
    assert broker.connections - before <= CONNECTIONS_MAX
    assert caplog.text == ""


def test_refusals_are_errors_of_authentication(
    broker: Broker,
    provider: IdentityProvider,
    wanted: dict[TopicPartition, OffsetSet],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of the provider and of the broker, as librdkafka reports them; no text has the secret or the token."""
    refused = provider.settings(**{"sasl.oauthbearer.client.secret": "a-wrong-one"})
    with pytest.raises(AuthenticationError, match="identity provider refuses") as caught:
        read({**broker.address("TOKENS"), **refused}, wanted)
    texts = [str(caught.value), caplog.text]
    # A signature, which no token without an algorithm has.
    header, claims, _ = unsecured(7_200).split(".")
    provider.token = f"{header}.{claims}.c2lnbmVk"
    with pytest.raises(AuthenticationError, match="broker refuses") as caught:
        read({**broker.address("TOKENS"), **provider.settings()}, wanted)
    texts += [str(caught.value), caplog.text]
    for secret in ("a-wrong-one", SECRET, provider.token):
        assert not any(secret in text for text in texts)


def test_a_provider_that_is_away_is_waited_for(
    broker: Broker,
    provider: IdentityProvider,
    wanted: dict[TopicPartition, OffsetSet],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log says so, with neither the secret nor what it answers."""
    monkeypatch.setattr(tokens, "_RETRY_S", 0.5)
    provider.answer = (503, b"busy with tokens")
    by = ClientSettings.of({**broker.address("TOKENS"), **provider.settings()})
    with open_reader(by, "g", Isolation.READ_COMMITTED, wanted) as reader:
        assert reader.turn() == []
        provider.answer = None
        while not reader.turn():
            pass
    assert f"no token from {provider.url}: HTTP status 503" in caplog.text
    assert SECRET not in caplog.text
    assert "busy with tokens" not in caplog.text


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"<html>", "no JWT"),
        (b"[]", "no JWT"),
        (b'{"access_token": 7}', "no JWT"),
        (b'{"access_token": "opaque"}', "no JWT"),
        (b'{"access_token": "a.e30.c"}', "no JWT"),
        (b'{"access_token": "a.W10.c"}', "no JWT"),
        (b'{"access_token": "\xc3\xa4.\xc3\xa4"}', "no JWT"),
        (b'{"access_token": "%s"}' % unsecured(-5).encode(), "expired"),
        (b'{"access_token": "%s\\u0001"}' % unsecured(60).encode(), "characters"),
    ],
)
def test_what_is_no_token_is_refused(provider: IdentityProvider, answer: bytes, why: str) -> None:
    """The error does not show it."""
    provider.answer = (200, answer)
    with pytest.raises(NoTokensError, match=why) as caught:
        tokens.Provider.of(provider.settings()).fetch()
    assert "." not in str(caught.value)


def test_a_redirection_is_not_followed(provider: IdentityProvider) -> None:
    """It would send the secret to another host."""
    with identity_provider() as other:
        provider.answer, provider.location = (302, b""), other.url
        with pytest.raises(NoTokensError, match="302"):
            tokens.Provider.of(provider.settings()).fetch()
        assert (other.forms, other.issued) == ([], [])


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            {"sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"},
            "grant.type",
        ),
        ({"sasl.oauthbearer.client.secret": ""}, "client.secret"),
        ({"sasl.oauthbearer.extensions": "auth=x"}, "extensions"),
        ({"sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"}, "endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://anna:word@idp/"}, "has a user"),
        ({"https.ca.location": "/nowhere"}, "https.ca.location"),
        (
            {"sasl.oauthbearer.metadata.authentication.type": "azure_imds"},
            "metadata.authentication",
        ),
    ],
)
def test_other_ways_to_tokens_are_left_to_librdkafka(
    provider: IdentityProvider, config: dict[str, str], why: str
) -> None:
    """And if the native reader is asked for, an error names the setting."""
    wanted = {TopicPartition("orders", 0): OffsetSet.of((0, 1))}
    settings = {"bootstrap.servers": "127.0.0.1:9", **provider.settings(**config)}
    by = ClientSettings.of(settings)
    assert isinstance(open_reader(by, "g", Isolation.READ_COMMITTED, wanted), RangeReader)
    by = ClientSettings.of({**settings, "reader": "native"})
    with pytest.raises(ConfigError, match=why):
        open_reader(by, "g", Isolation.READ_COMMITTED, wanted)


def test_authorities_of_the_provider(provider: IdentityProvider, tmp_path: Path) -> None:
    """A file, a folder, or the settings themselves."""
    authority, _ = write_certificates(tmp_path, HOST)
    for config in (
        {"https.ca.location": str(authority)},
        {"https.ca.location": str(tmp_path)},
        {"https.ca.location": "probe"},
        {"https.ca.pem": Path(authority).read_text()},
    ):
        assert tokens.Provider.of(provider.settings(**config)).name == provider.url
