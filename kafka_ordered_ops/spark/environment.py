"""Check the environment before pyspark is imported, and the session that runs in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import (
    ConfigError,
    EnvironmentConflictError,
    JobFailedError,
    KafkaOrderedOpsError,
)
from kafka_ordered_ops.spec.spark_submit import pyspark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Errors that py4j raises if Java does not answer; recognized by name, because Connect does not have py4j.
_NO_JAVA: Final = frozenset({"Py4JError", "Py4JNetworkError"})

#: Connections break shortly before the process has ended.
_END_WAIT_S: Final = 2.0


def check_pyspark() -> None:
    """Check the installation of pyspark; every use of Spark begins here.

    Raises:
        EnvironmentConflictError: pyspark and pyspark-client are both installed.
        ConfigError: neither is installed.
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


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def running_session() -> SparkSession | None:
    """Return the session that runs in this process, whichever thread started it; None if there is none.

    Raises:
        ConfigError: its Java process has ended.
    """
    sql: Any = sys.modules.get("pyspark.sql")
    if sql is None:
        return None
    check_java()
    try:
        # This thread's session, or the one that all threads share.
        session = sql.SparkSession.active()
    except sys.modules["pyspark"].errors.PySparkRuntimeError:
        return None
    return None if _is_stopped(session) else session


def has_session() -> bool:
    """Return whether Spark runs in this process already; raises as `running_session` does."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    has_context = getattr(context, "_active_spark_context", None) is not None
    return running_session() is not None or has_context


def check_spark(spark: object) -> None:
    """Raise `ConfigError` unless the value is a running Spark session, classic or Connect."""
    if isinstance(spark, type) or not callable(getattr(spark, "createDataFrame", None)):
        raise ConfigError(f"spark is {shown(spark)}: give a SparkSession")
    check_runs(spark)


def check_runs(spark: object) -> None:
    """Raise `ConfigError` for a session that has been stopped, or whose Java process has ended."""
    if _is_stopped(spark):
        raise ConfigError("the Spark session has been stopped: create another one")
    if getattr(spark, "_jsparkSession", None) is not None:
        check_java()


def check_java() -> None:
    """Raise `ConfigError` if the Java process of this process's Spark has ended."""
    if (ended := ended_java()) is not None:
        raise ConfigError(
            f"{ended}, and no session of this process can be used any more. Run the window again in another process"
        )


@contextmanager
def java_answers() -> Iterator[None]:
    """Raise `JobFailedError` if the block fails because the Java process of this process's Spark has ended."""
    try:
        yield
    except Exception as error:
        if (failed := java_failure(error)) is None:
            raise
        raise failed from error


def java_failure(error: BaseException) -> JobFailedError | None:
    """Return the error to raise instead if the Java process has ended; None while it runs, or for an error of this package."""
    if isinstance(error, KafkaOrderedOpsError):
        return None
    # PySpark raises errors of many kinds if Java does not answer.
    is_unanswered = isinstance(error, ConnectionError) or type(error).__name__ in _NO_JAVA
    if (ended := ended_java(_END_WAIT_S if is_unanswered else 0)) is None:
        return None
    return JobFailedError(f"{ended}. Run the window again in another process")


def ended_java(wait_s: float = 0.0) -> str | None:
    """Return how the Java process of this process's Spark has ended; None if it runs, or another program started it.

    Args:
        wait_s: how long to wait for an end that may be under way.
    """
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process: Any = getattr(getattr(context, "_gateway", None), "proc", None)
    if process is None:
        return None
    try:
        code = process.wait(wait_s)
    except TimeoutExpired:
        return None
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"Spark's Java process {how}, as for lack of memory (see spark.driver.memory)"


def _is_stopped(spark: object) -> bool:
    context = getattr(spark, "_sc", None)
    if context is not None:
        return getattr(context, "_jsc", None) is None
    return getattr(spark, "is_stopped", False) is True


def check_frame(df: object) -> None:
    """Raise `ConfigError` unless the value is a Spark DataFrame; the error does not show its content."""
    with java_answers():
        is_frame = not isinstance(df, type) and all(
            hasattr(df, name) for name in ("sparkSession", "dtypes", "drop")
        )
    if not is_frame:
        raise ConfigError(
            f"a window's result is a Spark DataFrame, and not a {type(df).__name__}: make it one with "
            "spark.createDataFrame"
        )
