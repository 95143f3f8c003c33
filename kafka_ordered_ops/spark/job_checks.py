"""Check a job before a window is planned for it: one check for each mistake, for all hosts.

A planned window holds its records until it is delivered or abandoned. A job that cannot run is therefore refused
first. Checks of *form* need only the argument, and run when a job is defined. Checks of the *machine* (folders,
files, programs) run in the process of the job.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka_ordered_ops.core.arguments import path_text, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.names import is_whole
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.core.window.partition import check_partition_by, partition_of
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.disk.disk import Disk
from kafka_ordered_ops.output.address import control_folder, is_in_hdfs, is_in_store, is_local
from kafka_ordered_ops.output.filesystem import as_sink_error
from kafka_ordered_ops.spark.environment import check_pyspark, has_session
from kafka_ordered_ops.spark.environment import check_spark as check_spark
from kafka_ordered_ops.spec.deploy_mode import DeployMode, check_in_process
from kafka_ordered_ops.spec.destination import check_output
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.spark_submit import pyspark_home

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import ClientSettings

#: The masters that Spark and spark-submit accept.
_MASTER: Final = re.compile(
    r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[[\d\s,]+\]|yarn|spark://[^\s/]+(:\d+)?|k8s://\S+"
)

#: Any of these may bring the Kafka connector that the engine connector reads with.
_BRING_JARS: Final = frozenset(
    {"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath", "spark.remote"}
)
_CONNECTOR_JAR: Final = "spark-sql-kafka-0-10*.jar"

#: System errors that make a folder unusable for good.
_FOR_GOOD: Final = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


class Submission(Protocol):
    """The options of spark-submit that are checked here; see `submit.SparkSubmit`."""

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


def check_spark_conf(conf: object) -> None:
    """Raise `ConfigError` for invalid Spark settings, and for a master that Spark cannot parse."""
    if not isinstance(conf, Mapping):
        raise ConfigError(f"Spark's settings are a mapping of texts, not a {type(conf).__name__}")
    for key, value in conf.items():
        if not isinstance(key, str) or not key.startswith("spark."):
            raise ConfigError(f"{key!r} is not a Spark setting: their names begin with 'spark.'")
        # Without the value: it may be a secret.
        if not isinstance(value, str | int | float) or not is_whole(f"{key}{value}"):
            raise ConfigError(
                f"the Spark setting {key} is a {type(value).__name__}: give UTF-8 text or a number"
            )
    if "spark.master" in conf:
        check_master(str(conf["spark.master"]))


def check_master(master: object) -> None:
    """Raise `ConfigError` for a master that Spark cannot parse; None: as Spark is set up."""
    if master is not None and (
        not isinstance(master, str) or not _MASTER.fullmatch(master.strip())
    ):
        raise ConfigError(
            f"master {master!r} is not a Spark master: use local[4], spark://HOST:PORT, yarn or k8s://URL"
        )


def check_submit(how: Submission) -> None:
    """Raise `ConfigError` for invalid settings of spark-submit."""
    check_master(how.master)
    check_spark_conf(how.conf)


# --- this machine ----------------------------------------------------------------------------------


def check_writable(
    output: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> None:
    """Write a hidden file to the output folder, and beside it, or to the folders in which these will be created.

    Nothing is left, not even the folder: the call may still be refused for another reason. An object store is tried
    once for each root and process, conditional writes included.

    Raises:
        ConfigError: as `check_output`; or the path leads to no folder that this process may write to, or to one where
            a file system is mounted, whose parent is on another one, or to a store
            without conditional writes, or there are options and no store; or to windows of another `partition_by`.
        SinkError: the file system failed otherwise.
    """
    from kafka_ordered_ops.output.root_check import check_root

    root = check_output(output)
    if is_in_store(root):
        from kafka_ordered_ops.output.objects.probe import check_store

        check_store(root, storage_options)
    elif is_in_hdfs(root):
        from kafka_ordered_ops.output.hdfs.probe import check_hdfs

        check_hdfs(root, storage_options)
    else:
        _check_folder(root, storage_options)
    check_root(root, storage_options, check_partition_by(partition_by))


def _check_folder(root: str, storage_options: Mapping[str, Any] | None) -> None:
    if storage_options is not None:
        raise ConfigError(
            f"storage_options are for an object store, but the output is the folder {root}: leave them out"
        )
    control = control_folder(root)
    with as_sink_error(f"the output folder {root} cannot be used"):
        with _refusing(f"windows cannot be written to {root}"):
            place = _nearest(root)
            with tempfile.TemporaryFile(dir=place):
                pass
        why = f"windows cannot be written to {root}: what readers must not see is stored beside it, in {control}"
        with _refusing(why):
            Disk().check(control)
        with _refusing(why), tempfile.TemporaryDirectory(dir=_nearest(control)) as made:
            _check_moves(made, place, why)


@contextmanager
def _refusing(why: str) -> Iterator[None]:
    """Raise `ConfigError` where the system will never let this process write to a folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FOR_GOOD:
            raise
        raise ConfigError(
            f"{why}: {error.strerror}. Name a folder that this process may write to, in a folder that it may write to"
        ) from error


def _check_moves(made: str, root: str, why: str) -> None:
    """Raise `ConfigError` unless a folder moves into the root by a rename: publishing is one."""
    inner = os.path.join(made, f".koo-try-{os.path.basename(made)}")
    moved = os.path.join(root, os.path.basename(inner))
    os.mkdir(inner)
    try:
        os.rename(inner, moved)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise ConfigError(
            f"{why}, and that is another file system: {root} is where one is mounted. Name a folder below {root}"
        ) from error
    os.rmdir(moved)


def check_storage_options(
    storage_options: object | None, output: str | os.PathLike[str] | None
) -> None:
    """Raise `ConfigError` for options without an output; a folder's are refused by `check_writable`."""
    if storage_options is not None and output is None:
        raise ConfigError(
            "storage_options are for an output in an object store: give output=, or leave them out"
        )


def check_partitioned(
    partition_by: str | None,
    output: str | os.PathLike[str] | None,
    windows: Iterable[Window] = (),
) -> None:
    """Raise `ConfigError` for an unknown `partition_by`, one without an output, or windows that do not fit into it."""
    checked = check_partition_by(partition_by)
    if checked is not None and output is None:
        raise ConfigError(
            f"partition_by={checked.value!r} is for the folders of an output: give output=, or leave it out"
        )
    for window in windows:
        partition_of(window, checked)


def _nearest(path: str) -> str:
    """Return the path, or the nearest of its parents that exists."""
    while True:
        try:
            os.lstat(path)
        except FileNotFoundError:
            path = os.path.dirname(path)
        else:
            return path


def check_application(application: object) -> str:
    """Return the application's full path; raise `ConfigError` for no file, or one that cannot be read."""
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
        ConfigError: spark-submit could not run it for windows of this cluster.
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
    """Raise `ConfigError` for a driver in the cluster that could not exchange files with this process.

    Args:
        how: the options of spark-submit.
        output: the folder for outputs; None: there is none.
        table: instead of `output`, the table.
    """
    if how.deploy_mode is not DeployMode.CLUSTER:
        return
    if table is not None:
        raise ConfigError(
            f"deploy_mode 'cluster' needs a folder that this process and the driver both see, and the table {table} has "
            "none: use client mode, or start the job in the cluster yourself, and let it call windows.run with a function "
            "and table="
        )
    if output is not None and not is_local(output):
        raise ConfigError(
            f"deploy_mode 'cluster' needs a folder that this process and the driver both see, and the output {output} is "
            "none: use client mode, or run the job in its own host and commit it there"
        )


def check_session(conf: Mapping[str, Any], *, java_home: str | os.PathLike[str] | None) -> None:
    """Raise `ConfigError` if this process could not start Spark: no pyspark, no Java, wrong settings.

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
    """Raise `ConfigError` for an engine that cannot read from where the settings lead.

    Args:
        engine: who reads Kafka.
        settings: how to reach the cluster.
        conf: Spark's settings of a session in this process; None: another process has the session.
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
