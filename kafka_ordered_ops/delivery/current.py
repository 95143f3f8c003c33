"""The windows of a submitted application, as the same objects as for a function in every host."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.delivery.host import Host, Stop
from kafka_ordered_ops.delivery.open_window import OpenWindow
from kafka_ordered_ops.delivery.open_windows import OpenWindows
from kafka_ordered_ops.spark.applications.orders import carry_out
from kafka_ordered_ops.spark.applications.parent_watch import show_progress, watch
from kafka_ordered_ops.spark.applications.protocol import (
    FOLDER_KEY,
    SECRET_KEY,
    SETTINGS_NAME,
    Order,
    Submission,
    settings_from_text,
    take_private,
)
from kafka_ordered_ops.spark.applications.result import JobResult
from kafka_ordered_ops.spark.environment import check_pyspark
from kafka_ordered_ops.spark.write.table_output import TableOutput
from kafka_ordered_ops.spark.write.table_windows import check_bad, table_sink
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.job_outputs import check_each

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import ClientSettings, Staged

_log = logging.getLogger(__name__)

#: By the folder of the run: the settings are read once from their file, which is gone afterwards.
_WINDOWS: Final[dict[str, OpenWindow]] = {}
_LOCK: Final = threading.Lock()


def current_window(spark: Any) -> OpenWindow:
    """Return the window that this application was submitted for: by an `Application`, or by ``run --application``.

    From then on, the application reports its progress to the submitter, and ends if the submitter is gone. The
    submitter commits after the application has succeeded.

    For a window that goes to a table, the application is run once more to publish it: in that run this call does so,
    and the process ends with it.

    Args:
        spark: the session that ``read`` uses.

    Raises:
        ConfigError: the application was started in another way, its submitter has given up, or it was submitted for
            several windows in one pass.
    """
    window, windows = _current(spark)
    if len(windows.plans) != 1:
        raise ConfigError(
            f"this application was submitted for {len(windows.plans)} windows in one pass: use current_windows(spark), "
            "and distinguish rows by their window_id; or submit the windows one by one"
        )
    return window


def current_windows(spark: Any) -> OpenWindows:
    """Return all windows that this application was submitted for in one pass; otherwise like `current_window`."""
    return _current(spark)[1]


def _current(spark: Any) -> tuple[OpenWindow, OpenWindows]:
    check_pyspark()
    name = spark.conf.get(FOLDER_KEY, None)
    if name is None:
        raise ConfigError(
            "this job was not submitted for a window: start it with kafka_ordered_ops.spark.submit or with "
            "`kafka-ordered-ops run --application`. To read a window in your own session, use "
            "read_window(spark, plan, settings)"
        )
    with _LOCK:
        if name not in _WINDOWS:
            window = _WINDOWS[name] = OpenWindow(_submitted(spark, PurePath(name)))
            atexit.register(window.close)
        window = _WINDOWS[name]
        window.windows.spark = spark
        return window, window.windows


def _submitted(spark: Any, folder: PurePath) -> OpenWindows:
    submission = Submission.read(folder)
    if submission.order is not Order.WRITE:
        carry_out(spark, submission, folder)
    settings, storage_options = _settings(spark, folder)
    if spark.conf.get("spark.submit.deployMode", "client") == "cluster":
        # In client mode, the watch started before the job.
        watch(folder, parent=None, detached=submission.detached)
    show_progress(spark, folder)
    return windows_of(submission, settings, storage_options, spark, folder)


def windows_of(
    submission: Submission,
    settings: ClientSettings,
    storage_options: Mapping[str, Any] | None,
    spark: Any,
    folder: PurePath,
) -> OpenWindows:
    """Return the windows of a submission, which report to the folder of the run."""

    def report(outputs: Sequence[Staged | Mapping[str, Any]]) -> None:
        results = _results(submission, outputs)
        application_id = spark.sparkContext.applicationId
        JobResult(results, application_id).write(folder, submission.token, submission.plans)

    output = submission.output
    windows = OpenWindows(
        submission.plans,
        settings,
        submission.table
        if output is None
        else Folder(output, submission.partition_by, storage_options),
        Host(Stop("the submitter"), "there is no folder to write to", _log.info, report=report),
        engine=submission.engine,
        ordered=submission.ordered,
    )
    if windows.table is not None and any(plan.window.has_bad_output for plan in submission.plans):
        windows.table_sink = table_sink(spark, windows.table)
        check_bad(windows.table_sink)
    if submission.engine == Engine.LOCAL:
        # Below the output folder, which all executors see. It is removed with the folder of the run.
        windows.local_root = str(folder / "read")
    return windows


def _results(
    submission: Submission, outputs: Sequence[Staged | Mapping[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """Return the results for the submitter, after the checks that it cannot do before it commits."""
    for plan, output in zip(submission.plans, outputs, strict=True):
        if not isinstance(output, Mapping):
            check_each([plan], [output])
    rows = [output for output in outputs if isinstance(output, TableOutput)]
    try:
        for output in rows:
            output.check_ready()
    except Exception:
        for output in rows:
            output.discard()
        raise
    for output in rows:
        if output.is_nothing and output.bad is None:
            # There are no rows to publish, so no other run is needed. An application does not remove rows that
            # other claims have staged: one of them may be committed.
            output.discard()
            output.published = True
    return tuple(
        dict(output if isinstance(output, Mapping) else output.to_json()) for output in outputs
    )


def _settings(spark: Any, folder: PurePath) -> tuple[ClientSettings, Mapping[str, Any] | None]:
    text = spark.conf.get(SECRET_KEY, None)
    if text is not None:
        return settings_from_text(text)
    # From here on they are in this process's memory, and pickled in its readers.
    return settings_from_text(take_private(folder / SETTINGS_NAME))
