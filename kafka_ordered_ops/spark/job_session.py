"""A session in this process for one job, which somebody else may end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kafka_ordered_ops.spark.environment import check_pyspark
from kafka_ordered_ops.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Between two looks whether the job is to end.
_LOOK_S: Final = 0.2

#: A session that does not end in this time is left to the end of the process.
_END_WAIT_S: Final = 30.0


@contextmanager
def job_session(
    app_name: str, conf: Mapping[str, str], stopped: Callable[[], bool]
) -> Iterator[SparkSession]:
    """A local session for the block; what Spark computes in it is ended when `stopped` says yes.

    The session ends with the block, unless it was there before: then it goes on, and only its work is ended.

    Args:
        app_name: shown in Spark's log.
        conf: Spark's settings.
        stopped: asked several times a second, by a thread.

    Raises:
        ConfigError, EnvironmentConflictError: as `local_session` does.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    is_ours = SparkSession.getActiveSession() is None
    # A host that logs all there is would get a line for each of Spark's calls back into Python.
    if (gateway := logging.getLogger("py4j")).level == logging.NOTSET:
        gateway.setLevel(logging.WARNING)
    spark = local_session(app_name, conf=conf)
    over = threading.Event()

    def watch() -> None:
        # Each thread has a connection to Java of its own: the job's waits for an answer on another one.
        while not over.wait(_LOOK_S):
            if stopped():
                if is_ours:
                    spark.stop()
                    return
                # Again and again: the job may begin another piece of work after the one that was ended.
                spark.sparkContext.cancelAllJobs()

    watcher = threading.Thread(target=watch, name="kafka-ordered-ops-stop", daemon=True)
    watcher.start()
    try:
        yield spark
    finally:
        over.set()
        watcher.join(_END_WAIT_S)
        if is_ours:
            spark.stop()
