"""What a job of an asset is given: the windows to deliver, and the two ends of their data."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.spark.job_outputs import outputs_of

if TYPE_CHECKING:
    from kafka_ordered_ops.spark import SparkSubmit, StagedOutput
    from kafka_ordered_ops.windows import ClientSettings, Staged

_log = logging.getLogger(__name__)

#: Delivers windows into hidden places; what it returns is kept with them when it has a sink of its own.
Job = Callable[["AssetWindows"], Any]


class AssetWindows:
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
        #: The windows' exact offsets, by time; one at least.
        self.plans = tuple(plans)
        #: The partition of each window, by its id; None where the asset has none.
        self.partition_keys = partition_keys
        #: How to reach the cluster.
        self.client = client
        self.settings = settings
        #: The topic that holds plans and progress; None: the usual one.
        self.ledger_topic = ledger_topic
        #: What the job tells of all windows, for the result in Dagster.
        self.metadata: dict[str, Any] = {}
        self._say = say
        self._staged: list[Staged] | None = None

    def read(self, spark: Any, *, ordered: bool | None = None) -> Any:
        """Exactly the windows' records, one DataFrame; see `kafka_ordered_ops.spark.read_windows`.

        Its column ``window_id`` says which window a record belongs to.
        """
        from kafka_ordered_ops.spark import read_windows

        return read_windows(
            spark,
            self.plans,
            self.client,
            ordered=self.settings.ordered if ordered is None else ordered,
            engine=self.settings.engine,
        )

    def write(self, df: Any, path: str | os.PathLike[str] | None = None) -> list[StagedOutput]:
        """Writes each window's rows into a place of its own, by default below the asset's `output`.

        Raises:
            ConfigError: there is an output already, or no folder for it.
            KafkaOrderedOpsError: as `kafka_ordered_ops.spark.write_windows` does.
        """
        from kafka_ordered_ops.spark import write_window, write_windows

        folder, ordered = self._folder(path), self.settings.ordered
        if len(self.plans) == 1:
            # It counts while it writes, and needs no second look at the files.
            staged = [write_window(df, folder, self.plans[0], ordered=ordered)]
        else:
            staged = write_windows(df, folder, self.plans, ordered=ordered)
        self.report(staged)
        return staged

    def copy(self, path: str | os.PathLike[str] | None = None) -> list[StagedOutput]:
        """Copies the records as they are, as Parquet and without Spark: `kafka_ordered_ops.spark.stage_windows`.

        Raises:
            ConfigError: there is an output already, or no folder for it.
            KafkaOrderedOpsError: as `stage_windows` does.
        """
        from kafka_ordered_ops.spark import stage_windows

        staged = stage_windows(
            self.plans, self.client, self._folder(path), ordered=self.settings.ordered
        )
        self.report(staged)
        return staged

    def submit(
        self,
        application: str | os.PathLike[str],
        arguments: Sequence[str] = (),
        how: SparkSubmit | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> list[StagedOutput]:
        """Runs a Spark application for all windows by spark-submit: `kafka_ordered_ops.spark.submit_windows`.

        The application asks for its windows by `kafka_ordered_ops.spark.current_window`. A step that is ended
        ends it, with all that it has started.

        Raises:
            ConfigError: there is an output already, or no folder for it.
            KafkaOrderedOpsError: as `submit_windows` does.
        """
        from kafka_ordered_ops.spark import submit_windows

        staged = submit_windows(
            self.plans,
            application,
            self.client,
            self._folder(path),
            arguments=arguments,
            ordered=self.settings.ordered,
            engine=self.settings.engine,
            how=how,
            log_line=self._say,
        )
        self.report(staged)
        return staged

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

    def collect(self, path: str | os.PathLike[str] | None = None) -> list[StagedOutput]:
        """Takes up what a job that another program ran has written for every window.

        Raises:
            ConfigError: there is an output already, or no folder for it.
            SinkError: a window's output is not there, or not complete.
        """
        from kafka_ordered_ops.spark import StagedOutput

        folder = self._folder(path)
        places = [StagedOutput.of(plan, folder) for plan in self.plans]
        if missing := [one for one in places if not one.exists()]:
            raise SinkError(
                f"{len(missing)} of {len(places)} windows have no complete output of this try below {folder}, as "
                f"{missing[0].window_id}. The job must write with write_windows(df, output, plans), to the same "
                "folder, and with the plans that it was told of",
                window_id=missing[0].window_id,
            )
        staged = [one.as_found() for one in places]
        self.report(staged)
        return staged

    def report(self, staged: Sequence[Staged]) -> None:
        """Tells the step what a sink of your own has staged for each window, to be published after the commit.

        Raises:
            ConfigError: there is an output already, or not one for each window.
        """
        self._check_no_output()
        if len(staged) != len(self.plans):
            raise ConfigError(f"{len(self.plans)} windows and {len(staged)} outputs")
        self._staged = list(staged)

    def tell(self, metadata: Mapping[str, Any]) -> None:
        """Adds to what Dagster shows with the result, of all windows: what a job elsewhere has reported, say."""
        self.metadata.update(metadata)

    def outputs(self, returned: Any) -> list[Staged]:
        """What was written or reported, or what the job has returned, for each window.

        Raises:
            SinkError: there is a folder for outputs, and the job has neither written nor reported any; or they are
                not those of these windows.
        """
        return outputs_of(self.plans, self._staged, returned, output=self.settings.output)

    def _folder(self, path: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
        self._check_no_output()
        folder = self.settings.output if path is None else path
        if folder is None:
            raise ConfigError(
                "no folder for the windows' files: give the asset output=, or name one"
            )
        return folder

    def _check_no_output(self) -> None:
        if self._staged is not None:
            raise ConfigError("a window has one output: it was written or reported already")
