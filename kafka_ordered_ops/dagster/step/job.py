"""The argument of an asset's job: the windows to deliver, and their partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster import MetadataValue

from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.delivery.host import Host, Stop
from kafka_ordered_ops.delivery.job import WindowJob
from kafka_ordered_ops.delivery.open_window import OpenWindow
from kafka_ordered_ops.delivery.open_windows import OpenWindows
from kafka_ordered_ops.output.writing.reported import Reported

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import ClientSettings, OrderedWindows, Staged

_log = logging.getLogger(__name__)

#: Delivers windows to hidden stages; a job with its own sink returns a report to store with them.
Job = Callable[["AssetWindows"], Any]


class AssetWindows(OpenWindows):
    """The windows that a job must deliver in one pass: those of the step that are not delivered yet.

    Its output is hidden until the step has committed.
    """

    def __init__(
        self,
        plans: Sequence[WindowPlan],
        partition_keys: Mapping[str, str | None],
        client: ClientSettings,
        settings: WindowSettings,
        *,
        work: WindowJob,
        service: OrderedWindows | None = None,
        ledger_topic: str | None = None,
        say: Callable[[str], None] = _log.info,
    ) -> None:
        # Dagster ends the process itself, so the job has no stop signal.
        lacks = "no folder for the windows' files: give the asset output=, or pass a path"
        host = Host(Stop("Dagster"), lacks, say)
        super().__init__(
            plans,
            client,
            work.to,
            host,
            engine=work.engine,
            ordered=work.job.ordered,
        )
        self._work = work
        self._host = host
        #: The partition of each window, by its id; None for an asset without partitions.
        self.partition_keys = partition_keys
        self.settings = settings
        #: The service of their group, for jobs of this package.
        self.service = service
        #: The topic that holds plans and progress; None means the default.
        self.ledger_topic = ledger_topic
        #: More metadata of the result in Dagster, for all windows.
        self.metadata: dict[str, Any] = {}
        self.on_page = self._log_page

    def extras(self) -> dict[str, Any]:
        """Return the windows as small JSON, for a job that another program runs, such as Pipes' ``extras``.

        The job reads the plans from the ledger with `kafka_ordered_ops.spark.planned_windows`, writes with
        `write_windows` to ``output`` with ``partition_by``, and this step calls `collect`. The JSON has no secrets.
        """
        # Imported late: the ledger's rules load more than any asset's definition needs.
        from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC

        return {
            "group": self.settings.group_id,
            "ledger_topic": self.ledger_topic or LEDGER_TOPIC,
            "output": self.output,
            "partition_by": self.partition_by,
            "attempts": {plan.window_id: plan.attempt for plan in self.plans},
            "partition_keys": {
                plan.window_id: self.partition_keys[plan.window_id] for plan in self.plans
            },
        }

    def deliver(self) -> None:
        """Run the step's own job, a copy or an application, for all windows in one pass."""
        self._work.deliver(self)

    def deliver_each(self, function: Callable[[OpenWindow], Any]) -> None:
        """Call a function for each window, by time; its return value is stored with the window."""
        outputs: list[Staged] = []
        with self._work.one_session():
            for plan in self.plans:
                handle = OpenWindows(
                    [plan],
                    self.client,
                    self._work.to,
                    self._host,
                    engine=self.engine,
                    ordered=self.ordered,
                )
                handle.on_page = self._log_page
                with self._work.opened(handle) as window:
                    outputs += window.outputs(function(window))
        self.report(outputs)

    def outputs(self, returned: Any, facts: Mapping[str, Any] | None = None) -> list[Staged]:
        """Return each window's output, as of any job; a function may also return a value for each partition.

        Such a return value is a mapping whose keys are partitions of the step, or ids of its windows. Each window is stored
        with its own value, if the mapping has one.
        """
        outputs = super().outputs(returned, facts)
        names = {plan.window_id: self.partition_keys[plan.window_id] for plan in self.plans}
        is_each = isinstance(returned, Mapping) and bool(returned)
        if not is_each or not returned.keys() <= {*names, *names.values()}:
            return outputs
        return [
            replace(
                Reported.of(returned.get(name, returned.get(key))), dead_letters=output.dead_letters
            )
            if isinstance(output, Reported)
            else output
            for output, (name, key) in zip(outputs, names.items(), strict=True)
        ]

    def _log_page(self, page: str) -> None:
        _log.info("Spark job: %s", page)
        self.tell({"kafka_ordered_ops/spark_job": MetadataValue.url(page)})

    def tell(self, metadata: Mapping[str, Any]) -> None:
        """Add metadata to the result of all windows, for example the report of an external job."""
        self.metadata.update(metadata)
