"""Client settings: accepted keys, forced values, and hidden secrets.

A client configuration can run code (plug-ins, engines, shell commands) and can undo a guarantee (a reset policy that
silently skips records). Keys therefore pass an allow-list, and keys that carry a guarantee always have this package's
value, whatever a shared connection sets.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Final

from kafka_ordered_ops.core.arguments import as_set, check_choice, check_text, shown
from kafka_ordered_ops.core.cluster.cluster_facts import check_brokers, memory_name
from kafka_ordered_ops.core.cluster.names import check_group
from kafka_ordered_ops.core.errors import ConfigError, SettingNotAllowedError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.kafka.known_settings import (
    ALLOWED_CONSUMER,
    ALLOWED_KEYS,
    ALLOWED_PRODUCER,
    ALLOWED_REGISTRY,
    AWS_MSK_IAM,
    JAVA_HINTS,
    REGISTRY_PREFIX,
    TOKEN_PROVIDER,
    TOKEN_REGION,
)
from kafka_ordered_ops.kafka.properties import parse_properties

SettingValue = str | int | float | bool


class ReaderKind(StrEnum):
    """What reads records: the setting ``reader``, which is this package's own."""

    #: The native reader, where it is installed and knows all settings; else librdkafka.
    AUTO = "auto"
    NATIVE = "native"
    LIBRDKAFKA = "librdkafka"


_READER: Final = "reader"
_TOKEN_KEYS: Final = frozenset({TOKEN_PROVIDER, TOKEN_REGION})
_REGISTRY_KEYS: Final = frozenset(f"{REGISTRY_PREFIX}{name}" for name in ALLOWED_REGISTRY)

#: A call that a hung broker does not answer fails after this long. The client's own 60 s make a
#: transaction's calls outlive the transaction, because they ignore the time-out of the call.
SOCKET_TIMEOUT_MS: Final = 10_000
#: A full local queue is checked again after this long. The client's own 1,000 ms cut reading to a fifth; 0 spins.
FETCH_QUEUE_BACKOFF_MS: Final = 5
#: How much a consumer fetches ahead: more does not read faster, and the client's own 64 MiB add up.
QUEUED_MAX_MESSAGES_KBYTES: Final = 16_384
#: How many records of each partition a client fetches ahead, even past the last wanted one. Its own 100,000 made small
#: slices of a long log a third more expensive, and full speed needs no more than this.
QUEUED_MIN_MESSAGES: Final = 20_000
#: The size of a broker's answer to one fetch, for all partitions together. The client unpacks all of it at once, whatever
#: the unpacked size, and checks the limit above only before the next fetch. Its own 50 MiB were hundreds of MB unpacked.
FETCH_MAX_BYTES: Final = 1_048_576
#: How long a broker may hold a fetch at the end of the log, which delays the end of a bounded read.
FETCH_WAIT_MAX_MS: Final = 100
#: How long an owner that died inside a transaction blocks other readers of the group's offsets and of its ledger
#: partition.
TRANSACTION_TIMEOUT_MS: Final = 10_000

#: Forced settings for every connection.
FORCED_COMMON: Final[Mapping[str, str]] = {
    # A request for a mistyped topic must not create it.
    "allow.auto.create.topics": "false",
    # Otherwise a man in the middle would get the password and could serve other records.
    "enable.ssl.certificate.verification": "true",
    "ssl.endpoint.identification.algorithm": "https",
}
FORCED_CONSUMER: Final[Mapping[str, str]] = {
    # Only our transactions store progress.
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    # Any other value silently skips or repeats records once retention has passed a position.
    "auto.offset.reset": "error",
    # Off by default: a flipped bit on the broker's disk would be delivered as a valid record.
    "check.crcs": "true",
    # One of the signs by which a reader knows that it has reached its end.
    "enable.partition.eof": "true",
}
FORCED_PRODUCER: Final[Mapping[str, str]] = {"enable.idempotence": "true", "acks": "all"}

#: Set for a call or a client, never by a connection. Listed here so that they are overridden, not refused.
_BROKERS: Final = ("bootstrap.servers", "metadata.broker.list")
_FORCED_PER_CALL: Final = frozenset(
    {
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "isolation.level",
        "transactional.id",
        "transaction.timeout.ms",
        "auto.commit.interval.ms",
        "auto.commit.enable",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "offset.store.method",
        "offset.store.path",
        "offset.store.sync.interval.ms",
        "request.required.acks",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "enable.gapless.guarantee",
        "statistics.interval.ms",
        "debug",
        "retries",
        "message.send.max.retries",
    }
)
_FORCED: Final = (
    _FORCED_PER_CALL | FORCED_COMMON.keys() | FORCED_CONSUMER.keys() | FORCED_PRODUCER.keys()
)
#: Forced keys whose values a deployment may keep by naming them in `extra_allowed`: a test cluster without a certificate
#: authority needs this.
_FORCED_UNLESS_ALLOWED: Final = frozenset(
    {
        "enable.ssl.certificate.verification",
        "ssl.endpoint.identification.algorithm",
        # From shared connections, without use here: nobody gets the statistics, and the client logs too many lines.
        "statistics.interval.ms",
        "debug",
    }
)

#: A function that fetches a token, which cannot be passed to other processes.
_TOKEN_CALLBACK: Final = "oauth_cb"
#: Lets the client create a token itself, for test clusters.
_UNSECURE_TOKENS: Final = "enable.sasl.oauthbearer.unsecure.jwt"
_TOKENS_INSTEAD: Final = (
    "set sasl.mechanism=OAUTHBEARER, and sasl.oauthbearer.method=oidc with its client id and secret, or "
    f"{TOKEN_PROVIDER}={AWS_MSK_IAM} or =module:function"
)
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
#: It becomes part of a host's name.
_REGION: Final = re.compile(r"[a-z]+(-[a-z0-9]+)+")

_DEFAULTS_COMMON: Final[Mapping[str, str]] = {
    "socket.timeout.ms": str(SOCKET_TIMEOUT_MS),
    # As in Kafka's Java clients. With librdkafka's 10 s, an address's last error would be older than a call may wait.
    "reconnect.backoff.max.ms": "1000",
}
_DEFAULTS_CONSUMER: Final[Mapping[str, str]] = {
    "fetch.queue.backoff.ms": str(FETCH_QUEUE_BACKOFF_MS),
    "queued.max.messages.kbytes": str(QUEUED_MAX_MESSAGES_KBYTES),
    "queued.min.messages": str(QUEUED_MIN_MESSAGES),
    "fetch.max.bytes": str(FETCH_MAX_BYTES),
    "fetch.wait.max.ms": str(FETCH_WAIT_MAX_MS),
}

#: Keys whose values are never shown. User names stay visible: they show which credentials were refused.
_SECRET_KEY: Final = re.compile(
    r"password|passphrase|secret|jaas|token|key\.pem|oauthbearer\.(config|extensions)|user\.info"
)
_SECRET_MASK: Final = "***"
#: The user and the password in a URL. Of a longer scheme the end suffices; without a bound, a long word takes its square.
_USER_INFO: Final = re.compile(r"(\w{1,20}://)([^/@,\s]+)@")
_USER_NAMES: Final = ("sasl.username", "sasl.oauthbearer.client.id")


def is_secret(key: str) -> bool:
    """Return whether the value of this key must not be shown."""
    return bool(_SECRET_KEY.search(key)) and not key.endswith(
        (".url", ".name", ".provider", ".region")
    )


@dataclass(frozen=True, slots=True, repr=False)
class ClientSettings:
    """Checked client settings, without those of a single client, such as its group or transactional id.

    Immutable. Pickling includes the secrets, which is how they reach Spark's executors. The text
    forms show no secrets.
    """

    _values: Mapping[str, str]
    _extra_allowed: frozenset[str] = frozenset()
    #: Passed keys that have a forced value instead, sorted.
    overridden: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: GivenSettings) -> ClientSettings:
        """Convert brokers as ``host:port,...``, a mapping of librdkafka keys, or settings.

        Raises `SettingNotAllowedError` and `ConfigError` as `from_mapping` does.
        """
        if isinstance(settings, ClientSettings):
            return settings
        return cls.from_mapping(
            {"bootstrap.servers": settings} if isinstance(settings, str) else settings
        )

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[str, SettingValue],
        *,
        extra_allowed: Collection[str] = (),
        option: str = "extra_allowed",
    ) -> ClientSettings:
        """Check every key and value.

        `extra_allowed` names keys that the deployment takes responsibility for: any librdkafka key, and
        the two certificate checks, which otherwise cannot be turned off; and functions of `sasl.token.provider`, as
        ``module:function``. `option` is the caller's own name for it.

        Raises `SettingNotAllowedError` for a key outside the allow-list, and `ConfigError` for a value of another type, or
        if ``bootstrap.servers`` is missing.
        """
        if not isinstance(mapping, Mapping):
            raise ConfigError(
                f"client settings are a {type(mapping).__name__}: give the brokers as 'host:port', a mapping of librdkafka "
                "keys to values, or ClientSettings"
            )
        allowed = as_set(extra_allowed, what=option)
        unforced = _FORCED_UNLESS_ALLOWED & allowed
        _check_tokens(mapping, allowed, option)
        values, overridden = dict[str, str](), list[str]()
        for key, value in mapping.items():
            key = check_text(key, what="the name of a client setting", length_max=512)
            if key in _FORCED and key not in unforced:
                overridden.append(key)
                continue
            if key == _READER:
                values[key] = check_choice(value, ReaderKind, what=_READER)
                continue
            if key in _REGISTRY_KEYS | _TOKEN_KEYS:
                values[key] = _as_text(key, value)
                continue
            if key not in ALLOWED_KEYS and key not in allowed and key not in unforced:
                raise SettingNotAllowedError(_refusal(key, option), key=key)
            values[key] = _as_text(key, value)
        if not (named := [name for name in _BROKERS if values.get(name)]):
            raise ConfigError(
                "client settings without bootstrap.servers: name a broker as host:port"
            )
        for key in named:
            check_brokers(values[key], what=key)
        for key in values:
            # The client drops spaces at the beginning, and brokers then refuse the credentials.
            if (is_secret(key) or key in _USER_NAMES) and values[key] != values[key].lstrip():
                raise ConfigError(
                    f"client setting {key!r} begins with a blank, which the Kafka client drops"
                )
        return cls(values, allowed, tuple(sorted(overridden)))

    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, extra_allowed: Collection[str] = ()
    ) -> ClientSettings:
        """Read a ``.properties`` file (Java's syntax, librdkafka's keys, UTF-8)."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            # For a file that is not text, the error would show some bytes, which may be a secret.
            reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
            raise ConfigError(f"client settings cannot be read from {path}: {reason}") from None
        return cls.from_mapping(parse_properties(text), extra_allowed=extra_allowed)

    def merged(self, other: Mapping[str, SettingValue]) -> ClientSettings:
        """Return these settings overridden by others, checked in the same way."""
        both = {**self._values, **other}
        merged = ClientSettings.from_mapping(both, extra_allowed=self._extra_allowed)
        overridden = tuple(sorted({*self.overridden, *merged.overridden}))
        return ClientSettings(merged._values, merged._extra_allowed, overridden)

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers, as given."""
        return next(self._values[key] for key in _BROKERS if self._values.get(key))

    @property
    def memory_name(self) -> str | None:
        """The name of the `InMemoryKafka` of these settings; None for brokers."""
        return memory_name(self.bootstrap_servers)

    @property
    def reader(self) -> ReaderKind:
        """What reads records."""
        return ReaderKind(self._values.get(_READER, ReaderKind.AUTO))

    @property
    def registry(self) -> dict[str, str]:
        """The settings of the schema registry's client, without their prefix; empty without a registry."""
        return {
            key.removeprefix(REGISTRY_PREFIX): value
            for key, value in self._values.items()
            if key in _REGISTRY_KEYS
        }

    def secret_values(self) -> tuple[str, ...]:
        """Return the values that no log, plan or message may contain, for masking them in other programs' texts."""
        secrets = [value for key, value in self._values.items() if is_secret(key) and value]
        for url in self.registry.get("url", "").split(","):
            secrets += [match[2] for match in _USER_INFO.finditer(url)]
        return tuple(secrets)

    def consumer(
        self,
        *,
        group_id: str,
        isolation: Isolation,
        defaults: Mapping[str, str] | None = None,
        **extra: SettingValue,
    ) -> dict[str, str]:
        """Return the configuration of a consumer; in `extra`, ``_`` stands for the dot of a key.

        `defaults` are for this one reader: the caller's own values override them, and `extra` overrides both.

        Raises `ConfigError` for an invalid group name: the client ends the process for an empty one.
        """
        return {
            **_DEFAULTS_COMMON,
            **_DEFAULTS_CONSUMER,
            **(defaults or {}),
            **self._of(ALLOWED_CONSUMER),
            **_extra(extra),
            **self._forced_common(),
            **FORCED_CONSUMER,
            "group.id": check_group(group_id),
            "isolation.level": str(isolation),
        }

    def producer(
        self,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        **extra: SettingValue,
    ) -> dict[str, str]:
        """Return the configuration of an idempotent producer, which is transactional if there is an id."""
        config = {
            **_DEFAULTS_COMMON,
            **self._of(ALLOWED_PRODUCER),
            **_extra(extra),
            **self._forced_common(),
            **FORCED_PRODUCER,
        }
        if transactional_id is not None:
            # The client refuses records that may outlive their transaction.
            for key in ("delivery.timeout.ms", "message.timeout.ms"):
                if key in config:
                    config[key] = str(min(int(config[key]), transaction_timeout_ms))
            config["transactional.id"] = transactional_id
            config["transaction.timeout.ms"] = str(transaction_timeout_ms)
        return config

    def admin(self) -> dict[str, str]:
        """Return the configuration of an admin client."""
        return {**_DEFAULTS_COMMON, **self._of(frozenset()), **self._forced_common()}

    def _of(self, kind: frozenset[str]) -> dict[str, str]:
        """Return the values for one kind of client: the client warns about keys of another kind."""
        others = (ALLOWED_CONSUMER | ALLOWED_PRODUCER) - kind | {_READER} | _REGISTRY_KEYS
        values = {key: value for key, value in self._values.items() if key not in others}
        if "reconnect.backoff.ms" in values:
            # The client's own default, because ours could be below the given value.
            values.setdefault("reconnect.backoff.max.ms", "10000")
        return values

    def _forced_common(self) -> dict[str, str]:
        if (name := self.memory_name) is not None:
            # Otherwise the client would try to resolve a host of that name until its timeout.
            raise ConfigError(
                f"no Kafka client can be made for {self.bootstrap_servers}: the InMemoryKafka {name!r} is reached by "
                "the functions of kafka.ports, in its own process only"
            )
        unforced = _FORCED_UNLESS_ALLOWED & self._values.keys()
        return {key: value for key, value in FORCED_COMMON.items() if key not in unforced}

    def __repr__(self) -> str:
        masked = {
            key: _SECRET_MASK if is_secret(key) else _USER_INFO.sub(rf"\1{_SECRET_MASK}@", value)
            for key, value in sorted(self._values.items())
        }
        return f"ClientSettings({masked})"


#: The accepted forms of settings; see `ClientSettings.of`.
GivenSettings = ClientSettings | Mapping[str, SettingValue] | str


def _as_text(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # For example 1e4 in JSON or YAML: the client accepts digits only
    if isinstance(value, str | int | float):
        text = str(value)
        if re.search("[\0\ud800-\udfff]", text):
            raise ConfigError(f"client setting {key!r} contains a NUL or half a surrogate pair")
        return text
    raise ConfigError(
        f"client setting {key!r} is a {type(value).__name__}; it must be text, a number or a bool"
    )


def _extra(extra: Mapping[str, SettingValue]) -> dict[str, str]:
    return {key.replace("_", "."): _as_text(key, value) for key, value in extra.items()}


def _check_tokens(mapping: Mapping[str, object], allowed: Collection[str], option: str) -> None:
    """Raise `ConfigError` if the client would wait for a token that nobody fetches."""
    if _TOKEN_CALLBACK in mapping:
        raise ConfigError(
            f"client settings get tokens from a function ({_TOKEN_CALLBACK}), which cannot travel to other processes, such as "
            f"Spark's executors: {_TOKENS_INSTEAD}"
        )
    names = [mapping.get("sasl.mechanism"), mapping.get("sasl.mechanisms")]
    mechanism = next((str(name).strip().upper() for name in names if name), "")
    if mechanism == "AWS_MSK_IAM":
        raise ConfigError(
            f"sasl.mechanism=AWS_MSK_IAM is a login module of Java, which the Kafka client of Python does not have: "
            f"{_TOKENS_INSTEAD}, or use SCRAM-SHA-512"
        )
    is_oidc = str(mapping.get("sasl.oauthbearer.method", "")).strip().lower() == "oidc"
    if (provider := mapping.get(TOKEN_PROVIDER)) is not None:
        _check_provider(str(provider), str(mapping.get(TOKEN_REGION, "")), allowed, option)
        if mechanism != "OAUTHBEARER" or is_oidc:
            raise ConfigError(
                f"{TOKEN_PROVIDER} goes with sasl.mechanism=OAUTHBEARER, and without sasl.oauthbearer.method=oidc"
            )
    elif TOKEN_REGION in mapping:
        raise ConfigError(f"{TOKEN_REGION} goes with {TOKEN_PROVIDER}={AWS_MSK_IAM}")
    elif mechanism == "OAUTHBEARER" and not is_oidc and _UNSECURE_TOKENS not in allowed:
        raise ConfigError(
            f"sasl.mechanism=OAUTHBEARER and nothing that gets a token: {_TOKENS_INSTEAD}. For a test cluster, name "
            f"{_UNSECURE_TOKENS} in {option}"
        )


def _check_provider(name: str, region: str, allowed: Collection[str], option: str) -> None:
    """Raise `ConfigError` for a provider that cannot be called, or that nobody has allowed: it is code."""
    if name == AWS_MSK_IAM:
        if not _REGION.fullmatch(region):
            raise ConfigError(
                f"{TOKEN_PROVIDER}={AWS_MSK_IAM} needs {TOKEN_REGION}, such as eu-central-1"
            )
        return
    if not _FUNCTION.fullmatch(name):
        raise ConfigError(
            f"{TOKEN_PROVIDER}={shown(name)} is neither {AWS_MSK_IAM} nor module:function"
        )
    if region:
        raise ConfigError(f"{TOKEN_REGION} goes with {TOKEN_PROVIDER}={AWS_MSK_IAM}")
    if name not in allowed:
        raise SettingNotAllowedError(
            f"{TOKEN_PROVIDER}={name} would run this function wherever a client connects. If this deployment needs it, name "
            f"it in {option}",
            key=TOKEN_PROVIDER,
        )


def _refusal(key: str, option: str) -> str:
    known = ALLOWED_KEYS | _FORCED | _REGISTRY_KEYS | _TOKEN_KEYS
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    hint = JAVA_HINTS.get(key) or (f"did you mean {close[0]}" if close else "")
    return (
        f"client setting {shown(key)} is not on the allow-list"
        f"{f' ({hint})' if hint else ''}: it could run code or undo a guarantee. "
        f"If this deployment needs it, name it in {option}"
    )
