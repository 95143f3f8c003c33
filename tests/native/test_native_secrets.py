"""No secret of a connection is in a log, in an error or in a text form, whether the connection works or not."""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.embedded import EmbeddedKafka, Listener
from kafka_ordered_ops.embedded.node import HOST, free_ports
from kafka_ordered_ops.kafka.ports import open_reader
from tests.support import token_functions
from tests.support.certificates import write_certificates
from tests.support.identity_provider import IdentityProvider, identity_provider, unsecured
from tests.support.readers import READERS
from tests.support.windows_support import TIMEOUT_S

pytestmark = pytest.mark.slow

#: Of user "job". Its beginning alone must not show either.
CANARY = "canary-e41b7-of-the-job"
#: Which the broker does not know.
WRONG = "canary-c90d2-is-wrong"
_LOGIN = "org.apache.kafka.common.security"
_LISTENERS = ("PASSWORDS", "TOKENS", "TLS")


@dataclass
class Broker:
    """A broker with a listener for each kind of secret, and a topic of three records."""

    addresses: dict[str, str]
    topic: str
    authority: Path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of these tests."""
    authority, keys = write_certificates(tmp_path_factory.mktemp("certificates"), HOST)
    ports = dict(zip(_LISTENERS, free_ports(len(_LISTENERS)), strict=True))
    properties = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.passwords.plain.sasl.jaas.config": (
            f'{_LOGIN}.plain.PlainLoginModule required user_job="{CANARY}";'
        ),
        "listener.name.passwords.scram-sha-512.sasl.jaas.config": (
            f"{_LOGIN}.scram.ScramLoginModule required;"
        ),
        "listener.name.passwords.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.tokens.oauthbearer.sasl.jaas.config": (
            f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="admin";'
        ),
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(keys),
    }
    listeners = [
        Listener("PASSWORDS", ports["PASSWORDS"], "SASL_PLAINTEXT"),
        Listener("TOKENS", ports["TOKENS"], "SASL_PLAINTEXT"),
        Listener("TLS", ports["TLS"], "SSL"),
    ]
    with EmbeddedKafka(properties, listeners=listeners) as kafka:
        secret = UserScramCredentialUpsertion(
            "job", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096), CANARY.encode()
        )
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.alter_user_scram_credentials([secret])["job"].result(TIMEOUT_S)
        topic = f"secrets-{uuid.uuid4().hex[:8]}"
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for _ in range(3):
            producer.produce(topic, b"x", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        yield Broker({name: f"{HOST}:{port}" for name, port in ports.items()}, topic, authority)


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    """An identity provider."""
    with identity_provider() as provider:
        yield provider


def key(password: bytes | None) -> str:
    """A private key in PEM, encrypted by a password."""
    encryption: Any = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        .decode()
    )


def connection(
    case: str, broker: Broker, provider: IdentityProvider
) -> tuple[dict[str, str], list[str]]:
    """The settings of a case, and its secrets."""
    match case.split():
        case ["password", mechanism, password]:
            settings = {
                "bootstrap.servers": broker.addresses["PASSWORDS"],
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.username": "job",
                "sasl.password": password,
            }
            return settings, [password]
        case ["oidc", "works"]:
            settings = provider.settings()
        case ["oidc", "secret"]:
            settings = provider.settings(**{"sasl.oauthbearer.client.secret": WRONG})
        case ["oidc", "token"]:
            # A signature, which no token without an algorithm has.
            header, claims, _ = unsecured(7_200).split(".")
            provider.token = f"{header}.{claims}.{WRONG.replace('-', '')}"
            settings = provider.settings()
        case ["function", *config]:
            settings = {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.token.provider": token_functions.FETCH,
                "sasl.oauthbearer.config": " ".join([*config, WRONG]),
            }
        case ["tls", "password"]:
            settings = {"ssl.key.pem": key(WRONG.encode()), "ssl.key.password": CANARY}
        case _:
            broken = f"-----BEGIN PRIVATE KEY-----\n{WRONG}\n-----END PRIVATE KEY-----\n"
            settings = {"ssl.key.pem": broken}
    if case.startswith("tls"):
        settings |= {
            "bootstrap.servers": broker.addresses["TLS"],
            "security.protocol": "SSL",
            "ssl.ca.location": str(broker.authority),
            "ssl.certificate.pem": broker.authority.read_text(),
        }
        return settings, [CANARY, WRONG, *settings["ssl.key.pem"].splitlines()[1:-1]]
    settings["bootstrap.servers"] = broker.addresses["TOKENS"]
    return settings, [WRONG, settings.get("sasl.oauthbearer.client.secret", WRONG)]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("case", "works"),
    [
        (f"password PLAIN {CANARY}", True),
        (f"password PLAIN {WRONG}", False),
        (f"password SCRAM-SHA-512 {CANARY}", True),
        (f"password SCRAM-SHA-512 {WRONG}", False),
        ("oidc works", True),
        ("oidc secret", False),
        ("oidc token", False),
        ("function works", True),
        ("function refused", False),
        ("tls password", False),
        ("tls key", False),
    ],
)
def test_no_text_has_a_secret(
    broker: Broker,
    provider: IdentityProvider,
    case: str,
    works: bool,
    reader: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Of logs at every level, of what is printed, of errors with their causes, and of objects."""
    caplog.set_level(0)
    config, secrets = connection(case, broker, provider)
    wanted = {TopicPartition(broker.topic, 0): OffsetSet.of((0, 3))}
    settings = ClientSettings.from_mapping(
        {**config, "reader": reader}, extra_allowed=[token_functions.FETCH]
    )
    texts = [repr(settings), str(settings)]
    rows, error = 0, None
    try:
        opened = open_reader(settings, "g", Isolation.READ_COMMITTED, wanted, stall_timeout_s=5.0)
        with opened:
            for batch in opened.batches():
                rows += batch.num_rows
                # What librdkafka is given is a mapping, which nothing shows.
                parts = [part for part in vars(opened).values() if not isinstance(part, dict)]
                texts += [text for one in (opened, *parts) for text in (repr(one), str(one))]
    except Exception as caught:  # noqa: BLE001 - of any class
        error = caught
        texts += [repr(caught), str(vars(caught)), *traceback.format_exception(caught)]
    assert (rows, error is None) == (3 if works else 0, works), error
    secrets += [*provider.issued, *token_functions.made]
    printed = capfd.readouterr()
    texts += [caplog.text, printed.out, printed.err]
    shown = [secret for secret in secrets if any(secret in text for text in texts)]
    assert shown == []
