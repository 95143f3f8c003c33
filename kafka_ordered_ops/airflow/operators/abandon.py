"""Abandon as a separate task: for a window whose job failed for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import Context, errors_for_airflow
from kafka_ordered_ops.airflow.operators.follower import HandedOn, WindowFollower
from kafka_ordered_ops.airflow.support.places import (
    Opened,
    Output,
    check_place,
    opened_place,
    text_of,
)
from kafka_ordered_ops.core.errors import WindowSupersededError

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
        storage_conn_id: as for `OrderedWindowOperator`. (templated)
    """

    template_fields: Sequence[str] = (
        *WindowFollower.template_fields,
        "output_root",
        "storage_conn_id",
    )
    ui_color = "#f0e8e4"

    def __init__(
        self,
        *,
        window: HandedOn,
        settings_allowed: Sequence[str] = (),
        output: Output = None,
        storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(window=window, settings_allowed=settings_allowed, **kwargs)
        self.output_root = text_of(output)
        self.storage_conn_id = storage_conn_id
        check_place(self.output_root, storage_conn_id)

    def execute(self, context: Context) -> None:
        """Abandon the window if it is open and still belongs to this run."""
        with errors_for_airflow(), self.open_windows(context) as windows:
            place = opened_place(self.output_root, self.storage_conn_id, travels=False)
            plan = self.planned(windows)
            try:
                windows.abandon(plan)
            except WindowSupersededError as error:
                # Committed, or resumed by another attempt since: no error for a run that ends.
                self.log.info("Nothing to abandon: %s", error)
                return
            self.log.info("Window %s is abandoned.", plan.window_id)
            self._discard(plan, place)

    def _discard(self, plan: WindowPlan, place: Opened) -> None:
        from kafka_ordered_ops.output.writing.staged_output import StagedOutput

        root, storage_options = place
        if root is not None:
            StagedOutput.of(plan, root, storage_options).discard()
