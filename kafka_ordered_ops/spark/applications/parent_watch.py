"""The job's side of the link to its submitter: report progress, and end when the submitter is gone.

In client mode the driver is a Python process below spark-submit's Java. Three mechanisms end it when its submitter
is gone, each a fallback for the one before: the submitter's guard, which ends all its descendants; on Linux the
kernel, when the Java process dies; and this watch, when the folder of the run has been removed, or its heartbeat
has stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import PurePath
from typing import Any, Final

from kafka_ordered_ops.disk.disk import Disk
from kafka_ordered_ops.spark.applications.guard import ALIVE_NAME
from kafka_ordered_ops.spark.applications.result import JobProgress
from kafka_ordered_ops.spark.job_page import job_page

#: The interval of the watch.
LOOK_S: Final = 1.0

#: The guard's heartbeat changes every second. An NFS client may show that a minute late.
ALIVE_TIMEOUT_S: Final = 300.0

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        # The signal is sent when the forking thread ends; Spark forks in the main thread, which waits for this process.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def watch(folder: PurePath, *, parent: int | None, detached: bool = False) -> None:
    """End this process, and its parent if given, when the submitter is gone; watch in a thread.

    Args:
        folder: the folder of the run.
        parent: the process that must stay the parent.
        detached: whether the run goes on without its submitter, until its folder is gone.
    """
    threading.Thread(
        target=_watch, args=(folder, parent, detached), name="kafka-ordered-ops-watch", daemon=True
    ).start()


def _watch(folder: PurePath, parent: int | None, detached: bool) -> None:
    seen, since = None, time.monotonic()
    while parent is None or os.getppid() == parent:
        try:
            alive = Disk().look(str(folder / ALIVE_NAME), trusted=True)
        except OSError:
            break
        if alive is None:
            break
        if alive.st_mtime_ns != seen:
            # The clocks of two machines are not compared, only whether the heartbeat changes.
            seen, since = alive.st_mtime_ns, time.monotonic()
        elif not detached and time.monotonic() - since > ALIVE_TIMEOUT_S:
            break
        time.sleep(LOOK_S)
    print("the submitter of this job is gone: the job ends", file=sys.stderr, flush=True)
    if parent is not None and os.getppid() == parent:
        with contextlib.suppress(ProcessLookupError):
            os.kill(parent, signal.SIGTERM)
    # Without handlers and `finally` blocks: the job must not report anything any more.
    os.kill(os.getpid(), signal.SIGKILL)


def show_progress(spark: Any, folder: PurePath) -> None:
    """Report Spark's progress every second, in a thread, until Spark stops."""
    threading.Thread(
        target=_show_progress, args=(spark, folder), name="kafka-ordered-ops-progress", daemon=True
    ).start()


def _show_progress(spark: Any, folder: PurePath) -> None:
    last = None
    # Any failure here (Spark has stopped, the folder is gone) ends the reports, and must not reach the job.
    with contextlib.suppress(Exception):
        store = spark.sparkContext._jsc.sc().statusStore()
        page = job_page(spark)
        while True:
            progress = _progress_of(store.activeStages(), page)
            if progress != last:
                progress.write(folder)
                last = progress
            time.sleep(LOOK_S)


def _progress_of(stages: Any, page: str | None) -> JobProgress:
    done = total = records = 0
    iterator = stages.iterator()
    while iterator.hasNext():
        stage = iterator.next()
        done += stage.numCompleteTasks()
        total += stage.numTasks()
        # Stages count records that they read from a shuffle, and the last stage counts records that it writes.
        records += max(
            stage.inputRecords(),
            stage.shuffleReadRecords(),
            stage.shuffleWriteRecords(),
            stage.outputRecords(),
        )
    return JobProgress(done, total, records, page)
