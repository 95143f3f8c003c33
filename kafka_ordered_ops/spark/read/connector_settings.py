"""Translate client settings to Java's Kafka client, which the engine connector reads with.

The two clients share many names, but few meanings. A setting with the same meaning is passed on. A setting that only
tunes librdkafka is left out. All others are refused, because a user may rely on a setting that is silently dropped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.kafka.known_settings import ONLY_OF_LIBRDKAFKA
from kafka_ordered_ops.kafka.settings import SOCKET_TIMEOUT_MS, ClientSettings, is_secret

#: The connector requests the log's end offsets after every fetch, and these requests queue behind a delayed fetch.
#: Java's default of 500 ms costs half a second for every partition whose range ends with the log.
FETCH_MAX_WAIT_MS: Final = 20

#: Names and meanings are the same in both clients.
_SAME: Final = frozenset(
    {
        "allow.auto.create.topics",
        "bootstrap.servers",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "isolation.level",
        "max.partition.fetch.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.service.name",
        "socket.connection.setup.timeout.ms",
    }
)
_RENAMED: Final[Mapping[str, str]] = {
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "metadata.broker.list": "bootstrap.servers",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
}

#: Settings that are combined into one Java setting, below.
_COMBINED: Final = frozenset(
    {
        "enable.ssl.certificate.verification",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "socket.timeout.ms",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.location",
        "ssl.keystore.password",
    }
)

#: Left out, besides the settings that only librdkafka acts upon: they set how it connects and buffers, or limits that
#: Java's client does not have.
LEFT_OUT: Final = ONLY_OF_LIBRDKAFKA | {
    "api.version.fallback.ms",
    "api.version.request",
    "api.version.request.timeout.ms",
    "broker.address.family",
    "broker.address.ttl",
    "broker.version.fallback",
    "fetch.wait.max.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "queued.max.messages.kbytes",
    "receive.message.max.bytes",
    "socket.keepalive.enable",
    "socket.max.fails",
    "socket.nagle.disable",
}

#: Why other settings have no counterpart and what to do, by prefix.
_REFUSALS: Final[Mapping[str, str]] = {
    "sasl.kerberos.": (
        "configure Kerberos for the JVMs of Spark, with java.security.auth.login.config, and leave it out of these "
        "settings"
    ),
    "sasl.oauthbearer.": "the connector gets tokens by classes in the JVM",
    "sasl.token.": "the connector gets tokens by classes in the JVM",
    "ssl.cipher.suites": "OpenSSL and Java use different names for ciphers",
    "ssl.": "Java's client has no such setting",
}

_PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LOGINS: Final[Mapping[str, str]] = {
    "PLAIN": _PLAIN_LOGIN,
    "SCRAM-SHA-256": _SCRAM_LOGIN,
    "SCRAM-SHA-512": _SCRAM_LOGIN,
}

#: Java reads private keys in PKCS#8 format only; OpenSSL's older formats have other first lines.
_PKCS8: Final = re.compile(r"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----")

#: Escapes in a quoted word of a JAAS file, where a line break would end the word.
_JAAS_ESCAPES: Final[Mapping[int, str]] = str.maketrans(
    {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}
)


@dataclass(frozen=True, slots=True, repr=False)
class JavaSettings:
    """Settings of Java's client. `values` may hold secrets, which `repr` and `str` do not show."""

    values: Mapping[str, str]
    #: The settings from which secrets in `values` are derived.
    secrets_from: tuple[str, ...]

    def __repr__(self) -> str:
        return f"JavaSettings({len(self.values)} settings, secrets from {list(self.secrets_from)})"


def java_settings(
    settings: ClientSettings, *, group_id: str, isolation: Isolation, stall_timeout_s: float
) -> JavaSettings:
    """Return the settings of Java's consumer.

    Files of certificates and keys are read here, except for a trust store and a PKCS#12 key store: their paths are
    passed on, and every JVM opens them itself.

    Raises:
        ConfigError: a setting that Java's client does not have; or a file that cannot be read, or that Java does not
            support.
    """
    ours = settings.consumer(group_id=group_id, isolation=isolation)
    for key in sorted(ours):
        if key not in _SAME | _RENAMED.keys() | _COMBINED | LEFT_OUT:
            raise _refused(key)
    wait_ms = round(stall_timeout_s * 1000)
    request_ms = min(int(ours.get("socket.timeout.ms", SOCKET_TIMEOUT_MS)), wait_ms)
    values = {key: value for key, value in ours.items() if key in _SAME}
    values |= {_RENAMED[key]: value for key, value in ours.items() if key in _RENAMED}
    values |= {
        "default.api.timeout.ms": str(wait_ms),
        "fetch.max.wait.ms": str(FETCH_MAX_WAIT_MS),
        "request.timeout.ms": str(request_ms),
    }
    if protocol := ours.get("security.protocol"):
        values["security.protocol"] = protocol.upper()
    for part in (_login, _trust, _identity):
        values |= part(ours)
    secrets = [key for key in ours if is_secret(key) or key == "ssl.key.location"]
    return JavaSettings(values, tuple(sorted(secrets)))


def _login(ours: Mapping[str, str]) -> dict[str, str]:
    mechanism = ours.get("sasl.mechanism") or ours.get("sasl.mechanisms")
    if mechanism is None:
        return {}
    if mechanism == "GSSAPI":
        return {"sasl.mechanism": mechanism}
    module = _LOGINS.get(mechanism)
    if module is None:
        raise ConfigError(
            f"engine 'connector' cannot log in with sasl.mechanism {mechanism}: it supports {', '.join(_LOGINS)}, and GSSAPI "
            "as configured in the JVMs. Use engine 'python'"
        )
    named = [key for key in ("sasl.username", "sasl.password") if key in ours]
    if len(named) < 2:
        raise ConfigError(f"sasl.mechanism {mechanism} needs sasl.username and sasl.password")
    user, password = (ours[key].translate(_JAAS_ESCAPES) for key in named)
    jaas = f'{module} required username="{user}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def _trust(ours: Mapping[str, str]) -> dict[str, str]:
    """Return the trust store's settings."""
    if ours.get("enable.ssl.certificate.verification") == "false":
        raise _refused("enable.ssl.certificate.verification")
    values = {}
    algorithm = ours.get("ssl.endpoint.identification.algorithm", "https")
    values["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if pem := ours.get("ssl.ca.pem"):
        values |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}
    elif path := ours.get("ssl.ca.location"):
        if path == "probe" or os.path.isdir(path):
            raise ConfigError(
                f"engine 'connector' cannot use ssl.ca.location={path}: Java reads one PEM file of certificates. "
                "Name the file, or leave it out to use the JVMs' own trust store"
            )
        values |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": path}
    return values


def _identity(ours: Mapping[str, str]) -> dict[str, str]:
    """Return the client's own certificate."""
    values: dict[str, str] = {}
    if path := ours.get("ssl.keystore.location"):
        values |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": path}
        if password := ours.get("ssl.keystore.password"):
            values |= {"ssl.keystore.password": password, "ssl.key.password": password}
        return values
    key, chain = _pem(ours, "ssl.key"), _pem(ours, "ssl.certificate")
    if key is None and chain is None:
        return {}
    if key is None or chain is None:
        present, missing = ("ssl.key", "ssl.certificate")[:: 1 if chain is None else -1]
        raise ConfigError(
            f"{present}.location or {present}.pem is set, but neither {missing}.location nor {missing}.pem: the client's "
            "certificate needs both"
        )
    if not _PKCS8.search(key):
        raise ConfigError(
            "engine 'connector' cannot use the key of ssl.key.location or ssl.key.pem: Java only reads PKCS#8, "
            "which begins with BEGIN PRIVATE KEY or BEGIN ENCRYPTED PRIVATE KEY. Convert it (openssl "
            "pkcs8 -topk8)"
        )
    values |= {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": chain,
    }
    if password := ours.get("ssl.key.password"):
        values["ssl.key.password"] = password
    return values


def _pem(ours: Mapping[str, str], stem: str) -> str | None:
    if text := ours.get(f"{stem}.pem"):
        return text
    path = ours.get(f"{stem}.location")
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        # For a file that is not text, the error would show some bytes, which may be a secret.
        reason = "not PEM" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError(f"{stem}.location={path} cannot be read: {reason}") from None


def _refused(key: str) -> ConfigError:
    why = next((why for start, why in _REFUSALS.items() if key.startswith(start)), None)
    return ConfigError(
        f"client setting {key!r} cannot be passed to Java's Kafka client, which engine 'connector' reads with"
        f"{f': {why}' if why else ''}. Leave it out for this engine, or use engine 'python'"
    )
