"""OpenLineage: what a task reports to Airflow's provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.delivery.lineage import inputs_of, outputs_of, run_facets_of, window_facts

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.windows import OrderedWindows


class LineageTask:
    """A task that reports its window to Airflow's provider, as far as the window is known when the task ends."""

    #: The window's facts; empty before it is known.
    _reported: Mapping[str, Any] = {}
    _brokers = ""

    def report_lineage(self, windows: OrderedWindows, window: WindowPlan | WindowRecord) -> None:
        """Keep a planned or a delivered window for the provider, which asks at the end of the task."""
        self._reported = window_facts(window)
        self._brokers = windows.settings.bootstrap_servers

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """Return topics and output, for the OpenLineage provider."""
        return lineage_of(self._reported, self._brokers)

    def get_openlineage_facets_on_failure(self, _task_instance: Any) -> Any:
        """Return the topics of a failed task, and its output if it had committed before."""
        return lineage_of(self._reported, self._brokers)


def lineage_of(facts: Mapping[str, Any], brokers: str) -> Any:
    """Return a task's inputs and outputs, as an ``OperatorLineage``.

    Args:
        facts: the result of `window_facts`; empty before a window was planned.
        brokers: ``bootstrap.servers``; the first broker names the cluster.
    """
    # Imported here: only the OpenLineage provider calls this.
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(
        inputs=inputs_of(facts, brokers), outputs=outputs_of(facts), run_facets=run_facets_of(facts)
    )
