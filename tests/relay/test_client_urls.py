"""Where clients send their token, and what their errors say of URLs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kafka_ordered_ops import ConfigError, LeaseError, RelayUnavailableError
from kafka_ordered_ops.relay import AsyncRelayClient, RelayClient
from kafka_ordered_ops.relay.http.server import Listening
from tests.support.relay_server import Running, serving


@pytest.fixture
def running() -> Iterator[Running]:
    """A server."""
    with serving(Listening(port=0)) as made:
        yield made


AWAY = "http://relay.example:8642"


@pytest.mark.slow
@pytest.mark.parametrize("client", [RelayClient, AsyncRelayClient])
def test_a_token_is_not_sent_in_plain_text(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To another machine it needs TLS, or the word of somebody who knows; to this one it does not."""
    for servers in (AWAY, ["https://a", AWAY], "http://127.0.0.1.example", "http://192.0.2.1"):
        with pytest.raises(ConfigError, match="without encryption"):
            client(servers, token="koo_x")
        client(servers, token="koo_x", plain_http=True)
        client(servers)
    for servers in ("http://localhost:1", "http://127.0.0.9", "http://[::1]:1", "https://a"):
        client(servers, token="koo_x")
    monkeypatch.setenv("KAFKA_ORDERED_OPS_RELAY_TOKEN", "koo_x")
    with pytest.raises(ConfigError, match="without encryption"):
        client(AWAY)
    with pytest.raises(ConfigError, match="only one of them"):
        client("https://user:secret@a")


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret@relay.example:8642",
        "user:s3cret@relay.example:8642",
        "https://user:s3cret@relay.example:port",
        "https://user:s3/cret@relay.example",
        "https://user:s3@cret@relay.example:99999",
        "ftp://user:s3cret@relay.example",
        "https://user:s3cret@",
        "https://user:s3cret@relay.example/?a=b",
    ],
)
def test_no_error_has_the_password_of_a_url(url: str) -> None:
    """Whatever is wrong with the URL."""
    with pytest.raises(ConfigError) as raised:
        RelayClient(url)
    for secret in ("user", "s3", "cret"):
        assert secret not in str(raised.value)


def test_no_error_of_a_call_has_the_password_of_its_url(running: Running) -> None:
    """Neither of a server that answers with an error, nor of one that is away, nor of one that is no relay."""
    host = running.url.removeprefix("http://")
    with RelayClient(f"http://user:s3cret@{host}", timeout_s=0.2) as client:
        with pytest.raises(LeaseError, match=host) as refused:
            client.acknowledge("forged")
        running.service.is_ready = False
        with pytest.raises(RelayUnavailableError, match=host) as not_ready:
            client.read("g")
    with (
        RelayClient("http://user:s3cret@127.0.0.1:1", timeout_s=0.2) as client,
        pytest.raises(RelayUnavailableError, match=r"127\.0\.0\.1:1/") as away,
    ):
        client.read("g")
    for raised in (refused, not_ready, away):
        assert "s3cret" not in str(raised.value)
