"""Airflow's ``kafka`` connections as client settings.

They are the Apache Kafka provider's connections, used unchanged, whether the provider is installed or not. The extra
field has all settings, by librdkafka's keys. The type of the connection does not matter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.airflow.compat import BaseHook, conf, mask
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.delivery.full_paths import check_full_files

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import ClientSettings, OrderedWindows

_log = logging.getLogger(__name__)

#: The section of Airflow's configuration.
SECTION: Final = "kafka_ordered_ops"

#: The provider's own default.
DEFAULT_CONN_ID: Final = "kafka_default"

#: Keys of the extra field that name brokers.
_BROKERS: Final = ("bootstrap.servers", "metadata.broker.list")

#: Functions that the provider calls. They belong to the provider's clients and do not affect a window.
_CALLBACKS: Final = frozenset(
    {"error_cb", "throttle_cb", "stats_cb", "log_cb", "on_commit", "on_delivery", "logger"}
)


def settings_of(conn_id: str, *, quiet: bool = False) -> ClientSettings:
    """Return the client settings of a connection; its secrets are masked in the task's log.

    Settings that belong to the task (the group) or carry a guarantee (auto-commit) are overridden, and a log line
    reports them.

    Args:
        conn_id: the connection.
        quiet: omit the log line, for repeated calls.

    Raises:
        AirflowNotFoundException: there is no such connection.
        ConfigError: it has no brokers, gets its tokens from a function, or has settings that are refused.
    """
    extra = extra_of(conn_id)
    connection = BaseHook.get_connection(conn_id)
    if connection.host and not any(extra.get(key) for key in _BROKERS):
        raise ConfigError(
            f"connection {conn_id} has its host and port in the form, which no Kafka client reads: set bootstrap.servers, as "
            "host:port, in the field extra"
        )
    return settings_from(conn_id, extra, quiet=quiet)


def ledger_option(ledger_topic: str | None) -> dict[str, Any]:
    """Return the service's argument for a ledger's topic; an empty dict for the default."""
    return {} if not ledger_topic else {"ledger_topic": ledger_topic}


def open_windows(
    conn_id: str,
    group_id: str,
    *,
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

    settings = settings_of(conn_id, quiet=quiet)
    return OrderedWindows(settings, group_id, **ledger_option(ledger_topic), **options)


def extra_of(conn_id: str) -> Mapping[str, Any]:
    """Return a connection's extra field, unchanged.

    Raises:
        AirflowNotFoundException: there is no such connection.
        ConfigError: the field is not a JSON object.
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
    quiet: bool = False,
) -> ClientSettings:
    """Return the settings of a connection's extra field, as `settings_of` does.

    ``[kafka_ordered_ops] settings_allowed`` of Airflow's configuration allows more settings.
    """
    from kafka_ordered_ops.windows import ClientSettings

    # Nested values in the extra belong to other programs and are not client settings.
    nested = {key for key, value in extra.items() if isinstance(value, dict | list)}
    values = {
        key: value
        for key, value in extra.items()
        # A form also saves empty fields.
        if key not in _CALLBACKS and key not in nested and value not in (None, "")
    }
    try:
        check_full_files(values)
        settings = ClientSettings.from_mapping(
            values, extra_allowed=_allowed(), option=f"[{SECTION}] settings_allowed in airflow.cfg"
        )
    except ConfigError as error:
        # Keep the class, which distinguishes errors. Raise without a cause, to show the message once.
        raise type(error)(f"connection {conn_id}: {error}", **error.facts) from None
    for secret in settings.secret_values():
        _mask(secret)
    ignored = sorted({*settings.overridden, *nested, *(_CALLBACKS & extra.keys())})
    if ignored and not quiet:
        _log.info(
            "Connection %s: these settings are ignored: %s. The task and its guarantees set them, or they are "
            "not client settings.",
            conn_id,
            ", ".join(ignored),
        )
    return settings


def _allowed() -> list[str]:
    """Return the additional librdkafka settings that the deployment allows in connections."""
    text = conf.get(SECTION, "settings_allowed", fallback="") or ""
    return [name for part in text.split(",") if (name := part.strip())]


def _mask(secret: str) -> None:
    mask(secret)
    # A key may span several lines, and an error may quote one of them.
    for line in secret.splitlines()[1:-1]:
        if line:
            mask(line)
