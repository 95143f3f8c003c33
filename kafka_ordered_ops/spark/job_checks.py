"""Check a job before a window is planned for it: one check for each mistake, shared by all hosts.

A planned window holds its records until it is delivered or abandoned. So a job that cannot run is refused before. Checks
of *form* need only the argument, and run when a job is defined. Checks of the *machine* (folders, files, programs) run in
the process of the job.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka_ordered_ops.core.arguments import path_text, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.output.address import is_local
from kafka_ordered_ops.spark.environment import check_pyspark, has_session
from kafka_ordered_ops.spark.environment import check_spark as check_spark
from kafka_ordered_ops.spec.deploy_mode import DeployMode, check_in_process
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.spark_conf import check_master, check_spark_conf
from kafka_ordered_ops.spec.spark_submit import pyspark_home

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import ClientSettings

#: Settings that may provide the Kafka connector for the engine connector.
_BRING_JARS: Final = frozenset(
    {"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath", "spark.remote"}
)
_CONNECTOR_JAR: Final = "spark-sql-kafka-0-10*.jar"


class Submission(Protocol):
    """The checked options of spark-submit; see `submit.SparkSubmit`."""

    @property
    def master(self) -> str | None:
        """The master, as for spark-submit."""

    @property
    def deploy_mode(self) -> str | None:
        """Where the driver runs."""

    @property
    def conf(self) -> Mapping[str, str]:
        """Spark's settings."""

    @property
    def command(self) -> str:
        """The spark-submit program; raises `ConfigError`."""


# --- form ------------------------------------------------------------------------------------------


def check_submit(how: Submission) -> None:
    """Raise `ConfigError` for invalid settings of spark-submit."""
    check_master(how.master)
    check_spark_conf(how.conf)


# --- this machine ----------------------------------------------------------------------------------


def check_application(application: object) -> str:
    """Return the application's full path; raise `ConfigError` if there is no file, or if it cannot be read."""
    text = path_text(application)
    if text is None or "\0" in text:
        raise ConfigError(f"application is the path of a Python file, not {shown(application)}")
    path = os.path.abspath(text)
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise ConfigError(
            f"there is no application at {path} that this process can read: name a Python file on this machine"
        )
    return path


def check_submission(application: object, settings: ClientSettings, how: Submission) -> str:
    """Return the application's full path.

    Raises:
        ConfigError: spark-submit cannot run it for windows of this cluster.
    """
    path = check_application(application)
    check_submit(how)
    _ = how.command
    if settings.memory_name is not None:
        raise ConfigError(
            f"an application is another process, and cannot reach the InMemoryKafka {settings.memory_name!r}: "
            "read and write in this process, or use a real broker"
        )
    return path


def check_deployed(how: Submission, output: str | None, *, table: str | None = None) -> None:
    """Raise `ConfigError` for a driver in the cluster that cannot exchange files with this process.

    Args:
        how: the options of spark-submit.
        output: the folder for outputs; None if there is none.
        table: the table, instead of `output`.
    """
    if how.deploy_mode is not DeployMode.CLUSTER:
        return
    if table is not None:
        raise ConfigError(
            f"deploy_mode 'cluster' needs a folder that this process and the driver both see, and the table {table} has "
            "none: use client mode, or start the job in the cluster yourself, and let it call windows.run with the "
            "Table and a function"
        )
    if output is not None and not is_local(output):
        raise ConfigError(
            f"deploy_mode 'cluster' needs a folder that this process and the driver both see, and the output {output} is "
            "none: use client mode, or run the job in its own host and commit it there"
        )


def check_session(conf: Mapping[str, Any], *, java_home: str | os.PathLike[str] | None) -> None:
    """Raise `ConfigError` if this process cannot start Spark: no pyspark, no Java, or wrong settings.

    Args:
        conf: Spark's settings.
        java_home: the Java of the session.
    """
    check_spark_conf(conf)
    check_in_process(conf, os.environ)
    check_pyspark()
    if (
        has_session()
        or "spark.remote" in conf
        or os.environ.get("SPARK_REMOTE")
        or _sets_environment()
    ):
        return
    home = java_home or os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise ConfigError(
            f"Spark needs Java 17 or newer, and there is none {f'below {home}' if home else 'on the path'}: "
            "install it, or set JAVA_HOME"
        )


def check_reading(
    engine: str, settings: ClientSettings, *, conf: Mapping[str, Any] | None, group_id: str
) -> None:
    """Raise `ConfigError` for an engine that cannot read from the cluster of the settings.

    Args:
        engine: who reads Kafka.
        settings: how to reach the cluster.
        conf: Spark's settings of a session in this process; None if another process has the session.
        group_id: the consumer group.
    """
    from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S

    if Engine.of(engine, settings) is not Engine.CONNECTOR:
        return
    from kafka_ordered_ops.spark.read.connector_settings import java_settings

    java_settings(
        settings,
        group_id=group_id,
        isolation=Isolation.READ_COMMITTED,
        stall_timeout_s=STALL_TIMEOUT_S,
    )
    if conf is not None and not _may_have_connector(conf):
        raise ConfigError(
            "engine 'connector' reads with Spark's Kafka connector, which this session would lack: set "
            "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION, or use engine 'python'"
        )


def _may_have_connector(conf: Mapping[str, Any]) -> bool:
    """Return whether a session could have the connector at all."""
    if has_session() or _BRING_JARS & conf.keys() or os.environ.get("SPARK_REMOTE"):
        return True
    home = _spark_home()
    if home is None or any((home / "jars").glob(_CONNECTOR_JAR)):
        return True
    return (_conf_folder(home) / "spark-defaults.conf").exists()


def _sets_environment() -> bool:
    """Return whether Spark's own start script may set the Java."""
    home = _spark_home()
    return home is not None and (_conf_folder(home) / "spark-env.sh").exists()


def _conf_folder(home: Path) -> Path:
    return Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")


def _spark_home() -> Path | None:
    home = os.environ.get("SPARK_HOME") or pyspark_home()
    return None if home is None else Path(home)
