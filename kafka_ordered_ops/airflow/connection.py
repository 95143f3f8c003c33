"""Airflow's ``kafka`` connections as client settings.

They are the Apache Kafka provider's connections, used unchanged, whether the provider is installed or not. The extra
field has all settings, by librdkafka's keys. The type of the connection does not matter.
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

#: Functions that the provider calls. They belong to the provider's clients and do not affect a window.
_CALLBACKS: Final = frozenset(
    {"error_cb", "throttle_cb", "stats_cb", "log_cb", "on_commit", "on_delivery", "logger"}
)

#: A function that fetches a token: it cannot be passed to Spark's executors.
_TOKEN_CALLBACK: Final = "oauth_cb"

#: Lets the client make a token by itself, for test clusters.
_UNSECURE_TOKENS: Final = "enable.sasl.oauthbearer.unsecure.jwt"


def settings_of(
    conn_id: str, *, settings_allowed: Collection[str] = (), quiet: bool = False
) -> ClientSettings:
    """Return the client settings of a connection; its secrets are masked in the task's log.

    Settings that belong to the task (the group) or carry a guarantee (auto-commit) are overridden, and a line in the
    log reports it.

    Args:
        conn_id: the connection.
        settings_allowed: more of librdkafka's settings to take; see `ClientSettings.from_mapping`.
        quiet: leave out that line, for repeated calls.

    Raises:
        AirflowNotFoundException: there is no such connection.
        ConfigError: it has no brokers, gets its tokens from a function, or has settings that are refused.
    """
    extra = extra_of(conn_id)
    return settings_from(conn_id, extra, settings_allowed=settings_allowed, quiet=quiet)


def ledger_option(ledger_topic: str | None) -> dict[str, Any]:
    """Return the service's argument for a ledger's topic; nothing for its own default."""
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
    """Return the service for a group by a connection; use it as a context manager.

    Raises:
        AirflowNotFoundException: there is no such connection.
        ConfigError: see `settings_of`.
    """
    from kafka_ordered_ops.windows import OrderedWindows

    settings = settings_of(conn_id, settings_allowed=settings_allowed, quiet=quiet)
    return OrderedWindows(settings, group_id, **ledger_option(ledger_topic), **options)


def extra_of(conn_id: str) -> Mapping[str, Any]:
    """Return a connection's extra field, unchanged.

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

    # Nested values in the extra belong to other programs and are no client settings.
    nested = {key for key, value in extra.items() if isinstance(value, dict | list)}
    kept = {
        key: value
        for key, value in extra.items()
        # A form also saves empty fields.
        if key not in _CALLBACKS and key not in nested and value not in (None, "")
    }
    _check_tokens(conn_id, kept, settings_allowed)
    try:
        settings = ClientSettings.from_mapping(
            kept, extra_allowed=settings_allowed, option="settings_allowed"
        )
    except ConfigError as error:
        # The same class, by which hosts and people distinguish errors. Raised without a cause, to show it once.
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
    """Raise `ConfigError` if the client would wait for a token that nothing fetches."""
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
