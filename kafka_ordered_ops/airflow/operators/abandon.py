"""Abandon as a separate task: for a window whose job failed for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import Context, errors_for_airflow
from kafka_ordered_ops.airflow.operators.follower import (
    HandedOn,
    WindowFollower,
    check_literal_output,
)
from kafka_ordered_ops.core.errors import WindowSupersededError
from kafka_ordered_ops.spark.job_checks import check_output

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan


class AbandonWindowOperator(WindowFollower):
    """Abandons a planned window that is still open, which frees its offsets. Leaves a finished window alone.

    As a teardown (``.as_teardown(setups=plan)``) it abandons a window whose job failed for good. Without it the
    window stays open, which is right if the job will be retried: later windows step around it.

    Takes the arguments of `WindowFollower`, and:

    Args:
        output: the folder that the job wrote to. Its staged files, which will never be published, are removed.
            (templated)
    """

    template_fields: Sequence[str] = (*WindowFollower.template_fields, "output_root")
    ui_color = "#f0e8e4"

    def __init__(
        self,
        *,
        window: HandedOn,
        settings_allowed: Sequence[str] = (),
        output: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(window=window, settings_allowed=settings_allowed, **kwargs)
        self.output_root = output
        check_literal_output(output)

    def execute(self, context: Context) -> None:
        """Abandon the window if it is open and still belongs to this run."""
        with errors_for_airflow(), self.open_windows(context) as windows:
            if self.output_root is not None:
                check_output(self.output_root)
            plan = self.planned(windows)
            try:
                windows.abandon(plan)
            except WindowSupersededError as error:
                # Committed, or resumed by another attempt since: no error for a run that ends.
                self.log.info("Nothing to abandon: %s", error)
                return
            self.log.info("Window %s is abandoned.", plan.window_id)
            self._discard(plan)

    def _discard(self, plan: WindowPlan) -> None:
        from kafka_ordered_ops.output.staged_output import StagedOutput

        if self.output_root is not None:
            StagedOutput.of(plan, self.output_root).discard()
