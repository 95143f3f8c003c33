"""Check the environment before pyspark is imported."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError, EnvironmentConflictError


def check_pyspark() -> None:
    """Check the installation of pyspark; every use of Spark begins here.

    Raises:
        EnvironmentConflictError: pyspark and pyspark-client are both installed.
        ConfigError: neither of them is.
    """
    full, client = _version("pyspark"), _version("pyspark-client")
    if full and client:
        raise EnvironmentConflictError(
            f"pyspark {full} and pyspark-client {client} are both installed: they share one folder, and the "
            "one installed last has overwritten parts of the other. Keep one of them (pip uninstall "
            "pyspark-client, then pip install --force-reinstall pyspark). If a package depends on "
            "pyspark-client, as Airflow's Spark provider does, install that package with an override "
            "(uv: --override with the line: pyspark-client; python_version < '3') or in its own environment"
        )
    # A Spark that pip did not install, such as a cluster's, is put on Python's path by spark-submit.
    if not full and not client and pyspark_home() is None:
        raise ConfigError(
            "pyspark is not installed: pip install 'kafka-ordered-ops[spark]', or the version of your cluster"
        )


def pyspark_home() -> str | None:
    """Return the folder of the installed pyspark, which has a spark-submit; None without one."""
    try:
        found = find_spec("pyspark")
    except ValueError:
        return None
    return None if found is None or found.origin is None else os.path.dirname(found.origin)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def check_spark(spark: object) -> None:
    """Raise `ConfigError` unless the value is a Spark session, classic or Connect."""
    if isinstance(spark, type) or not callable(getattr(spark, "createDataFrame", None)):
        raise ConfigError(f"spark is {shown(spark)}: give a SparkSession")


def check_frame(df: object) -> None:
    """Raise `ConfigError` unless the value is a Spark DataFrame; without its content, which is data."""
    if isinstance(df, type) or not all(
        hasattr(df, name) for name in ("sparkSession", "dtypes", "drop")
    ):
        raise ConfigError(
            f"a window's result is a Spark DataFrame, and not a {type(df).__name__}: make it one with "
            "spark.createDataFrame"
        )
