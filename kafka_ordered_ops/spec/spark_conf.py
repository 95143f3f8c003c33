"""Check Spark settings without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kafka_ordered_ops.core.cluster.names import is_whole
from kafka_ordered_ops.core.errors import ConfigError

#: The masters that Spark and spark-submit accept.
_MASTER: Final = re.compile(
    r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[[\d\s,]+\]|yarn|spark://[^\s/]+(:\d+)?|k8s://\S+"
)


def conf_of(value: Any) -> dict[str, Any]:
    """Return the settings of a session that is started for a job; raise `ConfigError` as `check_spark_conf` does."""
    check_spark_conf(value)
    return dict(value)


def check_spark_conf(conf: object) -> None:
    """Raise `ConfigError` for invalid Spark settings, and for a master that Spark cannot parse."""
    if not isinstance(conf, Mapping):
        raise ConfigError(f"Spark's settings are a mapping of texts, not a {type(conf).__name__}")
    check_setting_names(conf)
    for key, value in conf.items():
        # The message omits the value, which may be a secret.
        if not isinstance(value, str | int | float) or not is_whole(f"{key}{value}"):
            raise ConfigError(
                f"the Spark setting {key} is a {type(value).__name__}: give UTF-8 text or a number"
            )
    if "spark.master" in conf:
        check_master(str(conf["spark.master"]))


def check_setting_names(names: Iterable[object]) -> None:
    """Raise `ConfigError` for a name that is not the name of a Spark setting."""
    for name in names:
        if not isinstance(name, str) or not name.startswith("spark."):
            raise ConfigError(
                f"{name!r} is not a Spark setting: the names of settings begin with 'spark.'"
            )


def check_master(master: object) -> None:
    """Raise `ConfigError` for a master that Spark cannot parse; None, for Spark's own configuration, is allowed."""
    if master is not None and (
        not isinstance(master, str) or not _MASTER.fullmatch(master.strip())
    ):
        raise ConfigError(
            f"master {master!r} is not a Spark master: use local[4], spark://HOST:PORT, yarn or k8s://URL"
        )
