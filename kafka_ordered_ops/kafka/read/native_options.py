"""Which reader reads: the native one, if it is installed and knows every setting of the client."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.token_providers import NoTokensError, TokenProvider
from kafka_ordered_ops.kafka.known_settings import ONLY_OF_LIBRDKAFKA
from kafka_ordered_ops.kafka.native_module import native_module
from kafka_ordered_ops.kafka.read.taking import fetch_settings
from kafka_ordered_ops.kafka.read.tokens import TOKEN_SETTINGS, Provider, Tokens
from kafka_ordered_ops.kafka.read.unreadable import UNPACKED_BYTES_DEFAULT, UNPACKED_SETTING
from kafka_ordered_ops.kafka.settings import ClientSettings, ReaderKind

#: What one fetch brings of all partitions, and of one. It is decoded while the next one is under way.
_FETCH_BYTES: Final = 8 * 1024 * 1024
_PARTITION_BYTES: Final = 1024 * 1024
#: The client's own name, by which brokers know quotas.
_CLIENT_ID: Final = "rdkafka"
_PORT: Final = 9092
_MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"})

#: Settings that are passed on.
_HONOURED: Final = TOKEN_SETTINGS | frozenset(
    {
        "bootstrap.servers",
        "metadata.broker.list",
        "client.id",
        "client.rack",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.wait.max.ms",
        "isolation.level",
        "max.partition.fetch.bytes",
        "queued.max.messages.kbytes",
        UNPACKED_SETTING,
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
        "ssl.key.location",
        "ssl.key.pem",
    }
)
#: Settings that change nothing of what is read, besides those that only librdkafka acts upon.
_WITHOUT_EFFECT: Final = ONLY_OF_LIBRDKAFKA | {
    "allow.auto.create.topics",
    "check.crcs",
    "connections.max.idle.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
}
#: Settings with this value alone.
_ONLY: Final[Mapping[str, str]] = {
    "enable.ssl.certificate.verification": "true",
    "ssl.endpoint.identification.algorithm": "https",
}

_log = logging.getLogger(__name__)


class _NotHonouredError(Exception):
    """The native reader cannot read with these settings."""


@dataclass(frozen=True, slots=True, repr=False)
class NativeOptions:
    """What the native reader needs to know, besides what is read. Its text form would show secrets."""

    _module: ModuleType
    _brokers: list[tuple[str, int]]
    _values: Mapping[str, Any]
    #: Of a batch in zstd, unpacked.
    zstd_bytes: int
    #: Gives tokens; None: the client authenticates otherwise, or not at all.
    _provider: Provider | TokenProvider | None

    def tokens(self) -> Tokens | None:
        """Return the tokens of a reader, which has to renew them; None if it needs none."""
        return None if self._provider is None else Tokens(self._provider)

    def open(self, columns: Collection[str], rows_max: int) -> Any:
        """Return a native reader without partitions."""
        options = self._module.Options(
            self._brokers,
            list(columns),
            rows_max=rows_max,
            zstd_bytes=self.zstd_bytes,
            **self._values,
        )
        return self._module.Reader(options)


def native_options(
    settings: ClientSettings,
    group_id: str,
    isolation: Isolation,
    wanted: Mapping[TopicPartition, OffsetSet],
) -> NativeOptions | None:
    """Return the native reader's options; None: librdkafka reads. Where both could, the log says why, once for each reason.

    Raises `ConfigError` if the settings ask for the native reader and it cannot read.
    """
    is_asked_for = settings.reader is ReaderKind.NATIVE
    if settings.reader is ReaderKind.LIBRDKAFKA or (native_module() is None and not is_asked_for):
        return None
    defaults = {"fetch.max.bytes": str(_FETCH_BYTES), **fetch_settings(wanted)}
    config = settings.consumer(group_id=group_id, isolation=isolation, defaults=defaults)
    try:
        return _options(config, isolation)
    except _NotHonouredError as error:
        if is_asked_for:
            raise ConfigError(
                f"reader=native: {error}. Leave it out, so that librdkafka reads"
            ) from None
        note_librdkafka_reads(str(error))
        return None


def _options(config: Mapping[str, str], isolation: Isolation) -> NativeOptions:
    module = native_module()
    if module is None:
        raise _NotHonouredError("kafka-ordered-ops-native is not installed")
    for key, value in config.items():
        is_known = key in _HONOURED or key in _WITHOUT_EFFECT or _ONLY.get(key) == value
        if not is_known:
            raise _NotHonouredError(f"it does not know the client setting {key}")
    values: dict[str, Any] = {
        "client_id": config.get("client.id", _CLIENT_ID),
        "committed": isolation is Isolation.READ_COMMITTED,
        "fetch_bytes": _number(config, "fetch.max.bytes"),
        "fetch_min_bytes": _number(config, "fetch.min.bytes", 1),
        "partition_bytes": _number(
            config,
            "max.partition.fetch.bytes",
            _number(config, "fetch.message.max.bytes", _PARTITION_BYTES),
        ),
        "wait_ms": _number(config, "fetch.wait.max.ms"),
        "queued_bytes": _number(config, "queued.max.messages.kbytes") * 1_024,
        "timeout_s": _number(config, "socket.timeout.ms") / 1_000,
        "rack": config.get("client.rack", ""),
        "tls": _tls(config),
    }
    provider: Provider | TokenProvider | None = None
    match mechanism := _mechanism(config):
        case None:
            pass
        case "OAUTHBEARER":
            values["by_token"] = True
            try:
                provider = TokenProvider.of(config) or Provider.of(config)
            except NoTokensError as error:
                raise _NotHonouredError(str(error)) from None
        case _:
            user, password = config.get("sasl.username", ""), config.get("sasl.password", "")
            values["credentials"] = (mechanism, user, password)
    zstd_bytes = _number(config, UNPACKED_SETTING, UNPACKED_BYTES_DEFAULT)
    return NativeOptions(module, _brokers(config), values, zstd_bytes, provider)


@functools.cache
def note_librdkafka_reads(why: str) -> None:
    """Log why librdkafka reads where the native reader is installed, once for each reason."""
    _log.info("records are read through librdkafka, not by the native reader: %s", why)


def _number(config: Mapping[str, str], key: str, default: int | None = None) -> int:
    """Return a number; without a `default`, each consumer's configuration has the setting."""
    try:
        return int(config[key] if default is None else config.get(key, default))
    except ValueError:
        # librdkafka says what it may be.
        raise _NotHonouredError(f"{key} is no number") from None


def _brokers(config: Mapping[str, str]) -> list[tuple[str, int]]:
    named = config.get("bootstrap.servers") or config.get("metadata.broker.list") or ""
    brokers = []
    for broker in named.split(","):
        address = broker.strip().rpartition("://")[2]
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host, port = address, str(_PORT)
        if not host or not port.isdigit():
            raise _NotHonouredError("it does not know this form of bootstrap.servers")
        brokers.append((host.strip("[]"), int(port)))
    return brokers


def _protocol(config: Mapping[str, str]) -> str:
    return config.get("security.protocol", "plaintext").strip().upper()


def _tls(config: Mapping[str, str]) -> tuple[bytes, bytes | None, bytes | None] | None:
    if not _protocol(config).endswith("SSL"):
        return None
    authorities = _pem(config, "ssl.ca")
    if authorities is None:
        raise _NotHonouredError("it needs ssl.ca.location or ssl.ca.pem")
    chain, key = _pem(config, "ssl.certificate"), _pem(config, "ssl.key")
    if (chain is None) != (key is None):
        raise _NotHonouredError("it needs a certificate with its key")
    if key is not None and b"ENCRYPTED" in key:
        raise _NotHonouredError("it does not know encrypted keys")
    return authorities, chain, key


def _pem(config: Mapping[str, str], name: str) -> bytes | None:
    if text := config.get(f"{name}.pem"):
        return text.encode()
    if not (path := config.get(f"{name}.location")):
        return None
    try:
        return Path(path).read_bytes()
    except OSError:
        raise _NotHonouredError(f"{name}.location is not a file that it can read") from None


def _mechanism(config: Mapping[str, str]) -> str | None:
    """Return how the client authenticates by SASL; None: not by SASL."""
    if not _protocol(config).startswith("SASL"):
        return None
    mechanism = (config.get("sasl.mechanism") or config.get("sasl.mechanisms") or "GSSAPI").upper()
    if mechanism not in _MECHANISMS:
        raise _NotHonouredError(f"it does not know sasl.mechanism={mechanism}")
    return mechanism
