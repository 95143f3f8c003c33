"""A session in this process for one job, which can be stopped from outside."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafka_ordered_ops.spark.environment import (
    check_pyspark,
    ended_java,
    has_session,
    java_answers,
)
from kafka_ordered_ops.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The interval between two checks of `stopped`.
_LOOK_S: Final = 0.2

#: A session that does not stop within this time ends with the process.
_END_WAIT_S: Final = 30.0


@contextmanager
def job_session(
    app_name: str,
    conf: Mapping[str, str],
    stopped: Callable[[], bool],
    java_home: Path | None = None,
    tasks: Callable[[int, int], None] | None = None,
) -> Iterator[SparkSession]:
    """Yield a local session for the block; its computations are ended when `stopped` returns true.

    The session ends with the block, unless it existed before: then it continues, and only its work is ended.

    Args:
        app_name: shown in Spark's log.
        conf: Spark's settings.
        stopped: called several times a second in a thread; the work ends when it returns True.
        java_home: the Java to run on; None uses ``JAVA_HOME``, or ``java`` from the path.
        tasks: called by that thread with the number of finished tasks and of all tasks in the running stages.

    Raises:
        ConfigError, EnvironmentConflictError: as `local_session` does.
    """
    check_pyspark()
    is_ours = not has_session()
    # A host that logs everything would log a line for each of Spark's calls back into Python.
    if (gateway := logging.getLogger("py4j")).level == logging.NOTSET:
        gateway.setLevel(logging.WARNING)
    with _interrupts_held() as interrupts:
        spark = local_session(app_name, java_home=java_home, conf=conf)
    over = threading.Event()

    def watch() -> None:
        # Each thread has its own connection to Java: the job's thread waits for an answer on its own one.
        while not over.wait(_LOOK_S):
            if stopped():
                if is_ours:
                    spark.stop()
                    return
                # Repeated: the job may start more work after a cancelled one.
                spark.sparkContext.cancelAllJobs()
            elif tasks is not None:
                _report_tasks(spark, tasks)

    watcher = threading.Thread(target=watch, name="kafka-ordered-ops-stop", daemon=True)
    watcher.start()
    try:
        if interrupts:
            raise KeyboardInterrupt
        with java_answers():
            yield spark
    finally:
        over.set()
        watcher.join(_END_WAIT_S)
        if is_ours and ended_java() is None:
            spark.stop()


def _report_tasks(spark: SparkSession, tasks: Callable[[int, int], None]) -> None:
    tracker = spark.sparkContext.statusTracker()
    infos = map(tracker.getStageInfo, tracker.getActiveStageIds())
    stages = [stage for stage in infos if stage is not None]
    if total := sum(stage.numTasks for stage in stages):
        tasks(sum(stage.numCompletedTasks for stage in stages), total)


@contextmanager
def _interrupts_held() -> Iterator[list[int]]:
    """Collect Ctrl-C while Spark starts: an interrupted pyspark leaves its Java process running forever.

    Afterwards Ctrl-C raises again, as usual in Python: pyspark's own handler would call Java on the very connection
    that the interrupted call waits on. A host's own handler is not replaced.
    """
    caught: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield caught
        return
    signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
