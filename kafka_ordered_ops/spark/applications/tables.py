"""The submitter's side of an application that writes its windows to a table.

The table is committed after Kafka, in a session with the table's catalogue, which only the application has. So the
application is run again, for the same window and with the same options: `current_window` then carries out the order
(see `orders`) and ends the process, before the application's own work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.window.dead_letters import DeadLetters
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.output.writing.reported import PublishedElsewhere, Reported
from kafka_ordered_ops.output.writing.staged_output import Facts
from kafka_ordered_ops.spark.applications.protocol import Order, Submission, settings_to_text
from kafka_ordered_ops.spark.applications.result import JobProgress
from kafka_ordered_ops.spark.applications.submitter import check_windows, run
from kafka_ordered_ops.spark.job_checks import check_application, check_deployed, check_submission
from kafka_ordered_ops.spark.read.read import Engine
from kafka_ordered_ops.spark.write.table_output import KeptOutput
from kafka_ordered_ops.spark.write.table_windows import kept_for
from kafka_ordered_ops.spark.write.tables import check_whole
from kafka_ordered_ops.spec.job_outputs import check_each
from kafka_ordered_ops.spec.spark_submit import SparkSubmit
from kafka_ordered_ops.spec.table import Table


@dataclass(frozen=True, kw_only=True)
class TableApplication:
    """An application that writes windows to a table, and how to run it.

    Args:
        target: the table.
        application: the Python file; it calls `current_window`.
        arguments: its arguments.
        how: how spark-submit is run.
        log_line, cancelled: as for `run_job`.
    """

    target: Table
    application: str
    arguments: Sequence[str] = ()
    how: SparkSubmit = field(default_factory=SparkSubmit)
    log_line: Callable[[str], None] | None = None
    cancelled: Callable[[], bool] | None = None
    #: The answers to `ask`, by output.
    _known: dict[str, SubmittedTable | None] = field(default_factory=dict, repr=False)

    def check(self, settings: ClientSettings) -> str:
        """Return the application's full path; raise `ConfigError` if it cannot be run for a table."""
        check_deployed(self.how, None, table=self.target.name)
        return check_submission(self.application, settings, self.how)

    def write(
        self,
        plans: Sequence[WindowPlan],
        settings: GivenSettings,
        *,
        ordered: bool = True,
        engine: Engine | str = Engine.PYTHON,
        progress: Callable[[JobProgress], None] | None = None,
    ) -> list[SubmittedTable]:
        """Run the application for windows; return its staged outputs, as `submit_windows` does.

        Raises:
            SinkError: it wrote to something other than the table.
            ConfigError, JobFailedError, KafkaOrderedOpsError: as `run_job` does.
        """
        settings = ClientSettings.of(settings)
        check_windows(plans)
        for plan in plans:
            check_whole(plan)
        path = self.check(settings)
        engine = Engine.of(engine, settings)
        submission = Submission("", tuple(plans), None, engine.value, ordered, table=self.target)
        result = run(
            submission,
            plans,
            path,
            self.arguments,
            settings_to_text(settings),
            self.how,
            progress=progress,
            log_line=self.log_line,
            cancelled=self.cancelled,
        )
        outputs = [
            self._staged(plan, reported)
            for plan, reported in zip(plans, result.results, strict=True)
        ]
        check_each(plans, outputs)
        return outputs

    def ask(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Look for outputs of earlier attempts in one run of the application; a call then returns the answers."""
        entries = [
            entry for result in results if (entry := kept_for(self.target, result)) is not None
        ]
        waiting = [entry for entry in entries if not entry.published]
        if not waiting:
            return
        for entry, reported in zip(waiting, self.run(Order.FIND, waiting), strict=True):
            self._known[_name(entry)] = self._of(reported)

    def __call__(self, result: Mapping[str, Any]) -> SubmittedTable | Reported | None:
        """Return the output of an earlier attempt in this table; None if it is gone, or was for another table.

        Raises:
            SinkError: the table cannot be read; or it has forgotten whether the window was appended.
            ConfigError, JobFailedError, KafkaOrderedOpsError: as `run_job` does.
        """
        entry = kept_for(self.target, result)
        if entry is None:
            return Reported.found(result)
        if entry.published:
            return SubmittedTable(entry, self)
        if _name(entry) not in self._known:
            self.ask([result])
        return self._known.pop(_name(entry))

    def elsewhere(self, result: Mapping[str, Any]) -> PublishedElsewhere:
        """Return the output of a published window that was published to another place."""
        return PublishedElsewhere(result)

    def left(self, result: Mapping[str, Any]) -> SubmittedTable | None:
        """Return the output of another window of the group; raise what a call raises."""
        output = self(result)
        return None if isinstance(output, Reported) else output

    def run(self, order: Order, outputs: Sequence[KeptOutput]) -> list[Mapping[str, Any]]:
        """Run the application for an order; return its report of each output, empty for an output that is gone."""
        path = check_application(self.application)
        submission = Submission(
            "",
            (),
            None,
            Engine.PYTHON.value,
            True,
            table=self.target,
            order=order,
            outputs=tuple(entry.to_json() for entry in outputs),
        )
        result = run(
            submission,
            [entry.write for entry in outputs],
            path,
            self.arguments,
            None,
            self.how,
            log_line=self.log_line,
            cancelled=self.cancelled,
        )
        return list(result.results)

    def _of(self, reported: Mapping[str, Any]) -> SubmittedTable | None:
        entry = KeptOutput.from_json(reported)
        return None if entry is None else SubmittedTable(entry, self)

    def _staged(self, plan: WindowPlan, reported: Mapping[str, Any]) -> SubmittedTable:
        output = self._of(reported)
        if output is None or not self.target.may_be(output.entry.target):
            raise SinkError(
                f"the application reported an output of window {plan.window_id} that is not for the table "
                f"{self.target.name}: {dict(reported)}. Nothing was committed: write with `window.write(df)`",
                window_id=plan.window_id,
            )
        return output


@dataclass
class SubmittedTable:
    """The rows that an application staged for a table; a `Staged` for `OrderedWindows.commit`."""

    entry: KeptOutput
    by: TableApplication = field(repr=False, compare=False)

    @property
    def facts(self) -> Facts:
        """``records`` and ``elapsed_ms``."""
        return self.entry.facts

    @property
    def dead_letters(self) -> DeadLetters | None:
        """The records that the application has left out."""
        return self.entry.dead_letters

    def to_json(self) -> dict[str, Any]:
        """Return the same JSON for the ledger as a `TableOutput`."""
        return self.entry.to_json()

    def publish(self) -> None:
        """Make the rows visible in the table, in one commit, as `TableOutput.publish` does."""
        self.publish_with([self])

    def publish_with(self, outputs: Sequence[object]) -> None:
        """Publish this output, and those of `outputs` that the same application staged, in one run."""
        if self.entry.published:
            return
        siblings = [
            output
            for output in outputs
            if isinstance(output, SubmittedTable)
            and output.by is self.by
            and not output.entry.published
        ]
        results = self.by.run(Order.PUBLISH, [output.entry for output in siblings])
        for output, result in zip(siblings, results, strict=True):
            output.entry = _published(output.entry, result)

    def discard(self) -> None:
        """Remove the staged rows. Repeating it changes nothing."""
        if not self.entry.published:
            self.by.run(Order.DISCARD, [self.entry])


def table_application(
    target: Table, application: str | os.PathLike[str], how: SparkSubmit | None, **more: Any
) -> TableApplication:
    """Return an application for a table; without options, spark-submit runs with the defaults."""
    return TableApplication(
        target=target, application=os.fspath(application), how=how or SparkSubmit(), **more
    )


def _name(entry: KeptOutput) -> str:
    return strict_json.dumps(entry.to_json())


def _published(entry: KeptOutput, reported: Mapping[str, Any]) -> KeptOutput:
    current = KeptOutput.from_json(reported)
    if current is None or current.write != entry.write or not current.published:
        raise SinkError(
            f"the application did not report that window {entry.write.window_id} is published to {entry.target.name}. Run "
            "the window again",
            window_id=entry.write.window_id,
        )
    return current
