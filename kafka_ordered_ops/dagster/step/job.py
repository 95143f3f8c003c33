"""What a job of an asset is given: the windows to deliver, and what Dagster knows of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster import MetadataValue

from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.hosting.window_handle import Stop, WindowHandle

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import ClientSettings

_log = logging.getLogger(__name__)

#: Delivers windows into hidden places; what it returns is kept with them when it has its own sink.
Job = Callable[["AssetWindows"], Any]


class AssetWindows(WindowHandle):
    """The windows that a job is to deliver in one pass: those of the step that are not delivered yet.

    What is written is hidden until the step has committed.
    """

    def __init__(
        self,
        plans: Sequence[WindowPlan],
        partition_keys: Mapping[str, str | None],
        client: ClientSettings,
        settings: WindowSettings,
        *,
        ledger_topic: str | None = None,
        say: Callable[[str], None] = _log.info,
    ) -> None:
        super().__init__(
            plans,
            client,
            output=settings.output,
            ordered=settings.ordered,
            engine=settings.engine,
            lacks="no folder for the windows' files: give the asset output=, or name one",
            # Dagster ends the process.
            stop=Stop("Dagster"),
            say=say,
        )
        #: The partition of each window, by its id; None where the asset has none.
        self.partition_keys = partition_keys
        self.settings = settings
        #: The topic that holds plans and progress; None: the usual one.
        self.ledger_topic = ledger_topic
        #: More metadata of the result in Dagster, for all windows.
        self.metadata: dict[str, Any] = {}
        self.on_page = self._tell_page

    def extras(self) -> dict[str, Any]:
        """The windows as small JSON, for a job that another program runs: Pipes' ``extras``, say.

        The job reads the plans from the ledger with `kafka_ordered_ops.spark.planned_windows`, writes with
        `write_windows` to ``output``, and this step takes it up by `collect`. No secrets.
        """
        # Imported late: the ledger's rules load more than any asset's definition needs.
        from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC

        return {
            "group": self.settings.group_id,
            "ledger_topic": self.ledger_topic or LEDGER_TOPIC,
            "output": self.settings.output,
            "attempts": {plan.window_id: plan.attempt for plan in self.plans},
            "partition_keys": {
                plan.window_id: self.partition_keys[plan.window_id] for plan in self.plans
            },
        }

    def _tell_page(self, page: str) -> None:
        _log.info("Spark job: %s", page)
        self.tell({"kafka_ordered_ops/spark_job": MetadataValue.url(page)})

    def tell(self, metadata: Mapping[str, Any]) -> None:
        """Adds to what Dagster shows with the result, of all windows: what a job elsewhere has reported, say."""
        self.metadata.update(metadata)
