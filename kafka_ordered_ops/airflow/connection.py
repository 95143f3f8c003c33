"""Airflow's ``kafka`` connections as client settings.

They are the Apache Kafka provider's connections, taken as they are, whether it is installed or not: all
settings in the extra field, by librdkafka's keys. The type of the connection does not matter.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.airflow.compat import BaseHook, mask
from kafka_ordered_ops.core.errors import ConfigError

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import ClientSettings, OrderedWindows

_log = logging.getLogger(__name__)

#: The provider's own default.
DEFAULT_CONN_ID: Final = "kafka_default"

#: Functions that the provider calls; they belong to clients that it makes, and change nothing of a window.
_CALLBACKS: Final = frozenset(
    {"error_cb", "throttle_cb", "stats_cb", "log_cb", "on_commit", "on_delivery", "logger"}
)

#: A function that gets a token: there is no way to hand it to Spark's executors.
_TOKEN_CALLBACK: Final = "oauth_cb"

#: Lets the client make a token by itself, for test clusters.
_UNSECURE_TOKENS: Final = "enable.sasl.oauthbearer.unsecure.jwt"


def settings_of(
    conn_id: str, *, settings_allowed: Collection[str] = (), quiet: bool = False
) -> ClientSettings:
    """The client settings of a connection; its secrets are masked in the task's log.

    Settings that belong to the task (the group) or that a guarantee rests on (auto-commit) are not taken
    from it, and a line in the log says so.

    Args:
        conn_id: the connection.
        settings_allowed: more of librdkafka's settings to take; see `ClientSettings.from_mapping`.
        quiet: without that line, for whoever asks again and again.

    Raises:
        AirflowNotFoundException: there is no such connection.
        ConfigError: it has no brokers, gets its tokens from a function, or has settings that are refused.
    """
    extra = extra_of(conn_id)
    return settings_from(conn_id, extra, settings_allowed=settings_allowed, quiet=quiet)


def ledger_option(ledger_topic: str | None) -> dict[str, Any]:
    """The service's argument for a ledger's topic; nothing for its own default."""
    return {} if not ledger_topic else {"ledger_topic": ledger_topic}


def open_windows(
    conn_id: str,
    group_id: str,
    *,
    settings_allowed: Collection[str] = (),
    ledger_topic: str | None = None,
    quiet: bool = False,
    **options: Any,
) -> OrderedWindows:
    """The service for a group by a connection; use it as a context manager.

    Raises:
        AirflowNotFoundException: there is no such connection.
        ConfigError: see `settings_of`.
    """
    from kafka_ordered_ops.windows import OrderedWindows

    settings = settings_of(conn_id, settings_allowed=settings_allowed, quiet=quiet)
    return OrderedWindows(settings, group_id, **ledger_option(ledger_topic), **options)


def extra_of(conn_id: str) -> Mapping[str, Any]:
    """A connection's extra field, as it is.

    Raises:
        AirflowNotFoundException: there is no such connection.
        ConfigError: the field is no JSON object.
    """
    extra = BaseHook.get_connection(conn_id).extra_dejson
    if not isinstance(extra, Mapping):
        raise ConfigError(
            f"connection {conn_id}: extra is a JSON {type(extra).__name__}, not an object of client settings"
        )
    return extra


def settings_from(
    conn_id: str,
    extra: Mapping[str, Any],
    *,
    settings_allowed: Collection[str] = (),
    quiet: bool = False,
) -> ClientSettings:
    """`settings_of`, from a connection's extra field."""
    from kafka_ordered_ops.windows import ClientSettings

    # What is nested in the extra is other programs' business, and no setting of a client.
    nested = {key for key, value in extra.items() if isinstance(value, dict | list)}
    kept = {
        key: value
        for key, value in extra.items()
        # A form saves what is left empty.
        if key not in _CALLBACKS and key not in nested and value not in (None, "")
    }
    _check_tokens(conn_id, kept, settings_allowed)
    try:
        settings = ClientSettings.from_mapping(
            kept, extra_allowed=settings_allowed, option="settings_allowed"
        )
    except ConfigError as error:
        # Of the same kind: hosts and people tell them apart by it. Shown once, and not also as a cause.
        raise type(error)(f"connection {conn_id}: {error}", **error.facts) from None
    for secret in settings.secret_values():
        _mask(secret)
    ignored = sorted({*settings.overridden, *nested, *(_CALLBACKS & extra.keys())})
    if ignored and not quiet:
        _log.info(
            "Connection %s: not taken from it: %s. The task and its guarantees set these themselves, or they "
            "are no settings of a client.",
            conn_id,
            ", ".join(ignored),
        )
    return settings


def _check_tokens(conn_id: str, extra: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raises `ConfigError` where the client would wait for a token that nobody gets."""
    instead = "set sasl.oauthbearer.method=oidc with its client id and secret"
    if _TOKEN_CALLBACK in extra:
        raise ConfigError(
            f"connection {conn_id} gets its tokens from a function ({_TOKEN_CALLBACK}), which cannot travel to "
            f"Spark's executors: {instead} instead"
        )
    mechanism = extra.get("sasl.mechanism") or extra.get("sasl.mechanisms")
    oidc = str(extra.get("sasl.oauthbearer.method", "")).lower() == "oidc"
    if str(mechanism).upper() == "OAUTHBEARER" and not oidc and _UNSECURE_TOKENS not in allowed:
        raise ConfigError(
            f"connection {conn_id} has sasl.mechanism=OAUTHBEARER and nothing that gets a token: {instead}. "
            "Tokens that a provider makes in Python (MSK with IAM, Google's managed Kafka) cannot travel to "
            "Spark's executors"
        )


def _mask(secret: str) -> None:
    mask(secret)
    # A key's text has lines, and an error may quote one of them.
    for line in secret.splitlines()[1:-1]:
        if line:
            mask(line)
