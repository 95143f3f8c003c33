"""Token providers by name: functions of the deployment's own, and Amazon's signer, on a broker that wants tokens."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_ordered_ops import (
    AuthenticationError,
    BrokerUnreachableError,
    ClientSettings,
    ConfigError,
    SettingNotAllowedError,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client import token_providers
from kafka_ordered_ops.kafka.ports import open_lookup, open_reader
from kafka_ordered_ops.kafka.settings import SettingValue
from tests.support import token_functions
from tests.support.readers import READERS
from tests.support.token_broker import BY_TOKEN, TokenBroker, token_broker
from tests.support.token_functions import CANARY, FETCH
from tests.support.windows_support import TIMEOUT_S

RECORDS = 300


@pytest.fixture(scope="module")
def broker() -> Iterator[TokenBroker]:
    """The broker of these tests."""
    with token_broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: TokenBroker) -> str:
    """A topic with some records."""
    name = f"tokens-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": broker.plain, "batch.num.messages": 20})
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    return name


@pytest.fixture(autouse=True)
def _no_calls() -> Iterator[None]:
    token_providers._calls.clear()
    token_functions.made.clear()
    token_functions.GO_ON.clear()
    yield
    token_functions.GO_ON.set()


def read(settings: ClientSettings, topic: str, pause_s: float = 0.0) -> list[int]:
    """The offsets of all records."""
    wanted = {TopicPartition(topic, 0): OffsetSet.of((0, RECORDS))}
    offsets: list[int] = []
    isolation = Isolation.READ_COMMITTED
    with open_reader(settings, "g", isolation, wanted, batch_records=20) as reader:
        for batch in reader.batches():
            column: Any = batch["offset"]
            offsets += column.to_pylist()
            time.sleep(pause_s)
    return offsets


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_records_are_read_with_tokens_of_a_function(
    broker: TokenBroker, topic: str, reader: str
) -> None:
    """One token serves all clients of the process; what the other side has of it is a name."""
    settings = pickle.loads(pickle.dumps(broker.settings("extended", reader=reader)))
    assert read(settings, topic) == list(range(RECORDS))
    with open_lookup(settings) as lookup:
        ends = lookup.end_offsets([TopicPartition(topic, 0)], Isolation.READ_COMMITTED)
    assert list(ends.values()) == [RECORDS]
    [token] = token_functions.made
    sent = b"\x01auth=Bearer %s\x01team=data\x01\x01" % token.encode()
    assert any(sent in frame for frame in broker.sent)
    assert token not in f"{settings!r}{token_providers._calls}"


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_token_is_made_again_before_it_expires(
    broker: TokenBroker, topic: str, reader: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker ends a session with its token, and the read goes on beyond that: every record once."""
    # librdkafka looks for tokens to renew once a second, and brokers do not renew a session twice in one.
    lifetime_s = 4 if reader == "native" else 15
    small = {"fetch.message.max.bytes": "1000", "queued.min.messages": "1"}
    settings = broker.settings(f"lives {lifetime_s}", reader=reader, **small)
    began = time.monotonic()
    assert read(settings, topic, pause_s=0.09 * lifetime_s) == list(range(RECORDS))
    assert time.monotonic() - began > 1.2 * lifetime_s
    assert len(token_functions.made) >= 2
    assert not any(token in caplog.text for token in token_functions.made)
    assert not any(record.levelname in ("WARNING", "ERROR") for record in caplog.records)


@pytest.mark.slow
def test_another_process_calls_the_function_itself(
    broker: TokenBroker, topic: str, tmp_path: Path
) -> None:
    """It gets the name alone."""
    calls = tmp_path / "calls"
    settings = broker.settings(f"file {calls}")
    script = """
import pickle, sys
from kafka_ordered_ops.kafka.ports import open_lookup
with open_lookup(pickle.loads(bytes.fromhex(sys.stdin.read()))) as lookup:
    assert sys.argv[1] in lookup.topics([sys.argv[1]])
"""
    given = pickle.dumps(settings).hex()
    command = [sys.executable, "-c", script, topic]
    subprocess.run(command, input=given, text=True, check=True, timeout=TIMEOUT_S)
    assert calls.read_text() == "called\n"
    assert token_functions.made == []


@pytest.mark.slow
def test_the_command_line_calls_the_function_itself(broker: TokenBroker, tmp_path: Path) -> None:
    """Where it is allowed for this command; else an error says how."""
    calls = tmp_path / "calls"
    values = {**BY_TOKEN, "sasl.token.provider": FETCH, "sasl.oauthbearer.config": f"file {calls}"}
    command = [
        sys.executable,
        "-m",
        "kafka_ordered_ops.cli",
        "windows",
        "list",
        "--json",
        "-g",
        "g",
    ]
    command += ["-b", broker.bootstrap]
    command += [part for key, value in values.items() for part in ("-X", f"{key}={value}")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert "name it in --allow-setting" in refused.stdout
    assert not calls.exists()
    command += ["--allow-setting", FETCH]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert json.loads(listed.stdout)["windows"] == [], listed
    assert calls.read_text() == "called\n"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("what", "error", "why"),
    [
        ("refused", AuthenticationError, "ValueError. Call it"),
        ("none", AuthenticationError, "something else than a token and when it expires"),
        ("lives -5", AuthenticationError, "its token has expired"),
        ("away", BrokerUnreachableError, "RuntimeError. Check that"),
        ("hangs", BrokerUnreachableError, "TimeoutError"),
    ],
)
def test_a_function_that_fails_is_named(
    broker: TokenBroker,
    topic: str,
    reader: str,
    what: str,
    error: type[Exception],
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its error's class, and with nothing of what it says; retriable if its cause is a connection or a time-out."""
    monkeypatch.setattr(token_providers, "_TIMEOUT_S", 0.5)
    settings = broker.settings(what, reader=reader)
    with (
        pytest.raises(error, match=f"{FETCH} failed: .*{why}") as caught,
        open_lookup(settings, timeout_s=5.0) as lookup,
    ):
        lookup.topics([topic])
    assert broker.bootstrap in str(caught.value)
    assert CANARY not in f"{caught.value!r}{caught.value.__cause__}{caplog.text}"
    if what == "refused":
        with pytest.raises(error, match=why) as caught:
            read(settings, topic)
        assert CANARY not in f"{caught.value!r}{caught.value.__cause__}{caplog.text}"


def test_the_broker_gets_a_token_of_amazons_signer(
    broker: TokenBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Signed in this process with the environment's keys; the tests' broker, which is no MSK, refuses it by name."""
    pytest.importorskip("aws_msk_iam_sasl_signer", reason="the extra aws-msk-iam is not installed")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIACANARY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-of-the-signer")
    values = {"bootstrap.servers": broker.bootstrap, **BY_TOKEN}
    values |= {"sasl.token.provider": "aws-msk-iam", "sasl.token.region": "eu-central-1"}
    broker.sent.clear()
    with (
        pytest.raises(AuthenticationError, match="broker refuses") as caught,
        open_lookup(ClientSettings.of(values), timeout_s=10.0) as lookup,
    ):
        lookup.topics(["orders"])
    [call] = token_providers._calls.values()
    token = call.future.result()
    assert 800 < token.expires_s - time.time() < 1_000
    url = base64.urlsafe_b64decode(token.text + "==").decode()
    assert url.startswith(
        "https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect"
    )
    assert "AKIACANARY" in url
    assert any(token.text.encode() in frame for frame in broker.sent)
    for secret in (token.text, "canary-of-the-signer"):
        assert secret not in f"{caught.value!r}{token!r}{caplog.text}"


def test_missing_credentials_of_aws_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the library has an AttributeError."""
    pytest.importorskip("aws_msk_iam_sasl_signer", reason="the extra aws-msk-iam is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    config = {"sasl.token.provider": "aws-msk-iam", "sasl.token.region": "eu-central-1"}
    provider = token_providers.TokenProvider.of(config)
    assert provider is not None
    with pytest.raises(token_providers.NoTokensError, match="find no credentials"):
        provider.fetch()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module_here:fetch", "no_such_module_here cannot be imported"),
        ("tests.support.token_functions:nothing", "has no function nothing"),
    ],
)
def test_a_provider_that_is_not_there_is_named(name: str, why: str) -> None:
    """Before anything connects."""
    values = {"bootstrap.servers": "127.0.0.1:9", **BY_TOKEN, "sasl.token.provider": name}
    settings = ClientSettings.from_mapping(values, extra_allowed=[name])
    with pytest.raises(ConfigError, match=why):
        open_lookup(settings).__enter__().topics(["orders"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sasl.token.provider": "aws-msk-iam"}, r"needs sasl\.token\.region"),
        ({"sasl.token.provider": "aws-msk-iam", "sasl.token.region": "x/y"}, "such as eu-central"),
        ({"sasl.token.provider": "fetch"}, "neither aws-msk-iam nor module:function"),
        ({"sasl.token.provider": FETCH, "sasl.mechanism": "PLAIN"}, "OAUTHBEARER"),
        ({"sasl.token.provider": FETCH, "sasl.oauthbearer.method": "OIDC"}, "method=oidc"),
        ({"sasl.token.provider": FETCH, "sasl.token.region": "eu-west-1"}, "goes with"),
        ({"sasl.token.region": "eu-west-1"}, "goes with"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    given: dict[str, SettingValue], why: str
) -> None:
    """At once."""
    values = {"bootstrap.servers": "127.0.0.1:9", **BY_TOKEN, **given}
    with pytest.raises(ConfigError, match=why):
        ClientSettings.from_mapping(values, extra_allowed=[FETCH])


def test_a_function_is_called_only_where_the_deployment_allows_it() -> None:
    """By its own name: to allow the setting is not enough, since its value could be any function."""
    values = {"bootstrap.servers": "127.0.0.1:9", **BY_TOKEN, "sasl.token.provider": "os:system"}
    for allowed in ((), ["sasl.token.provider"], [FETCH]):
        with pytest.raises(SettingNotAllowedError, match="name it in extra_allowed") as caught:
            ClientSettings.from_mapping(values, extra_allowed=allowed)
        assert caught.value.key == "sasl.token.provider"
