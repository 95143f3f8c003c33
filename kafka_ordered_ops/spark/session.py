"""A quiet Spark in this process: for the command line, the demo, tests, and windows that fit one machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.spark.environment import check_pyspark, has_session
from kafka_ordered_ops.spec.deploy_mode import MODE_KEY, DeployMode, check_in_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG_CONFIGURATION: Final = Path(__file__).with_name("log4j2.properties")

_CONF: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # Regardless of the machine's defaults for jobs: the driver of a session is this process.
    MODE_KEY: DeployMode.CLIENT.value,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local_session(
    app_name: str,
    *,
    cores: int | None = None,
    memory: str = "1g",
    java_home: Path | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in this process, or return the running session, with only `conf` added to its settings.

    A new session has no web page, no port except on 127.0.0.1, and only errors in the log. Times are UTC and are
    written to Parquet as microseconds. Tasks run on this Python.

    Args:
        app_name: shown in Spark's log.
        cores: the number of tasks at a time; None uses all cores of the machine.
        memory: the JVM's heap, such as ``"1g"``, in addition to the Python workers' memory.
        java_home: the Java to run on; None uses ``JAVA_HOME``, or ``java`` from the path.
        conf: more Spark settings, such as ``spark.jars``; they override this function's settings.

    Raises:
        ConfigError: pyspark is not installed; there is no Java; `cores` is not positive; or `conf` or the
            environment asks for cluster mode.
        EnvironmentConflictError: pyspark and pyspark-client are both installed.
    """
    check_pyspark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if cores is not None and cores < 1:
        raise ConfigError(f"cores={cores}: use at least 1, or None for all of the machine")
    check_in_process(conf or {}, os.environ)
    builder, settings = SparkSession.Builder(), dict(conf or {})
    if not has_session():
        builder = builder.master(f"local[{cores or '*'}]").appName(app_name)
        settings = {**_CONF, "spark.driver.memory": memory, **settings}
    for key, value in settings.items():
        builder = builder.config(key, value)
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if java_home is not None:
        environment["JAVA_HOME"] = str(java_home)
    try:
        with _environment(environment):
            return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise ConfigError(
            "Spark's Java process did not start: it needs Java 17 or newer, from JAVA_HOME, the path, or "
            f"java_home= ({java_home or os.environ.get('JAVA_HOME') or 'none given'}). Its output is in "
            "this process's standard error"
        ) from error


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables while Spark starts, which reads them and passes them to its JVM."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
