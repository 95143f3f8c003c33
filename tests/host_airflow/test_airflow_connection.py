"""Airflow's Kafka connections as settings, and the hook's test of a connection, on brokers that refuse things."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import redact
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    NewTopic,
    ResourceType,
)

from kafka_ordered_ops import ConfigError, Earliest, SettingNotAllowedError
from kafka_ordered_ops.airflow import KafkaWindowsHook
from kafka_ordered_ops.airflow.compat import AirflowNotFoundException
from kafka_ordered_ops.airflow.connection import settings_of
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_PARTITIONS
from kafka_ordered_ops.core.types import Isolation
from tests.kafka.test_ledger_faults import guarded
from tests.support.airflow_versions import button_test
from tests.support.guarded import Guarded, right
from tests.support.token_functions import FETCH
from tests.support.windows_support import BASE_MS, TIMEOUT_S, before
from tests.support.wire import write_batch

__all__ = ["guarded"]

NOWHERE = "127.0.0.1:9"


class Connect:
    """Makes connections of this test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, extra: Any, conn_type: str = "kafka", **form: Any) -> str:
        """A connection with this extra field, and others of the form; its name."""
        name = f"kafka_{uuid.uuid4().hex[:12]}"
        value = json.dumps({"conn_type": conn_type, "extra": extra, **form})
        self._monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", value)
        return name


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Makes connections, in the environment."""
    return Connect(monkeypatch)


def told_by_us(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The package's own lines: Airflow says something about secrets that are too short to be hidden."""
    return [one.getMessage() for one in caplog.records if one.name.startswith("kafka_ordered_ops")]


def consumer_of(conn_id: str, **options: Any) -> Mapping[str, str]:
    """The consumer's configuration that a connection comes to."""
    settings = settings_of(conn_id, **options)
    return settings.consumer(group_id="task-group", isolation=Isolation.READ_COMMITTED)


# --- settings ----------------------------------------------------------------------------------------


def test_a_connection_made_for_the_providers_consumers_is_taken_as_it_is(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Its group and its commits are overridden, callbacks and what is nested left out: one line, no refusal."""
    conn_id = connect(
        {
            "bootstrap.servers": "broker:9092",
            "group.id": "the-connections-group",
            "enable.auto.commit": True,
            "auto.offset.reset": "latest",
            "isolation.level": "read_uncommitted",
            "error_cb": "my.module.on_error",
            "default.topic.config": {"acks": "all"},
            "socket.timeout.ms": 20_000,
            "reconnect.backoff.ms": 100.0,
            "socket.keepalive.enable": False,
            "client.id": None,
            "sasl.mechanism": "",
        }
    )
    with caplog.at_level("INFO", logger="kafka_ordered_ops"):
        config = consumer_of(conn_id)
    assert config["bootstrap.servers"] == "broker:9092"
    assert config["group.id"] == "task-group"
    assert config["enable.auto.commit"] == "false"
    assert config["auto.offset.reset"] == "error"
    assert config["isolation.level"] == "read_committed"
    assert config["socket.timeout.ms"] == "20000"
    assert float(config["reconnect.backoff.ms"]) == 100
    assert config["socket.keepalive.enable"] == "false"
    assert not {"error_cb", "default.topic.config", "client.id", "sasl.mechanism"} & config.keys()
    [line] = told_by_us(caplog)
    for key in ("group.id", "enable.auto.commit", "auto.offset.reset", "error_cb", "isolation"):
        assert key in line
    assert "default.topic.config" in line


def test_a_connection_with_nothing_to_override_says_nothing(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """No line for what was taken as it is."""
    conn_id = connect({"bootstrap.servers": "broker:9092", "client.id": "x"})
    with caplog.at_level("INFO", logger="kafka_ordered_ops"):
        assert consumer_of(conn_id)["client.id"] == "x"
    assert told_by_us(caplog) == []


def test_a_connection_by_uri_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its values are texts then."""
    uri = "kafka://?bootstrap.servers=broker%3A9092&enable.auto.commit=true&socket.timeout.ms=5000"
    monkeypatch.setenv("AIRFLOW_CONN_BY_URI", uri)
    config = consumer_of("by_uri")
    assert (config["socket.timeout.ms"], config["enable.auto.commit"]) == ("5000", "false")


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({}, "bootstrap.servers"),
        ({"bootstrap.servers": "b:1", "oauth_cb": "my.tokens"}, r"oauth_cb.*method=oidc"),
        (
            {"bootstrap.servers": "b:1", "sasl.mechanism": "OAUTHBEARER"},
            r"nothing that gets a token.*method=oidc",
        ),
        (
            {"bootstrap.servers": "b:1", "sasl.mechanisms": "oauthbearer"},
            "nothing that gets a token",
        ),
    ],
)
def test_a_connection_that_cannot_do_is_named(connect: Connect, extra: Any, told: str) -> None:
    """With the connection's name, and the cure."""
    conn_id = connect(extra)
    with pytest.raises(ConfigError, match=told) as caught:
        settings_of(conn_id)
    assert conn_id in str(caught.value)


def test_a_function_for_tokens_is_allowed_by_the_deployment(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by whoever may edit connections."""
    extra = {"bootstrap.servers": "b:1", "sasl.mechanism": "OAUTHBEARER"}
    conn_id = connect({**extra, "sasl.token.provider": FETCH})
    with pytest.raises(SettingNotAllowedError, match=r"settings_allowed in airflow\.cfg"):
        settings_of(conn_id)
    monkeypatch.setenv("AIRFLOW__KAFKA_ORDERED_OPS__SETTINGS_ALLOWED", f"debug, {FETCH}")
    assert settings_of(conn_id).admin()["sasl.token.provider"] == FETCH


@pytest.mark.parametrize("form", [{"host": "broker", "port": 9092}, {"host": "broker:9092"}])
def test_brokers_in_the_form_alone_are_named(connect: Connect, form: dict[str, Any]) -> None:
    """No Kafka client looks there; beside bootstrap.servers they are left alone."""
    conn_id = connect({}, **form)
    with pytest.raises(
        ConfigError, match=r"host and port in the form.*bootstrap\.servers"
    ) as caught:
        settings_of(conn_id)
    assert conn_id in str(caught.value)
    assert settings_of(connect({"bootstrap.servers": "b:1"}, **form)).bootstrap_servers == "b:1"


def test_an_extra_field_that_is_no_object_is_refused(connect: Connect) -> None:
    """By us; outside of its workers Airflow 3.1 does not take such a connection in the first place."""
    conn_id = connect(["a-list-of-texts"])
    refusals = (ConfigError, AirflowNotFoundException)
    with pytest.raises(refusals, match=r"JSON list, not an object|isn't defined") as caught:
        settings_of(conn_id)
    assert conn_id in str(caught.value)


def test_tokens_that_the_client_gets_by_itself_are_fine(connect: Connect) -> None:
    """OIDC travels as settings."""
    conn_id = connect(
        {
            "bootstrap.servers": "b:1",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "OIDC",
            "sasl.oauthbearer.client.id": "job",
        }
    )
    assert consumer_of(conn_id)["sasl.oauthbearer.method"] == "OIDC"


def test_a_setting_that_could_run_code_is_refused_unless_the_deployment_allows_it(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error keeps its kind and its fact, and names the connection."""
    conn_id = connect({"bootstrap.servers": "b:1", "plugin.library.paths": "x"})
    with pytest.raises(SettingNotAllowedError, match=f"{conn_id}.*plugin") as caught:
        settings_of(conn_id)
    assert caught.value.key == "plugin.library.paths"
    monkeypatch.setenv("AIRFLOW__KAFKA_ORDERED_OPS__SETTINGS_ALLOWED", "plugin.library.paths")
    assert consumer_of(conn_id)["plugin.library.paths"] == "x"


def test_an_unknown_connection_is_airflows_own_error() -> None:
    """The one that people know."""
    with pytest.raises(AirflowNotFoundException, match="nobody_made_this"):
        settings_of("nobody_made_this")


def test_secrets_are_hidden_in_logs(connect: Connect) -> None:
    """Also those that Airflow would not hide by their names, and each line of a key."""
    lines = ["MIIEvQIBADANBgkqhkiG9w0BAQEF", "AASCBKcwggSjAgEAAoIBAQC7VJTU"]
    pem = "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----"])
    conn_id = connect(
        {
            "bootstrap.servers": "b:1",
            "sasl.password": "password-canary",
            "sasl.oauthbearer.config": "principal=config-canary",
            "ssl.key.pem": pem,
        }
    )
    settings_of(conn_id)
    for secret in ("password-canary", "principal=config-canary", pem, *lines):
        assert redact(f"told: {secret}!") == "told: ***!"
    assert redact("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"


# --- the hook ----------------------------------------------------------------------------------------


def test_the_hook_opens_the_service(
    connect: Connect, bootstrap: str, orders: str, group_id: str
) -> None:
    """For functions of your own; the group is the argument's, or else the connection's."""
    conn_id = connect({"bootstrap.servers": bootstrap, "group.id": group_id})
    with KafkaWindowsHook(conn_id).get_conn() as windows:
        assert windows.group_id == group_id
        assert windows.preview(before(orders, 12, Earliest())).offsets == 3
    with KafkaWindowsHook(conn_id, f"{group_id}-other").get_conn() as windows:
        assert windows.group_id == f"{group_id}-other"
    with pytest.raises(ConfigError, match=r"group_id=.*group\.id"):
        KafkaWindowsHook(connect({"bootstrap.servers": bootstrap})).get_conn()


@pytest.mark.parametrize("conn_type", ["kafka", "kafka_windows"])
def test_a_good_connection_passes_its_test(
    connect: Connect, bootstrap: str, group_id: str, conn_type: str
) -> None:
    """A broker without access rules allows everything; nothing is made by asking."""
    ledger = f"ledger-{group_id}"
    conn_id = connect({"bootstrap.servers": bootstrap, "group.id": group_id}, conn_type)
    hook = KafkaWindowsHook(conn_id, ledger_topic=ledger)
    assert hook.test_connection() == (
        True,
        f"Connected. Windows of group {group_id} can be planned and committed",
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert ledger not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_the_button_of_a_connection_comes_to_the_hook(
    bootstrap: str, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Airflow calls it: by the type, with a connection that is stored nowhere."""
    extra = json.dumps({"bootstrap.servers": bootstrap, "group.id": group_id})
    works, told = button_test(monkeypatch, conn_type="kafka_windows", extra=extra)
    assert works, told
    assert group_id in told


def test_without_a_group_the_test_says_what_it_did_not_ask(
    connect: Connect, bootstrap: str
) -> None:
    """A connection that many groups share names none."""
    works, told = KafkaWindowsHook(connect({"bootstrap.servers": bootstrap})).test_connection()
    assert works
    assert "group.id is not set" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({}, "ConfigError: .*bootstrap.servers"),
        (
            {"bootstrap.servers": NOWHERE, "group.id": "g"},
            "BrokerUnreachableError: .*Connection refused",
        ),
    ],
)
def test_a_bad_connection_fails_its_test_with_the_reason(
    connect: Connect, extra: dict[str, Any], told: str
) -> None:
    """It never raises: Airflow shows the text."""
    works, found = KafkaWindowsHook(connect(extra), timeout_s=2).test_connection()
    assert not works

    assert re.match(told, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("read the group", "READ on group {group_id}"),
        ("read the ledger", "READ on topic {ledger}"),
        ("write the ledger", "WRITE on topic {ledger}"),
        ("write the transaction", "WRITE on transactional id {transaction}"),
        (
            "everything",
            "READ on group {group_id}; READ and WRITE on topic {ledger}; WRITE on trans",
        ),
        ("nothing", None),
    ],
)
def test_the_test_of_a_connection_names_the_rights_that_are_missing(
    guarded: Guarded, connect: Connect, group_id: str, missing: str, named: str | None
) -> None:
    """Each one that a window would have failed for."""
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    ledger = f"ledger-{uuid.uuid4().hex[:12]}"
    new = NewTopic(ledger, LEDGER_PARTITIONS, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([new])[ledger].result(TIMEOUT_S)
    rights = guarded.rights_of("orders", ledger, group_id)
    transaction = rights["write the transaction"].name
    # To see a group is not enough to commit to it.
    rights["describe the group"] = right(ResourceType.GROUP, group_id, AclOperation.DESCRIBE)
    kept = [one for what, one in rights.items() if what != missing]
    other = right(ResourceType.TOPIC, "another", AclOperation.READ)
    guarded.grant(*([other] if missing == "everything" else kept))
    conn_id = connect({**guarded.job, "group.id": group_id})
    works, told = KafkaWindowsHook(conn_id, ledger_topic=ledger).test_connection()
    assert works == (named is None)
    if named is not None:
        assert named.format(group_id=group_id, ledger=ledger, transaction=transaction) in told
        assert "secret" not in told


@pytest.mark.slow
def test_what_the_test_finds_enough_is_enough_for_a_window(
    guarded: Guarded, connect: Connect, group_id: str
) -> None:
    """With the right to read its topic; the ledger is made with the rights that were found."""
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    name, ledger = (f"{what}-{uuid.uuid4().hex[:12]}" for what in ("orders", "ledger"))
    new = NewTopic(name, 1, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[name].result(TIMEOUT_S)
    write_batch(guarded.bootstrap, name, [BASE_MS, BASE_MS + 20_000])
    guarded.grant(*guarded.rights_of(name, ledger, group_id).values())
    hook = KafkaWindowsHook(connect({**guarded.job, "group.id": group_id}), ledger_topic=ledger)
    assert hook.test_connection()[0]
    with hook.get_conn() as windows:
        assert windows.commit(windows.plan(before(name, 12, Earliest()), "w")).status.is_done


def test_the_right_to_make_the_ledger_is_asked_for_where_there_is_none(
    guarded: Guarded, connect: Connect, group_id: str
) -> None:
    """Asking makes no topic."""
    ledger = f"ledger-{uuid.uuid4().hex[:12]}"
    rights = guarded.rights_of("orders", ledger, group_id)
    create = rights.pop("create the ledger")
    hook = KafkaWindowsHook(connect({**guarded.job, "group.id": group_id}), ledger_topic=ledger)
    guarded.grant(*rights.values())
    works, told = hook.test_connection()
    assert not works
    assert f"CREATE on topic {ledger}" in told
    guarded.grant(*rights.values(), create)
    assert hook.test_connection()[0]
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    assert ledger not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_refused_credentials_are_told_without_them(guarded: Guarded, connect: Connect) -> None:
    """At once, by name, and the password stays out of it."""
    extra = {**guarded.job, "sasl.password": "wrong-canary"}
    works, told = KafkaWindowsHook(connect(extra)).test_connection()
    assert not works
    assert told.startswith("AuthenticationError: ")
    assert "canary" not in told
