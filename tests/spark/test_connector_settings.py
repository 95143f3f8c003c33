"""Client settings in the words of Java's Kafka client: what goes over, what is left out, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ordered_ops import ClientSettings, ConfigError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.kafka.known_settings import ALLOWED_KEYS
from kafka_ordered_ops.kafka.settings import is_secret
from kafka_ordered_ops.spark.read.connector_settings import LEFT_OUT, JavaSettings, java_settings

CANARY = "canary-s3cret"
KEY = f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n"
CHAIN = "-----BEGIN CERTIFICATE-----\nchain\n-----END CERTIFICATE-----\n"
PLAIN = {"sasl.mechanism": "PLAIN", "sasl.username": "job", "sasl.password": CANARY}


def java_of(
    values: dict[str, str], *extra_allowed: str, stall_timeout_s: float = 60
) -> JavaSettings:
    """These settings, with a broker's address, in Java's words."""
    settings = ClientSettings.from_mapping(
        {"bootstrap.servers": "b:9092", **values}, extra_allowed=extra_allowed
    )
    return java_settings(
        settings,
        group_id="orders-hourly",
        isolation=Isolation.READ_COMMITTED,
        stall_timeout_s=stall_timeout_s,
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"bootstrap.servers": "b:9092", "isolation.level": "read_committed"}),
        ({}, {"check.crcs": "true", "allow.auto.create.topics": "false"}),
        ({}, {"fetch.max.wait.ms": "20", "request.timeout.ms": "10000"}),
        ({"socket.timeout.ms": "3000"}, {"request.timeout.ms": "3000"}),
        ({"fetch.message.max.bytes": "77"}, {"max.partition.fetch.bytes": "77"}),
        ({"socket.receive.buffer.bytes": "77"}, {"receive.buffer.bytes": "77"}),
        ({"security.protocol": "sasl_ssl"}, {"security.protocol": "SASL_SSL"}),
        (
            PLAIN,
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'username="job" password="{CANARY}";',
            },
        ),
        (
            {**PLAIN, "sasl.mechanism": "SCRAM-SHA-512", "sasl.password": 'a"b\\c\nd'},
            {
                "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
                'username="job" password="a\\"b\\\\c\\nd";',
            },
        ),
        (
            {"sasl.mechanisms": "GSSAPI", "sasl.kerberos.service.name": "kafka"},
            {"sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka"},
        ),
        (
            {"ssl.ca.location": "/etc/ca.pem"},
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/etc/ca.pem"},
        ),
        (
            {"ssl.ca.pem": CHAIN},
            {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": CHAIN},
        ),
        (
            {"ssl.key.pem": KEY, "ssl.certificate.pem": CHAIN, "ssl.key.password": CANARY},
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.key": KEY,
                "ssl.keystore.certificate.chain": CHAIN,
                "ssl.key.password": CANARY,
            },
        ),
        (
            {"ssl.keystore.location": "/etc/job.p12", "ssl.keystore.password": CANARY},
            {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": "/etc/job.p12",
                "ssl.keystore.password": CANARY,
            },
        ),
    ],
    ids=lambda values: ",".join(values) or "none",
)
def test_what_means_the_same_goes_over(ours: dict[str, str], theirs: dict[str, str]) -> None:
    """Each of our settings has its Java name and form."""
    assert theirs.items() <= java_of(ours).values.items()


def test_certificate_checks_are_kept_unless_the_deployment_says_otherwise() -> None:
    """Host names are checked by default; Java says "none" by an empty value, and always checks certificates."""
    name = "ssl.endpoint.identification.algorithm"
    assert java_of({}).values[name] == "https"
    assert java_of({name: "none"}).values[name] == "https"
    assert not java_of({name: "none"}, name).values[name]
    with pytest.raises(ConfigError, match=r"enable\.ssl\.certificate\.verification"):
        java_of(
            {"enable.ssl.certificate.verification": "false"}, "enable.ssl.certificate.verification"
        )


def test_files_of_the_client_certificate_are_read_here(tmp_path: Path) -> None:
    """Java has no setting for two files; the key counts as a secret from then on."""
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    key.write_text(KEY)
    chain.write_text(CHAIN)
    found = java_of({"ssl.key.location": str(key), "ssl.certificate.location": str(chain)})
    assert found.values["ssl.keystore.key"] == KEY
    assert found.secrets_from == ("ssl.key.location",)


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ({"sasl.kerberos.keytab": "/etc/job.keytab"}, "Kerberos for the JVMs"),
        ({"sasl.oauthbearer.method": "oidc"}, r"sasl\.oauthbearer\.method"),
        ({"sasl.mechanism": "EXTERNAL"}, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "job"}, r"sasl\.password"),
        ({"ssl.cipher.suites": "X"}, "different names for ciphers"),
        ({"ssl.crl.location": "/etc/crl"}, "no such setting"),
        ({"ssl.ca.location": "probe"}, "one PEM file"),
        ({"ssl.ca.location": "/"}, "one PEM file"),
        ({"ssl.key.pem": KEY}, r"ssl\.certificate\.location"),
        ({"ssl.certificate.pem": CHAIN}, r"ssl\.key\.location"),
        (
            {"ssl.key.pem": KEY.replace("PRIVATE", "RSA PRIVATE"), "ssl.certificate.pem": CHAIN},
            "PKCS#8",
        ),
        ({"ssl.key.location": "/nowhere", "ssl.certificate.pem": CHAIN}, "cannot be read"),
    ],
    ids=lambda values: ",".join(values) if isinstance(values, dict) else "",
)
def test_what_java_lacks_is_refused(ours: dict[str, str], said: str) -> None:
    """Nothing that somebody relies on is dropped in silence; the message names it, and no secret."""
    with pytest.raises(ConfigError, match=said) as raised:
        java_of(ours)
    assert CANARY not in str(raised.value)


def test_a_key_of_the_deployment_is_refused() -> None:
    """What the allow-list lets through on somebody's word has no known meaning in Java."""
    with pytest.raises(ConfigError, match=r"enable\.random\.seed"):
        java_of({"enable.random.seed": "true"}, "enable.random.seed")


def outcome(key: str) -> str:
    """What becomes of a setting: the message of a refusal, else whether Java's settings are others with it."""
    try:
        return "over" if java_of({key: "1"}).values != java_of({}).values else "nothing"
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("key", sorted(ALLOWED_KEYS))
def test_every_allowed_key_goes_over_or_is_left_out_or_is_refused(key: str) -> None:
    """A setting changes what Java gets, or is on the list of those that cannot matter, or is named in an error."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": "b:9092", key: "1"})
    is_of_consumer = key in settings.consumer(group_id="g", isolation=Isolation.READ_COMMITTED)
    # Without what they belong to, these open nothing.
    parts = {"sasl.username", "sasl.password", "ssl.key.password", "ssl.keystore.password"}
    same = {"bootstrap.servers", "metadata.broker.list", "sasl.mechanism", "sasl.mechanisms"}
    found = outcome(key)
    if key in LEFT_OUT | parts or not is_of_consumer:
        assert found == "nothing"
    elif key not in same:
        assert found == "over" or key in found


def test_secrets_are_known_and_not_shown() -> None:
    """Text forms hold no secret, and the settings that secrets come from are named."""
    found = java_of({**PLAIN, "ssl.key.pem": KEY, "ssl.certificate.pem": CHAIN})
    assert CANARY not in repr(found)
    assert CANARY not in f"{found}"
    assert found.secrets_from == ("sasl.password", "ssl.key.pem")
    assert all(map(is_secret, found.secrets_from))
    assert java_of({}).secrets_from == ()


def test_a_short_stall_time_bounds_every_answer() -> None:
    """No single call waits longer than a reader does."""
    values = java_of({}, stall_timeout_s=2).values
    assert (values["request.timeout.ms"], values["default.api.timeout.ms"]) == ("2000", "2000")
