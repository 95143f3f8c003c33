"""A broker that wants tokens, and accepts those without a signature."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.embedded import EmbeddedKafka, Listener
from kafka_ordered_ops.embedded.node import HOST, free_ports
from tests.support.forwarding import forwarded
from tests.support.token_functions import FETCH

BY_TOKEN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@dataclass
class TokenBroker:
    """The broker, and what clients send it."""

    bootstrap: str
    #: Where it wants no tokens.
    plain: str
    sent: list[bytes] = field(default_factory=list)

    def settings(self, config: str = "", **more: str) -> ClientSettings:
        """Of a client whose tokens the function makes, which does what `config` says."""
        values = {"bootstrap.servers": self.bootstrap, **BY_TOKEN, "sasl.token.provider": FETCH}
        values |= {"sasl.oauthbearer.config": config} if config else {}
        return ClientSettings.from_mapping({**values, **more}, extra_allowed=[FETCH])


@contextmanager
def token_broker() -> Iterator[TokenBroker]:
    """The broker runs."""
    port, advertised = free_ports(2)
    properties = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.tokens.oauthbearer.sasl.jaas.config": (
            f'{_LOGIN} required unsecuredLoginStringClaim_sub="admin";'
        ),
    }
    listener = Listener("TOKENS", port, "SASL_PLAINTEXT", advertised)
    with EmbeddedKafka(properties, listeners=[listener]) as kafka:
        broker = TokenBroker(f"{HOST}:{advertised}", kafka.bootstrap)

        def watch(_: int, frame: bytes, is_request: bool) -> None:
            if is_request:
                broker.sent.append(frame)

        with forwarded(advertised, f"{HOST}:{port}", watch=watch):
            yield broker
