"""Drivers in a cluster that go on without their submitter, and are found again: for tasks that are deferred.

The folder of a detached run is written before spark-submit starts, and the cluster manager knows the driver by the
run's token. So a folder leads to its driver, wherever the submitter died: before the cluster manager accepted it, while
it ran, or after its end. A driver without its folder ends itself. Removing a folder ends the driver.

The window keeps its attempt: a driver that is found again has read it, and its output is committed by it. A newer
attempt fences an older driver's output like that of any other attempt.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from kafka_ordered_ops.core.errors import (
    ConfigError,
    JobFailedError,
    KafkaOrderedOpsError,
    SinkError,
)
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.filesystem import as_sink_error, normal_root
from kafka_ordered_ops.output.writing.staged_output import StagedOutput
from kafka_ordered_ops.spark.applications.protocol import (
    Order,
    Submission,
    detached_runs,
    is_in_submission,
    new_place,
    remove_run,
    settings_to_text,
)
from kafka_ordered_ops.spark.applications.result import JobResult
from kafka_ordered_ops.spark.applications.submitter import (
    check_windows,
    code_text,
    command_of,
    found_output,
    log_text,
    place_root,
    spark_submit,
    what_of,
)
from kafka_ordered_ops.spark.applications.yarn import ResourceManager, YarnApplication
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.job_outputs import check_each
from kafka_ordered_ops.spec.jobs import Application

_log = logging.getLogger(__name__)

_TAGS_KEY: Final = "spark.yarn.tags"
#: spark-submit ends once the resource manager has accepted the driver.
_WAIT_KEY: Final = "spark.yarn.submit.waitAppCompletion"

#: Of a driver's error: YARN repeats the whole of its Java stack.
_DIAGNOSTICS_MAX: Final = 2_000


@dataclass(frozen=True)
class DetachedRun:
    """A run whose driver goes on without its submitter."""

    folder: PurePath
    submission: Submission
    #: When it was submitted, by the clock of the folder's disk.
    submitted_s: float

    @property
    def plan(self) -> WindowPlan:
        """The window, with the attempt that the driver works for."""
        return self.submission.plans[0]

    @property
    def tag(self) -> str:
        """The name by which the cluster manager knows the driver."""
        return _tag(self.submission.token)

    @property
    def is_in_submission(self) -> bool:
        """Whether a process still submits it."""
        return is_in_submission(self.folder)

    def output(self, application: YarnApplication | None) -> StagedOutput:
        """Return the output of a driver that has ended.

        Raises:
            JobFailedError: it failed, or was ended; or the cluster manager does not know it.
            SinkError: it ended without a result. Its stage and its files are removed, as after every failure.
        """
        try:
            return self._output(application)
        except KafkaOrderedOpsError:
            self.discard()
            raise

    def _output(self, application: YarnApplication | None) -> StagedOutput:
        plan, root = self.plan, self.submission.output or ""
        text = f"the driver of window {plan.window_id} of group {plan.group_id}"
        after = "Nothing was committed: run the window again"
        if application is None:
            raise JobFailedError(
                f"{text} is not known to YARN's resource manager (tag {self.tag}). {after}",
                window_id=plan.window_id,
            )
        logs = f"Its log: yarn logs -applicationId {application.id}"
        if not application.has_succeeded:
            why = application.diagnostics[:_DIAGNOSTICS_MAX]
            raise JobFailedError(
                f"{text} ended as {application.state}, {application.final_status}{f': {why}' if why else ''}. {after}. {logs}",
                window_id=plan.window_id,
            )
        result = JobResult.read(self.folder, self.submission.token, [plan])
        if result is None:
            raise SinkError(
                f"{text} ended without a result: it must call current_window(spark) and write with its `write`. {after}. {logs}",
                window_id=plan.window_id,
            )
        staged = found_output(plan, result.results[0], root, None)
        check_each([plan], [staged])
        return staged

    def discard(self) -> None:
        """Remove the files of a run without a commit, and what its driver staged."""
        with suppress(SinkError, ConfigError):
            StagedOutput.of(self.plan, self.submission.output or "").discard()
        self.remove()

    def end(self, manager: ResourceManager) -> None:
        """End the driver, and remove the files of the run; not what it staged, which the ledger may name."""
        end_driver(manager, self.tag)
        self.remove()

    def remove(self) -> None:
        """Remove the files of the run; a driver that still runs ends itself."""
        remove_run(str(self.folder))


def find(output: str, name: str) -> list[DetachedRun]:
    """Return the runs that were submitted under a name, the newest first; remove those whose files are damaged."""
    runs = []
    with as_sink_error(f"the files of submissions beside {output} cannot be read"):
        folders = detached_runs(place_root(normal_root(output)), name)
    for folder, submitted_s in folders:
        try:
            submission = Submission.read(folder)
        except ConfigError as error:
            _log.warning("A submission is removed, and its driver ends: %s", error)
            remove_run(str(folder))
            continue
        runs.append(DetachedRun(folder, submission, submitted_s))
    return runs


def submit_detached(
    plan: WindowPlan,
    application: str,
    job: Application,
    settings: ClientSettings,
    output: str,
    manager: ResourceManager,
    *,
    name: str,
    tries_max: int,
    engine: str,
    partition_by: str | None,
    log_line: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> DetachedRun:
    """Submit an application for a window, and return once the cluster manager has accepted its driver.

    Args:
        plan: the window.
        application: the full path of the Python file.
        job: its arguments, and how it is submitted.
        settings: the client settings.
        output: the folder for the output, which the driver sees as well.
        manager: ends a driver whose submission is cancelled.
        name: the name by which the run is found again.
        tries_max: see `Submission.tries_max`.
        engine: reads Kafka.
        partition_by: as for `run_job`.
        log_line, cancelled: as for `run_job`.

    Raises:
        JobFailedError: it was not accepted, or the submission was cancelled. No driver is left.
    """
    check_windows([plan])
    how, root = job.how, normal_root(output)
    what = what_of(application, Order.WRITE, [plan])
    submission = Submission(
        "",
        (plan,),
        root,
        engine=Engine.of(engine, settings).value,
        ordered=job.ordered,
        partition_by=partition_by,
        detached=True,
        tries_max=tries_max,
    )
    secrets = settings_to_text(settings, None)
    with new_place(place_root(root), plan, detached_for=name) as place:
        submission = replace(submission, token=place.token)
        tag = _tag(place.token)
        conf = {**how.conf, _TAGS_KEY: _with(how.conf.get(_TAGS_KEY), tag), _WAIT_KEY: "false"}
        with as_sink_error(f"the files of the run cannot be written to {place.folder}"):
            submission.write(place.folder)
            command = command_of(
                place, application, job.arguments, secrets, [plan], replace(how, conf=conf)
            )
        try:
            with spark_submit(
                command, place, how, what, log_line=log_line, cancelled=cancelled
            ) as code:
                if code != 0:
                    raise JobFailedError(
                        f"{what.text} was not submitted: spark-submit failed with {code_text(code)}. {what.after} {log_text(place)}"
                    )
        except BaseException:
            # The resource manager may have accepted it.
            end_driver(manager, tag)
            raise
        place.remove_log()
        return DetachedRun(place.folder, submission, os.fstat(place.alive).st_mtime)


def end_driver(manager: ResourceManager, tag: str) -> None:
    """End a driver; without an answer of the cluster manager, the driver ends itself when its folder is removed."""
    try:
        manager.kill(tag)
    except (ConfigError, JobFailedError) as error:
        _log.warning("A driver is left to end by itself: %s", error)


def _tag(token: str) -> str:
    return f"kafka-ordered-ops-{token}"


def _with(tags: str | None, tag: str) -> str:
    return ",".join([*([tags] if tags else []), tag])
