"""Abandon as a separate task: for a window whose job failed for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import Context, errors_for_airflow
from kafka_ordered_ops.airflow.operators.follower import PlannedWindow, WindowFollower
from kafka_ordered_ops.airflow.support.places import (
    Output,
    check_known_output,
    opened_folder,
    text_of,
)
from kafka_ordered_ops.core.errors import WindowSupersededError

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.spec.destination import Folder


class AbandonWindowOperator(WindowFollower):
    """Abandons a planned window that is still open, which frees its offsets. Leaves a finished window alone.

    As a teardown (``.as_teardown(setups=plan)``) it abandons a window whose job failed for good. Without the teardown
    the window stays open, which is right if the job will be retried: later windows leave its offsets out.

    Takes the arguments of `WindowFollower`, and:

    Args:
        output: the folder that the job wrote to. Its staged files, which will never be published, are removed.
            (templated)
    """

    template_fields: Sequence[str] = (
        *WindowFollower.template_fields,
        "output_to",
    )
    ui_color = "#f0e8e4"

    def __init__(
        self,
        *,
        window: PlannedWindow,
        output: Output = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(window=window, **kwargs)
        self.output_to: Any = text_of(output)
        check_known_output(self.output_to)

    def execute(self, context: Context) -> None:
        """Abandon the window if it is open and still belongs to this run."""
        with errors_for_airflow(self.places), self.open_windows(context) as windows:
            place = opened_folder(self.output_to)
            plan = self.planned(windows)
            try:
                windows.abandon(plan)
            except WindowSupersededError as error:
                # Another attempt has committed or resumed the window: not an error for a run that ends.
                self.log.info("Nothing to abandon: %s", error)
                return
            self.log.info("Window %s is abandoned.", plan.window_id)
            self._discard(plan, place)

    def _discard(self, plan: WindowPlan, place: Folder | None) -> None:
        from kafka_ordered_ops.output.writing.staged_output import StagedOutput

        if place is not None:
            StagedOutput.of(plan, place.root, place.storage_options, place.partition_by).discard()
