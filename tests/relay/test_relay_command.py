"""``relay serve`` and ``relay token``, as people run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from kafka_ordered_ops import AccessDeniedError, ConfigError
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.relay import RelayClient
from kafka_ordered_ops.relay.http.access import read_entries
from kafka_ordered_ops.relay.limits import TokenLimits
from kafka_ordered_ops.relay.rights import Verb
from tests.support.broker_world import BrokerWorld
from tests.support.cli_support import NOWHERE
from tests.support.relay_server import free_port

TIMEOUT_S = 60.0


@contextmanager
def serving(port: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command, ready."""
    command = [sys.executable, "-m", "kafka_ordered_ops.cli", "relay", "serve", "--json", *options]
    process = subprocess.Popen(
        [*command, "--bind", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True
    )
    try:
        await_ready(port)
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()


def await_ready(port: int) -> None:
    """Wait until reads are served."""
    ends_at = time.monotonic() + TIMEOUT_S
    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < ends_at
        time.sleep(0.1)


@pytest.mark.long
def test_server_is_killed_and_started_again(broker: BrokerWorld, tmp_path: Path) -> None:
    """Leases hold until their end, what is acknowledged stays so, and under its name it waits for no session to end."""
    broker.create("orders", 2)
    for partition in range(2):
        broker.write("orders", partition, *range(20))
    tokens, port = tmp_path / "tokens", free_port()
    topic = broker.named("orders")
    group = [
        "--relay-group",
        broker.named("servers"),
        "--server-name",
        "one",
        "--session-timeout",
        "PT5M",
    ]
    bootstrap = broker.settings.bootstrap_servers
    options = [topic, "-b", str(bootstrap), "--tokens", str(tokens), *group]
    options += ["--limit", "lease=PT2M", "--limit", "groups=1"]
    asked = ["relay", "token", "workers", "--tokens", str(tokens), "--topics", topic]
    asked += ["--groups", "billing"]
    made = subprocess.run(
        [sys.executable, "-m", "kafka_ordered_ops.cli", *asked],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    token = made.stdout.strip()
    seen: Counter[tuple[int, int]] = Counter()
    url = f"http://127.0.0.1:{port}"
    with serving(port, *options) as process:
        with RelayClient(url) as client, pytest.raises(AccessDeniedError):
            client.read("billing")
        with RelayClient(url, token=token) as client:
            with pytest.raises(ConfigError, match="120 s at most"):
                client.read("billing", lease_s=121)
            for _ in range(2):
                for lease in client.read("billing", records_max=8, wait_s=20, lease_s=3):
                    client.acknowledge(lease)
                    seen.update((one.partition, one.offset) for one in lease.records)
            with pytest.raises(AccessDeniedError, match="audit"):
                client.read("audit")
            # Read, and never acknowledged: they come again.
            assert client.read("billing", records_max=5, wait_s=20, lease_s=3).records
        process.kill()
    with serving(port, *options) as process, RelayClient(url, token=token) as client:
        ends_at = time.monotonic() + TIMEOUT_S
        while len(seen) < 40:
            assert time.monotonic() < ends_at
            for lease in client.read("billing", wait_s=2):
                client.acknowledge(lease)
                seen.update((one.partition, one.offset) for one in lease.records)
        assert set(seen.values()) == {1}
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"url": url, "topics": [topic]}


def test_refused_before_anything_is_touched(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Addresses that others reach, files that are not there, and options that do not fit are usage errors."""
    serve = ["relay", "serve", "orders", "-b", NOWHERE]
    cases = {
        ("--bind", "0.0.0.0:0"): "no TLS",
        ("--bind", "0.0.0.0:0", "--tls-cert", "a.pem"): "anyone could read",
        ("--bind", "nowhere"): "no TLS",
        ("--bind", "127.0.0.1:0", "--tls-key", "a.pem"): "needs a tls_certificate",
        ("--bind", "127.0.0.1:0", "--tokens", str(tmp_path / "none")): "cannot read tokens",
        ("--bind", "127.0.0.1:0", "--starting-offsets", "never"): "never",
        ("--bind", "127.0.0.1:0", "--dead-letter-topic", "orders"): "dead_letter_topic",
        ("--bind", "127.0.0.1:0", "--limit", "conections=5"): "did you mean 'connections'",
        ("--bind", "127.0.0.1:0", "--limit", "lease=P2D"): "PT1S to P1D",
        ("--bind", "127.0.0.1:0", "--limit", "groups=1", "--limit", "groups=2"): "twice",
    }
    for options, reason in cases.items():
        assert main([*serve, *options]) == 2, options
        assert reason in capfd.readouterr().err


@pytest.mark.slow
def test_token_is_printed_once(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The token goes to stdout, its hash to the file, with what it allows."""
    file = tmp_path / "tokens"
    asked = ["relay", "token", "workers", "--tokens", str(file)]
    for part in (["--topics", "orders"], ["--groups", "billing"]):
        assert main([*asked, *part]) == 2
    asked += ["--groups", "billing, audit-*"]
    bare, asked = asked, [*asked, "--topics", "*"]
    capfd.readouterr()
    assert main(asked) == 0
    token = capfd.readouterr().out.strip()
    assert token.startswith("koo_")
    assert token not in file.read_text()
    options = ["--topics", "orders, payments", "--verbs", "read,admin", "--expires", "PT1H"]
    options += ["--limit", "pending=100", "--limit", "lease=PT2M"]
    assert main([*bare, *options, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["removed"] == 0
    entry = read_entries(file)[-1]
    assert entry.access.topics.patterns == {"orders", "payments"}
    assert entry.access.groups.patterns == {"billing", "audit-*"}
    assert entry.access.limits == TokenLimits(pending_max=100, lease_s_max=120.0)
    assert entry.access.verbs == {Verb.READ, Verb.ADMIN}
    assert entry.expires_ms is not None
    assert abs(entry.expires_ms / 1000 - time.time() - 3_600) < 60
    assert main([*asked, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["removed"] == 1
    wrongs = {
        ("--verbs", "rule"): "rule",
        ("--topics", ","): "empty list",
        ("--groups", "a*b"): "not its end",
        ("--expires", "soon"): "soon",
        ("--limit", "pending"): "NAME=VALUE",
        ("--limit", "pendign=5"): "did you mean 'pending'",
        ("--limit", "pending=0"): "pending",
        ("--limit", "lease=5"): "lease",
    }
    for wrong, reason in wrongs.items():
        assert main([*asked, *wrong]) == 2
        assert reason in capfd.readouterr().err
    file.chmod(0o644)
    assert main(asked) == 2
    assert "chmod 600" in capfd.readouterr().err
    assert os.listdir(tmp_path) == ["tokens"]
