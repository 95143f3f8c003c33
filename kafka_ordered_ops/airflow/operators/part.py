"""A job on one part of a window that was split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka_ordered_ops.airflow.compat import Context, errors_for_airflow
from kafka_ordered_ops.airflow.operators.follower import PlannedWindow, WindowFollower, whole_fact
from kafka_ordered_ops.airflow.operators.job_task import JobTask
from kafka_ordered_ops.airflow.support.lineage import LineageTask
from kafka_ordered_ops.airflow.support.places import Output
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.delivery.arguments import arguments
from kafka_ordered_ops.spec.jobs import Job
from kafka_ordered_ops.spec.table import Table


class WindowPartOperator(LineageTask, JobTask, WindowFollower):
    """Runs a job on one part of a window that was split, and reports it; `CommitWindowOperator` commits them all.

    ::

        plan = PlanWindowOperator(task_id="plan", parts=4, ...)
        part = WindowPartOperator.partial(task_id="part", output="/data/orders").expand(
            window=plan.output
        )
        part >> CommitWindowOperator(task_id="commit", window=plan.output, output="/data/orders")

    A part is a contiguous range of the window's offsets. All parts have about the same weight, and each is in order.
    Takes the arguments of `WindowFollower` and `JobTask`.

    Returns:
        ``window_id``, ``part``, ``parts`` and the job's ``result``.
    """

    template_fields: Sequence[str] = (
        *WindowFollower.template_fields,
        *JobTask.template_fields,
    )
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        window: PlannedWindow,
        output: Output = None,
        job: Job | Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(output, Table):
            raise ConfigError(
                f"output is the table {output.name!r}, and a part of a window cannot be written to a table: use "
                "OrderedWindowOperator for the whole window, or a folder"
            )
        super().__init__(**arguments(locals()))

    def execute(self, context: Context) -> dict[str, Any]:
        """Read, run the job, report."""
        self._ti = context.get("ti")
        # Imported late: it loads numpy, which no DAG's file needs.
        from kafka_ordered_ops.core.group.decisions.splitting import shares
        from kafka_ordered_ops.core.window.plan import PARTS_MAX

        with errors_for_airflow(self.places), self.open_windows(context) as windows:
            planned_facts = self.planned_facts()
            if not isinstance(self.window, Mapping) or "part" not in planned_facts:
                raise ConfigError(
                    "window= is a whole window, not a part: give PlanWindowOperator parts=, and expand this task over "
                    "its output"
                )
            count = whole_fact(planned_facts, "parts", least=1, greatest=PARTS_MAX)
            index = whole_fact(planned_facts, "part", greatest=count - 1)
            self.check_job(windows.settings, windows.group_id)
            part = shares(self.planned(windows), count)[index]
            # Its topics: the files become visible by the task that commits.
            self.report_lineage(windows, part)
            staged = self.run_job(part, windows.settings)
            windows.report(part, staged)
            return {
                "window_id": part.window_id,
                "part": index,
                "parts": count,
                "result": dict(staged.to_json()),
            }
