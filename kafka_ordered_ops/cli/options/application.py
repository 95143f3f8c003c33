"""`run --application`: windows by a Spark application of the user's, in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from kafka_ordered_ops.cli.options.sink import Sink, bundled_java
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.staged_output import StagedOutput
from kafka_ordered_ops.spark.applications.result import JobProgress
from kafka_ordered_ops.spark.applications.spark_submit import SparkSubmit
from kafka_ordered_ops.spark.applications.submitter import submit_windows
from kafka_ordered_ops.spark.job_checks import (
    check_output,
    check_reading,
    check_submission,
    check_writable,
)


@dataclass(frozen=True, kw_only=True)
class JobSink(Sink):
    """A sink that may be an application of the user's."""

    application: Annotated[
        Path | None,
        typer.Option(
            "--application",
            metavar="JOB.py",
            help="Your own Spark job, run by spark-submit; without it, records are copied.",
        ),
    ] = None
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Where the application runs, as spark-submit has it; by default, as Spark is set up.",
        ),
    ] = None
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="ARGUMENT", help="The application's arguments, behind --.", show_default=False
        ),
    ] = field(default_factory=list)

    def check(self, settings: ClientSettings, group_id: str) -> None:
        """Raises `ConfigError` for a job that cannot run, before its windows are planned."""
        if self.application is None:
            if self.master is not None:
                raise ConfigError(
                    "--master says where an application runs: name one with --application"
                )
            if self.arguments:
                raise ConfigError(
                    f"{self.arguments[0]!r} and what follows would be arguments of an application: name one with "
                    "--application"
                )
            super().check(settings, group_id)
            return
        check_output(self.output)
        check_submission(self.application, settings, self._how())
        check_reading(self.engine.value, settings, conf=None, group_id=group_id)
        check_writable(self.output)

    def _stage(
        self, plans: Sequence[WindowPlan], settings: ClientSettings, screen: Screen
    ) -> Sequence[StagedOutput]:
        if self.application is None:
            return super()._stage(plans, settings, screen)
        name = self.application.name
        running = False

        def progress(now: JobProgress) -> None:
            nonlocal running
            if not running:
                screen.phase(f"running {name}", unit="tasks")
                running = True
            if now.tasks_total:
                note = f"{now.records:,} records" if now.records else ""
                screen.report(now.tasks_done, now.tasks_total, note)

        screen.phase("starting Spark")
        return submit_windows(
            plans,
            self.application,
            settings,
            self.output,
            arguments=self.arguments,
            ordered=self.ordered,
            engine=self.engine.value,
            how=self._how(),
            progress=progress,
        )

    def _how(self) -> SparkSubmit:
        return SparkSubmit(master=self.master, conf=self.conf(), java_home=bundled_java())
