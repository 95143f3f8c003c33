from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    BrokerUnreachableError,
    ClientSettings,
    ConfigError,
    CorruptRecordError,
    KafkaOrderedOpsError,
    OffsetMapTooLargeError,
    RecordsLostError,
    SettingNotAllowedError,
    TlsError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client, translate
from kafka_ordered_ops.kafka.known_settings import ALLOWED_KEYS
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.properties import parse_properties
from kafka_ordered_ops.kafka.read import native_options
from kafka_ordered_ops.kafka.settings import SettingValue

SERVERS = {"bootstrap.servers": "localhost:9092"}
SASL: dict[str, SettingValue] = {
    **SERVERS,
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "reader",
    "sasl.password": "hunter2-canary",
}


@pytest.mark.parametrize("group_id", ["", "a\0b", "x" * 513])
def test_a_group_without_a_valid_name_reaches_no_client(group_id: str) -> None:
    """The client ends the whole process for an empty one."""
    with pytest.raises(ConfigError, match="group"):
        ClientSettings.from_mapping(SERVERS).consumer(
            group_id=group_id, isolation=Isolation.READ_COMMITTED
        )


@pytest.mark.parametrize(
    "key",
    [
        "plugin.library.paths",
        "ssl.engine.location",
        "ssl.providers",
        "sasl.kerberos.kinit.cmd",
        "interceptors",
    ],
)
def test_keys_that_run_code_are_refused_by_name(key: str) -> None:
    """A key outside the allow-list is named in the error, with the way to allow it."""
    with pytest.raises(SettingNotAllowedError, match="extra_allowed") as caught:
        ClientSettings.from_mapping({**SERVERS, key: "x"})
    assert caught.value.key == key
    assert (
        ClientSettings.from_mapping({**SERVERS, key: "x"}, extra_allowed=[key]).admin()[key] == "x"
    )


@pytest.mark.parametrize("key", ["statistics.interval.ms", "debug"])
def test_what_shared_connections_set_in_vain_is_ignored_by_name(key: str) -> None:
    """Unless the deployment asks for it."""
    settings = ClientSettings.from_mapping({**SERVERS, key: "1"})
    assert (settings.overridden, key in settings.admin()) == ((key,), False)
    assert ClientSettings.from_mapping({**SERVERS, key: "1"}, extra_allowed=[key]).admin()[key]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"oauth_cb": print}, r"function \(oauth_cb\).*method=oidc"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "nothing that gets a token.*method=oidc"),
        ({"sasl.mechanisms": "oauthbearer"}, "nothing that gets a token"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "login module of Java.*method=oidc"),
        ({"sasl.password": " hunter2-canary"}, "sasl.password' begins with a blank"),
        ({"bootstrap.servers": "ok:1,user:hunter2-canary@host:9092"}, "entry 2 of 2"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_cure(
    given: dict[str, SettingValue], told: str
) -> None:
    """At once, and without the value."""
    with pytest.raises(ConfigError, match=told) as caught:
        ClientSettings.from_mapping({**SERVERS, **given})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["ssl.ca.location", "ssl.key.location", "sasl.kerberos.keytab"])
def test_a_file_that_cannot_be_read_is_named_with_its_connection(key: str) -> None:
    """The client's own error names neither, or comes as a time-out."""
    config = ClientSettings.from_mapping({**SERVERS, key: "/no/such/file.pem"}).admin()
    with pytest.raises(ConfigError, match=rf"{key}.*localhost:9092.*/no/such/file.pem"):
        open_client(AdminClient, config, FaultReasons())


def test_the_client_does_not_repeat_the_value_that_it_refuses() -> None:
    """It may be anything: a password in the wrong place."""
    config = {**SERVERS, "security.protocol": "hunter2-canary"}
    with pytest.raises(ConfigError, match="refuses its settings") as caught:
        open_client(AdminClient, config, FaultReasons())
    assert "hunter2" not in str(caught.value)


def test_the_reason_that_says_most_is_kept() -> None:
    """The client repeats the same trouble in fewer words."""
    reasons = FaultReasons()
    for text in (
        "ssl://b:1/bootstrap: SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
        "ssl://b:1/bootstrap: Disconnected: SSL connection closed by peer (after 0ms in state SSL_HANDSHAKE)",
    ):
        reasons.add(KafkaError(KafkaError._TRANSPORT, text))
    reasons.add(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    error = translate(
        KafkaError(KafkaError._TIMED_OUT), doing="asking", where="orders", reasons=reasons
    )
    assert isinstance(error, TlsError)
    assert "PLAINTEXT broker listener" in str(error)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("sasl.pasword", "did you mean sasl.password"),
        ("enable.auto.comit", "did you mean enable.auto.commit"),
        ("bootstrap.server", "did you mean bootstrap.servers"),
        ("sasl.jaas.config", "sasl.username"),
        ("ssl.truststore.location", "ssl.ca.location"),
    ],
)
def test_a_typo_or_a_java_key_gets_a_hint(key: str, hint: str) -> None:
    """The nearest allowed key is offered, and for Java's keys the client's own."""
    with pytest.raises(SettingNotAllowedError, match=hint):
        ClientSettings.from_mapping({**SERVERS, key: "x"})


def test_keys_that_carry_a_guarantee_are_overridden() -> None:
    """What a shared connection sets against a guarantee is listed, and has our value."""
    settings = ClientSettings.from_mapping(
        {
            **SERVERS,
            "group.id": "other",
            "enable.auto.commit": True,
            "auto.offset.reset": "latest",
            "isolation.level": "read_uncommitted",
            "check.crcs": False,
            "enable.ssl.certificate.verification": False,
        }
    )
    assert settings.overridden == (
        "auto.offset.reset",
        "check.crcs",
        "enable.auto.commit",
        "enable.ssl.certificate.verification",
        "group.id",
        "isolation.level",
    )
    consumer = settings.consumer(group_id="ours", isolation=Isolation.READ_COMMITTED)
    assert consumer["group.id"] == "ours"
    assert consumer["enable.auto.commit"] == "false"
    assert consumer["auto.offset.reset"] == "error"
    assert consumer["isolation.level"] == "read_committed"
    assert consumer["check.crcs"] == "true"
    assert consumer["enable.ssl.certificate.verification"] == "true"
    assert consumer["allow.auto.create.topics"] == "false"
    assert consumer["socket.timeout.ms"] == "10000"
    assert consumer["reconnect.backoff.max.ms"] == "1000"
    assert consumer["fetch.queue.backoff.ms"] == "5"
    assert consumer["queued.min.messages"] == "20000"


def test_a_longer_pause_between_connections_is_accepted() -> None:
    """The package's limit of the pause is below it, and gives way."""
    given = ClientSettings.from_mapping({**SERVERS, "reconnect.backoff.ms": 5_000})
    AdminClient({**given.admin(), "log_level": 0})


def test_certificate_checks_can_be_given_up_by_name() -> None:
    """A test cluster may switch them off, but only by saying so twice."""
    key = "enable.ssl.certificate.verification"
    settings = ClientSettings.from_mapping({**SERVERS, key: False}, extra_allowed=[key])
    assert settings.overridden == ()
    assert settings.admin()[key] == "false"


def test_each_kind_of_client_gets_its_own_keys() -> None:
    """Keys of another kind of client are left out: the client would log a warning for each."""
    settings = ClientSettings.from_mapping(
        {**SERVERS, "fetch.min.bytes": 7, "linger.ms": 9.0, "delivery.timeout.ms": 90_000}
    )
    consumer = settings.consumer(group_id="g", isolation=Isolation.READ_UNCOMMITTED)
    producer = settings.producer(transactional_id="koo.x")
    assert consumer["fetch.min.bytes"] == "7"
    assert "linger.ms" not in consumer
    assert producer["linger.ms"] == "9"
    assert "fetch.min.bytes" not in producer
    assert producer["transaction.timeout.ms"] == "10000"
    assert producer["delivery.timeout.ms"] == "10000"
    assert "transactional.id" not in settings.producer()
    assert {"linger.ms", "fetch.min.bytes"}.isdisjoint(settings.admin())


def test_the_client_knows_every_configuration_made_here() -> None:
    """Consumer, producer and admin client accept what their method returns."""
    settings = ClientSettings.from_mapping(SERVERS)
    reasons = FaultReasons()
    config = settings.consumer(group_id="g", isolation=Isolation.READ_COMMITTED)
    open_client(Consumer, config, reasons).close()
    open_client(Producer, settings.producer(transactional_id="koo.x"), reasons)
    open_client(AdminClient, settings.admin(), reasons)


def complaint(key: str) -> str:
    """What the client says about a value that no key takes."""
    try:
        Producer({key: "\x01"})
    except KafkaException as error:
        return str(error.args[0].str())
    return ""


def test_every_allowed_key_exists() -> None:
    """The allow-list holds no key that the client does not have."""
    assert "No such configuration property" in complaint("no.such.key")
    unknown = [key for key in ALLOWED_KEYS if "No such configuration" in complaint(key)]
    assert unknown == []


def test_settings_need_a_broker_and_plain_values() -> None:
    """Without bootstrap.servers, or with a callable as a value, nothing is made."""
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        ClientSettings.from_mapping({"client.id": "x"})
    with pytest.raises(ConfigError, match="list"):
        ClientSettings.from_mapping({"bootstrap.servers": ["localhost:9092"]})  # type: ignore[dict-item]


def test_secrets_are_never_shown() -> None:
    """No text form holds a secret; the user name stays, and pickling keeps everything."""
    settings = ClientSettings.from_mapping(SASL).merged({"ssl.key.pem": "pem-canary"})
    text = f"{settings} {settings!r}"
    assert "canary" not in text
    assert "reader" in text
    assert sorted(settings.secret_values()) == ["hunter2-canary", "pem-canary"]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_merged_settings_are_checked_and_remember_what_was_overridden() -> None:
    """The later value wins, the allow-list holds, overridden keys of both are listed."""
    first = ClientSettings.from_mapping({**SERVERS, "group.id": "x"})
    merged = first.merged({"client.id": "b", "check.crcs": "false"})
    assert merged.admin()["client.id"] == "b"
    assert merged.overridden == ("check.crcs", "group.id")
    with pytest.raises(SettingNotAllowedError):
        first.merged({"plugin.library.paths": "x"})


def test_a_properties_file_is_read_as_java_does(tmp_path: Path) -> None:
    """Comments, separators, continued lines and escapes; a password keeps its odd characters."""
    file = tmp_path / "client.properties"
    file.write_text(
        "# a comment\n! another\n\nbootstrap.servers = a:1,\\\n    b:2\nclient.id: me\r\n"
        "sasl.password=p\\=a\\\\ss#\\u00e9\\ud83d\\ude00 !\nsasl.username bob\n",
        encoding="utf-8",
    )
    config = ClientSettings.from_file(file).admin()
    assert config["bootstrap.servers"] == "a:1,b:2"
    assert config["client.id"] == "me"
    assert config["sasl.password"] == "p=a\\ss#é\U0001f600 !"
    assert config["sasl.username"] == "bob"


def test_a_broken_properties_file_shows_nothing_of_itself(tmp_path: Path) -> None:
    """The errors name file or line, never the text: it may be a secret."""
    with pytest.raises(ConfigError, match="line 2") as caught:
        parse_properties("a=b\n=canary")
    assert "canary" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"line 1 .* an incomplete escape") as caught:
        parse_properties("sasl.password=canary\\ud83d")
    assert "canary" not in str(caught.value)
    file = tmp_path / "binary"
    file.write_bytes(b"canary\xff")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        ClientSettings.from_file(file)
    assert "canary" not in str(caught.value)
    with pytest.raises(ConfigError, match="No such file"):
        ClientSettings.from_file(tmp_path / "absent")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._TIMED_OUT, BrokerUnreachableError),
        (KafkaError._ALL_BROKERS_DOWN, BrokerUnreachableError),
        (KafkaError.NOT_COORDINATOR, BrokerUnreachableError),
        (KafkaError._AUTHENTICATION, AuthenticationError),
        (KafkaError._SSL, TlsError),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, AuthorizationError),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AuthorizationError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, UnknownTopicError),
        (KafkaError._BAD_MSG, CorruptRecordError),
        (KafkaError._BAD_COMPRESSION, CorruptRecordError),
        (KafkaError._AUTO_OFFSET_RESET, RecordsLostError),
        (KafkaError.OFFSET_METADATA_TOO_LARGE, OffsetMapTooLargeError),
        (KafkaError._INVALID_ARG, ConfigError),
        (KafkaError.UNKNOWN, BrokerError),
    ],
)
def test_client_errors_become_ours(code: int, expected: type[KafkaOrderedOpsError]) -> None:
    """Each code has its class; the message says what was done, where, and the client's name for it."""
    error = KafkaException(KafkaError(code))
    ours = translate(error, doing="testing", where="orders[3]", reasons=FaultReasons())
    assert type(ours) is expected
    assert "while testing (orders[3])" in str(ours)
    assert KafkaError(code).name() in str(ours)


def test_a_time_out_gets_the_reason_that_only_the_callback_knew() -> None:
    """Refused credentials and failed handshakes explain a time-out; their secrets are blotted out."""
    reasons = FaultReasons(["hunter2"])
    timed_out = KafkaError(KafkaError._TIMED_OUT)
    reasons.add(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    error = translate(timed_out, doing="x", where="y", reasons=reasons)
    assert isinstance(error, BrokerUnreachableError)
    assert "connection refused" in str(error)
    reasons.add(KafkaError(KafkaError._SSL, "certificate verify failed"))
    assert isinstance(translate(timed_out, doing="x", where="y", reasons=reasons), TlsError)
    reasons.add(KafkaError(KafkaError._AUTHENTICATION, "bad password hunter2"))
    error = translate(timed_out, doing="x", where="y", reasons=reasons)
    assert isinstance(error, AuthenticationError)
    assert "hunter2" not in str(error)
    reasons.clear()
    error = translate(timed_out, doing="x", where="y", reasons=reasons)
    assert isinstance(error, BrokerUnreachableError)


@pytest.mark.parametrize(
    "brokers",
    [
        "broker",
        "broker-1:9092, broker_2:9093,",
        "SASL_SSL://10.0.0.1:9092",
        "[::1]:9092,[fe80::1%eth0]:9092",
        "memory:kafka-1",
    ],
)
def test_addresses_of_brokers_are_taken_as_the_client_takes_them(brokers: str) -> None:
    """One or several, with or without a port or a protocol, and a comma too many."""
    assert ClientSettings.of(brokers).bootstrap_servers == brokers


@pytest.mark.parametrize(
    "brokers",
    [
        "a b",
        "host:port",
        "host:9092;other",
        "http//host",
        ",",
        "a\nb",
        "\ud800",
        "b\0:1",
        "b:0",
        "b:65536",
        "[::1]:99999",
    ],
)
def test_what_no_client_could_connect_to_is_refused(brokers: str) -> None:
    """At once, and not by a client that asks a name server for half a minute."""
    for given in (brokers, {"metadata.broker.list": brokers}):
        with pytest.raises(ConfigError, match=r"broker|bootstrap"):
            ClientSettings.of(given)


def test_the_native_reader_is_asked_for_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is an error; nobody who has not asked for it hears of it."""
    monkeypatch.setattr(native_options, "native_module", lambda: None)
    wanted = {TopicPartition("orders", 0): OffsetSet.of((0, 1))}
    with caplog.at_level(logging.INFO):
        open_reader(ClientSettings.of("b:1"), "g", Isolation.READ_COMMITTED, wanted)
    assert caplog.text == ""
    by_native = ClientSettings.of({"bootstrap.servers": "b:1", "reader": "native"})
    with pytest.raises(ConfigError, match="not installed"):
        open_reader(by_native, "g", Isolation.READ_COMMITTED, wanted)
