"""The job's side of `submit`: its windows, and the report of its output."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.writing.staged_output import StagedOutput
from kafka_ordered_ops.spark.applications.orders import carry_out
from kafka_ordered_ops.spark.applications.parent_watch import show_progress, watch
from kafka_ordered_ops.spark.applications.protocol import (
    FOLDER_KEY,
    SECRET_KEY,
    SETTINGS_NAME,
    Order,
    Submission,
    settings_from_text,
    take_private,
)
from kafka_ordered_ops.spark.applications.result import JobResult
from kafka_ordered_ops.spark.environment import check_pyspark
from kafka_ordered_ops.spark.read.read import Engine, read_windows
from kafka_ordered_ops.spark.write.table_output import TableOutput
from kafka_ordered_ops.spark.write.table_windows import write_to_table
from kafka_ordered_ops.spark.write.write_many import write_each
from kafka_ordered_ops.spec.table import Table
from kafka_ordered_ops.windows.sink import Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The settings are read once from their file, which is gone afterwards.
_CONTEXTS: Final[dict[str, WindowContext]] = {}
_LOCK: Final = threading.Lock()


@dataclass(frozen=True)
class WindowContext:
    """The windows that a job was submitted for."""

    plans: tuple[WindowPlan, ...]
    settings: ClientSettings
    #: The folder that gets the windows' outputs, as the submitter named it; None: they go to `table`.
    output: str | None
    #: The defaults of `read`.
    engine: str
    ordered: bool
    #: The folders above the windows' folders in `output`.
    partition_by: str | None
    _spark: SparkSession = field(repr=False)
    _folder: PurePath = field(repr=False)
    _token: str = field(repr=False)
    _storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    #: Instead of `output`, the table that gets the windows' rows, and how.
    table: Table | None = None

    @property
    def plan(self) -> WindowPlan:
        """The window, for a job that delivers one at a time.

        Raises:
            ConfigError: the job was submitted for several windows in one pass.
        """
        if len(self.plans) != 1:
            raise ConfigError(
                f"this job was submitted for {len(self.plans)} windows in one pass: use .plans, and tell rows "
                "apart by their window_id; or submit the windows one by one"
            )
        return self.plans[0]

    def read(
        self,
        *,
        ordered: bool | None = None,
        engine: Engine | str | None = None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> DataFrame:
        """Return exactly the windows' records, as `read_windows` does.

        Args:
            ordered: in total order, window after window; as the submitter asked when None.
            engine: who reads; as the submitter asked when None. The files of `Engine.LOCAL` are gone once
                the job has ended.
            stall_timeout_s: how long a reader waits for any partition to move.

        Raises:
            ConfigError, ReadError, BrokerError: as `read_windows` does.
        """
        engine = self.engine if engine is None else engine
        return read_windows(
            self._spark,
            self.plans,
            self.settings,
            ordered=self.ordered if ordered is None else ordered,
            engine=engine,
            # Below the output folder, which all executors see; and removed with the folder of the run.
            local_root=self._folder / "read" if engine == Engine.LOCAL else None,
            stall_timeout_s=stall_timeout_s,
        )

    def write(
        self,
        df: DataFrame,
        path: str | os.PathLike[str] | None = None,
        *,
        ordered: bool | None = None,
    ) -> tuple[StagedOutput | TableOutput, ...]:
        """Write the windows' outputs to their hidden stages, below the folder or for the table of the submitter; report them.

        Nothing is committed or visible: the submitter commits after this job has succeeded.

        Args:
            df: the result; for several windows with ``window_id``, as `write_windows` needs it.
            path: the folder for the outputs; the submitter's when None. A table takes none.
            ordered: whether to sort by (timestamp, topic, partition, offset); as the submitter asked when
                None. Rows of a table have no order.

        Returns:
            The outputs, in the order of the plans.

        Raises:
            SinkError, ReadError, BrokerError, ConfigError: as `write_window` and `write_windows` do, or for a table
                `TableSink.write`.
        """
        if self.table is not None:
            return self._write_to(self.table, df, path)
        root = self.output if path is None else path
        ordered = self.ordered if ordered is None else ordered
        options = self._storage_options if path is None else None
        if root is None:
            raise ConfigError("this job was submitted for neither a folder nor a table")
        outputs = write_each(
            df,
            root,
            self.plans,
            ordered=ordered,
            storage_options=options,
            partition_by=self.partition_by if path is None else None,
        )
        self.report(*outputs)
        return tuple(outputs)

    def _write_to(
        self, table: Table, df: DataFrame, path: str | os.PathLike[str] | None
    ) -> tuple[TableOutput, ...]:
        if path is not None:
            raise ConfigError(
                f"this job was submitted for the table {table.name}, and write has the path {shown(path)}: leave it out"
            )
        outputs = write_to_table(df, table, self.plans)
        try:
            # The submitter cannot look before it commits.
            for one in outputs:
                one.check_ready()
        except Exception:
            for one in outputs:
                one.discard()
            raise
        for one in outputs:
            if one.is_nothing:
                # Nothing is to be shown, and no other run is needed for that. What other claims have staged is not
                # for an application to remove: one of them may be committed.
                one.discard()
                one.published = True
        self.report(*outputs)
        return tuple(outputs)

    def report(self, *results: Staged | Mapping[str, Any]) -> None:
        """Report your own sink's output to the submitter; `write` does this itself.

        Args:
            results: for each window, in the order of the plans, its output, or JSON that describes it.

        Raises:
            ConfigError: not one result for each window.
        """
        if len(results) != len(self.plans):
            raise ConfigError(
                f"{len(self.plans)} windows but {len(results)} results: report one result for each window"
            )
        told = tuple(dict(one if isinstance(one, Mapping) else one.to_json()) for one in results)
        application_id = self._spark.sparkContext.applicationId
        JobResult(told, application_id).write(self._folder, self._token, self.plans)


def current_window(spark: SparkSession) -> WindowContext:
    """Return the windows that this job was submitted for, with `submit` or ``run --application``.

    From here on, the job reports its progress to the submitter, and ends if the submitter is gone. The job
    itself never commits.

    For windows that go to a table, the application is run once more to publish them: in that run this call does so,
    and the process ends with it.

    Raises:
        ConfigError: the job was started in another way, or its submitter has given up.
    """
    check_pyspark()
    name = spark.conf.get(FOLDER_KEY, None)
    if name is None:
        raise ConfigError(
            "this job was not submitted for a window: start it with kafka_ordered_ops.spark.submit or with "
            "`kafka-ordered-ops run --application`. To read a window in your own session, use "
            "read_window(spark, plan, settings)"
        )
    with _LOCK:
        context = _CONTEXTS.get(name)
        if context is None:
            context = _CONTEXTS[name] = _open(spark, PurePath(name))
        elif context._spark is not spark:
            context = replace(context, _spark=spark)
    return context


def _open(spark: SparkSession, folder: PurePath) -> WindowContext:
    submission = Submission.read(folder)
    if submission.order is not Order.WRITE:
        carry_out(spark, submission, folder)
    settings, storage_options = _settings(spark, folder)
    if spark.conf.get("spark.submit.deployMode", "client") == "cluster":
        # In client mode it was begun before the job was.
        watch(folder, parent=None)
    show_progress(spark, folder)
    return WindowContext(
        plans=submission.plans,
        settings=settings,
        output=submission.output,
        engine=submission.engine,
        ordered=submission.ordered,
        partition_by=submission.partition_by,
        _spark=spark,
        _folder=folder,
        _token=submission.token,
        _storage_options=storage_options,
        table=submission.table,
    )


def _settings(
    spark: SparkSession, folder: PurePath
) -> tuple[ClientSettings, Mapping[str, Any] | None]:
    text = spark.conf.get(SECRET_KEY, None)
    if text is not None:
        return settings_from_text(text)
    # From here on they are in this process's memory, and pickled in its readers.
    return settings_from_text(take_private(folder / SETTINGS_NAME))
