"""Run a user's Spark application for planned windows with spark-submit, and return its outputs.

::

    windows.deliver(plan, lambda plan: submit(plan, "job.py", windows.settings, "out"), StagedOutput.found)

The application calls `current_window`. It never commits. The caller commits after the application has succeeded
*and* has reported an output for this very run. After anything else (an error, a timeout, Ctrl-C, a ``kill -9`` of
spark-submit or of the caller), every process of the run is ended, and its results are discarded.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError, JobFailedError, SinkError
from kafka_ordered_ops.core.window.partition import check_partition_by, partition_of
from kafka_ordered_ops.core.window.plan import WindowPlan, check_not_covered
from kafka_ordered_ops.disk.disk import CONTROL_FOLDER, Disk
from kafka_ordered_ops.disk.temporary import system_folder
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.ordered.records.pieces import check_together
from kafka_ordered_ops.output.address import control_folder, is_local
from kafka_ordered_ops.output.filesystem import as_sink_error, normal_root
from kafka_ordered_ops.output.folders import check_scheme
from kafka_ordered_ops.output.writing.staged_output import StagedOutput
from kafka_ordered_ops.spark.applications.driver import MAIN, MAIN_NAME
from kafka_ordered_ops.spark.applications.log_lines import LogLines
from kafka_ordered_ops.spark.applications.process import Process
from kafka_ordered_ops.spark.applications.protocol import (
    FOLDER_KEY,
    SECRET_KEY,
    SETTINGS_NAME,
    Order,
    Place,
    Submission,
    new_place,
    settings_from_text,
    settings_to_text,
    write_private,
)
from kafka_ordered_ops.spark.applications.result import JobError, JobProgress, JobResult, Named
from kafka_ordered_ops.spark.job_checks import check_deployed, check_submission
from kafka_ordered_ops.spark.read.read import Engine
from kafka_ordered_ops.spec.deploy_mode import MASTER_KEY, DeployMode
from kafka_ordered_ops.spec.job_outputs import check_each
from kafka_ordered_ops.spec.spark_submit import SparkSubmit

_log = logging.getLogger(__name__)

#: The interval between two checks of the job.
_LOOK_S: Final = 0.2

#: How many lines of the log an error's message quotes; the file has all of them.
_TAIL_LINES: Final = 15
_TAIL_BYTES: Final = 16 * 1024


def submit(
    plan: WindowPlan,
    application: str | os.PathLike[str],
    settings: GivenSettings,
    output: str | os.PathLike[str],
    *,
    arguments: Sequence[str] = (),
    ordered: bool = True,
    engine: Engine | str = Engine.PYTHON,
    how: SparkSubmit | None = None,
    progress: Callable[[JobProgress], None] | None = None,
    log_line: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> StagedOutput:
    """Run an application for one window: `submit_windows` for one plan."""
    (staged,) = submit_windows(
        [plan],
        application,
        settings,
        output,
        arguments=arguments,
        ordered=ordered,
        engine=engine,
        how=how,
        progress=progress,
        log_line=log_line,
        cancelled=cancelled,
        storage_options=storage_options,
        partition_by=partition_by,
    )
    return staged


def submit_windows(
    plans: Sequence[WindowPlan],
    application: str | os.PathLike[str],
    settings: GivenSettings,
    output: str | os.PathLike[str],
    *,
    arguments: Sequence[str] = (),
    ordered: bool = True,
    engine: Engine | str = Engine.PYTHON,
    how: SparkSubmit | None = None,
    progress: Callable[[JobProgress], None] | None = None,
    log_line: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> list[StagedOutput]:
    """Run an application for several windows in one pass; return its outputs.

    Like `run_job`, but the application must write with `window.write`, to a folder that this process sees.

    Returns:
        The outputs in the order of `plans`, all of them complete and hidden.

    Raises:
        JobFailedError: the application failed. Its stages are removed.
        SinkError: it wrote nothing that this process sees.
        ConfigError, KafkaOrderedOpsError: as `run_job` does.
    """
    try:
        result = run_job(
            plans,
            application,
            settings,
            output,
            arguments=arguments,
            ordered=ordered,
            engine=engine,
            how=how,
            progress=progress,
            log_line=log_line,
            cancelled=cancelled,
            storage_options=storage_options,
            partition_by=partition_by,
        )
        outputs = [
            found_output(plan, reported, output, storage_options)
            for plan, reported in zip(plans, result.results, strict=True)
        ]
        check_each(plans, outputs)
        return outputs
    except BaseException:
        # No process of the run is left that could write to the stages.
        for plan in plans:
            with suppress(SinkError, ConfigError):
                StagedOutput.of(plan, output, storage_options).discard()
        raise


def run_job(
    plans: Sequence[WindowPlan],
    application: str | os.PathLike[str],
    settings: GivenSettings,
    output: str | os.PathLike[str],
    *,
    arguments: Sequence[str] = (),
    ordered: bool = True,
    engine: Engine | str = Engine.PYTHON,
    how: SparkSubmit | None = None,
    progress: Callable[[JobProgress], None] | None = None,
    log_line: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> JobResult:
    """Run an application for windows, and return its report: for your own sinks.

    Returns and raises only once no process of the run is left on this machine.

    Args:
        plans: windows of one group and isolation, each once.
        application: the Python file; it calls `current_window`.
        settings: the client settings; they travel in a file that only its owner can read. The application deletes the
            file once it has read it.
        output: the folder for the windows' outputs: a local or mounted one that the caller, the driver and all
            executors see, and ``.koo`` beside it, for the files through which caller and driver communicate. Or a
        prefix in an object store: these files are then in a temporary folder of this machine.
        arguments: the application's arguments, its ``sys.argv[1:]``.
        ordered: the application's default for reading and writing.
        engine: the application's default for reading Kafka.
        how: how to run spark-submit; None uses client mode with Spark's own configuration.
        progress: called when the job's progress changes.
        log_line: called with each line that spark-submit and the driver print.
        cancelled: called several times a second; the run is ended when it returns True.
        storage_options: credentials and settings of an object store; they travel with `settings`.
        partition_by: as for `write_window`, for what the application writes to `output`.

    Raises:
        ConfigError: an invalid argument; nothing was started.
        JobFailedError: the application failed, took too long, or was killed or cancelled.
        SinkError: it ended without a result for this run.
            The message has the end of its log and names the file with all of it.
        KafkaOrderedOpsError: where an error of this package ended the application, that error, by its kind.
    """
    settings = ClientSettings.of(settings)
    how = how or SparkSubmit()
    root = normal_root(output)
    check_windows(plans)
    check_scheme(root)
    check_deployed(how, root)
    for plan in plans:
        partition_of(plan.window, check_partition_by(partition_by))
    path = check_submission(application, settings, how)
    engine = Engine.of(engine, settings)
    submission = Submission(
        "",
        tuple(plans),
        root,
        engine=engine.value,
        ordered=ordered,
        partition_by=partition_by,
    )
    return run(
        submission,
        plans,
        path,
        arguments,
        settings_to_text(settings, storage_options),
        how,
        progress=progress,
        log_line=log_line,
        cancelled=cancelled,
    )


def check_windows(plans: Sequence[WindowPlan]) -> None:
    """Raise for windows that cannot be delivered in one pass, or that have no output."""
    check_together(plans)
    for plan in plans:
        check_not_covered(plan)


def run(
    submission: Submission,
    named: Sequence[Named],
    application: str,
    arguments: Sequence[str],
    secrets: str | None,
    how: SparkSubmit,
    *,
    progress: Callable[[JobProgress], None] | None = None,
    log_line: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> JobResult:
    """Run an application for a submission, which gets the token of this run; see `run_job`.

    Args:
        submission: the request.
        named: the plans or writes that need a result.
        application: its full path.
        arguments: its arguments.
        secrets: the client settings as text; None if it reads nothing from Kafka.
        how, progress, log_line, cancelled: as for `run_job`.
    """
    what = what_of(application, submission.order, named)
    with new_place(place_root(submission.output), named[0]) as place:
        with as_sink_error(f"the files of the run cannot be written to {place.folder}"):
            replace(submission, token=place.token).write(place.folder)
            command = command_of(place, application, arguments, secrets, named, how)
        with spark_submit(
            command, place, how, what, progress=progress, log_line=log_line, cancelled=cancelled
        ) as code:
            result = _judged(code, place, named, what)
        place.remove_log()
    return result


def command_of(
    place: Place,
    application: str,
    arguments: Sequence[str],
    text: str | None,
    named: Sequence[Named],
    how: SparkSubmit,
) -> list[str]:
    """Write the files that spark-submit needs, and return its command."""
    more = "" if len(named) == 1 else f" and {len(named) - 1} more"
    conf = {
        "spark.app.name": f"{PurePath(application).stem}: {named[0].window_id}{more}",
        **how.conf,
        FOLDER_KEY: str(place.folder),
    }
    if how.deploy_mode is DeployMode.CLUSTER:
        # The driver in the cluster sees neither files of this machine nor the end of this process.
        if text is not None:
            _warn_of_config_map(text, how)
            conf[SECRET_KEY] = text
        program = [application]
    else:
        if text is not None:
            write_private(place.folder / SETTINGS_NAME, text.encode("ascii"))
        # Program and settings are read by their paths, so they are in a folder that nobody else can write to.
        main = place.private / MAIN_NAME
        write_private(main, MAIN.format(folder=str(place.folder)).encode())
        program = [str(main), application]
    properties = place.private / "spark.conf"
    write_private(properties, _properties(conf).encode())
    return [
        how.command,
        *how.options(),
        # A properties file replaces spark-defaults.conf, unless that is requested too.
        "--properties-file",
        str(properties),
        "--load-spark-defaults",
        *program,
        *arguments,
    ]


def _warn_of_config_map(text: str, how: SparkSubmit) -> None:
    """Log a warning if others than the job can read the secrets: Spark does not hide them from Kubernetes."""
    master = how.master or how.conf.get(MASTER_KEY) or ""
    settings, storage_options = settings_from_text(text)
    if master.startswith("k8s://") and (settings.secret_values() or storage_options):
        _log.warning(
            "In cluster mode, Spark puts the settings of a job on Kubernetes into a ConfigMap of the driver's namespace, and "
            "the client settings with their secrets are among them (%s): whoever may read config maps there can read them. "
            "Use client mode in a pod, or let nobody else read config maps in that namespace",
            SECRET_KEY,
        )


def _properties(conf: Mapping[str, str]) -> str:
    """Return settings in the syntax of Java's properties."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str) -> str:
    # Any character may be escaped by its number; letters and digits need not be.
    return "".join(
        character
        if character.isascii() and (character.isalnum() or character in "._-/")
        else _by_number(character)
        for character in text
    )


def _by_number(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


@contextmanager
def spark_submit(
    command: Sequence[str],
    place: Place,
    how: SparkSubmit,
    what: What,
    *,
    progress: Callable[[JobProgress], None] | None = None,
    log_line: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Iterator[int]:
    """Run spark-submit to its end; yield its exit code before the guard ends, which removes the folder of the run.

    Args:
        command: the words of `command_of`.
        place, what: the run.
        how, progress, log_line, cancelled: as for `run_job`.

    Raises:
        JobFailedError: it was cancelled, or ran too long.
    """
    environment = how.variables()
    with (
        LogLines(place.log, log_line) as lines,
        Process(
            command, place, environment, grace_s=how.grace_s, what=what.text, after=what.after
        ) as process,
    ):
        deadline = time.monotonic() + how.timeout_s
        last = None
        while not process.has_ended(_LOOK_S):
            lines.hand_on()
            if cancelled is not None and cancelled():
                process.end()
                raise JobFailedError(f"{what.text} was cancelled. {what.after} {log_text(place)}")
            if progress is not None:
                now = JobProgress.read(place.folder)
                if now is not None and now != last:
                    progress(now)
                    last = now
            if time.monotonic() > deadline:
                process.end()
                raise JobFailedError(
                    f"{what.text} was ended: it ran longer than {how.timeout_s:g} s. {what.after} "
                    f"{log_text(place)}"
                )
        yield process.code


def _judged(code: int, place: Place, named: Sequence[Named], what: What) -> JobResult:
    """Return the job's result; raise if it failed or has no result for this run."""
    if code != 0:
        error = JobError.read(place.folder)
        where = f"{what.text} was ended by it. {what.after} The log: {place.log}"
        if error is not None and (of_ours := error.as_named(where)) is not None:
            raise of_ours
        # Spark's output after an exception is less helpful than the exception.
        why = "" if error is None else f"{error.kind}: {error.message}. "
        raise JobFailedError(
            f"{what.text} failed with {code_text(code)}. {why}{what.after} "
            f"{log_text(place, lines=0 if error is not None else _TAIL_LINES)}"
        )
    result = JobResult.read(place.folder, place.token, named)
    if result is None:
        raise SinkError(
            f"{what.text} ended without a result: it must call current_window(spark) and write with its `write`, or "
            f"report its own sink's output with `report`. {what.after} {log_text(place)}"
        )
    return result


def place_root(root: str | None) -> str:
    """Return the folder for the files of the run: beside the output, or this user's own for an output without files."""
    if root is not None and is_local(root):
        return control_folder(root)
    folder = f"{system_folder()}/kafka-ordered-ops-{os.getuid()}"
    with as_sink_error(f"the folder {folder} for a run cannot be created"):
        Disk().own_private(folder)
    return f"{folder}/{CONTROL_FOLDER}/runs"


def found_output(
    plan: WindowPlan,
    result: Mapping[str, object],
    root: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
) -> StagedOutput:
    """Return the output that an application reported; raise `SinkError` if it is not here."""
    staged = StagedOutput.found(result, storage_options, root=root)
    if staged is None:
        raise SinkError(
            f"the application reported an output of window {plan.window_id} that is not here: {dict(result)}. "
            "It must write with `window.write`, to a folder that this process sees. For your "
            "own sink, use run_job",
            window_id=plan.window_id,
        )
    return staged


@dataclass(frozen=True)
class What:
    """A run, as messages describe it."""

    text: str
    #: What happens to its windows if it fails.
    after: str


_ORDERS: Final = {
    Order.WRITE: "for",
    Order.FIND: "to look in its table for",
    Order.PUBLISH: "to publish",
    Order.DISCARD: "to remove what it staged of",
}


def what_of(application: str, order: Order, named: Sequence[Named]) -> What:
    """Return the run of an application, as messages describe it."""
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    text = f"the application {application} {_ORDERS[order]} window {named[0].window_id}{more} of group {named[0].group_id}"
    if order is Order.WRITE:
        return What(text, "Nothing was committed: run the window again.")
    return What(text, "Nothing is lost: run the window again.")


def code_text(code: int) -> str:
    """Return an exit code as text; a negative one is a signal."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def log_text(place: Place, lines: int = _TAIL_LINES) -> str:
    """Return the path of the log and its last lines."""
    try:
        with Disk().open(str(place.log), trusted=True) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            tail = file.read().decode(errors="replace").splitlines()
    except OSError:
        tail = []
    last_lines = [line for line in tail if line.strip()][-lines:] if lines else []
    return f"The log: {place.log}" + "".join(f"\n  {line}" for line in last_lines)
