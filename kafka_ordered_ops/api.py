"""Define the public `OrderedWindows`: the service plus the calls that combine windows, outputs and Spark."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.arguments import check_flag, shown
from kafka_ordered_ops.core.errors import ConfigError, SinkError, WindowCoveredError
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.core.window.covered import covered_text
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import check_policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.hosting.job import arguments_of, submit_of
from kafka_ordered_ops.hosting.open_window import OpenWindow as OpenWindow
from kafka_ordered_ops.hosting.open_window import Sink, check_sink
from kafka_ordered_ops.hosting.run_result import RunResult as RunResult
from kafka_ordered_ops.hosting.run_result import run_result
from kafka_ordered_ops.hosting.window_handle import Stop, WindowHandle
from kafka_ordered_ops.output.cleaning import leftovers
from kafka_ordered_ops.output.leftovers import before, choose
from kafka_ordered_ops.output.places import OutputPlace, adopt_root
from kafka_ordered_ops.output.reported import EarlierOutputs, Reported
from kafka_ordered_ops.spark.engine import Engine
from kafka_ordered_ops.spark.environment import java_answers
from kafka_ordered_ops.spark.job_checks import (
    check_application,
    check_deployed,
    check_engine,
    check_function,
    check_output,
    check_partitioned,
    check_reading,
    check_spark,
    check_storage_options,
    check_submission,
    check_writable,
)
from kafka_ordered_ops.spark.table_target import TableTarget, table_target
from kafka_ordered_ops.windows import ClientSettings, Policy, Staged
from kafka_ordered_ops.windows import OrderedWindows as Service
from kafka_ordered_ops.windows.delivery import NEVER_PUBLISHED, discard, give_back

if TYPE_CHECKING:
    from kafka_ordered_ops.spark import SparkSubmit, TableSink
    from kafka_ordered_ops.spark.applications.tables import TableApplication

_log = logging.getLogger(__name__)

_DEFAULT_POLICY: Final = Policy()


class OrderedWindows(Service, in_steps={"open", "run"}):
    """Windows of one consumer group. `run` and `open` deliver a window; the other methods are steps and maintenance.

    ::

        windows = OrderedWindows("localhost:9092", group_id="orders-hourly")
        windows.run(Window("orders", cutoff=noon, starting_offsets="earliest"), output="/lake/orders")

    Use it as a context manager, or call `close` to close its connections. Threads may share one object and take turns.
    Every call raises `ClosedError` after `close`, and `NotShareableError` in a forked process.

    Args:
        settings: the brokers as ``host:port,...``, a mapping of librdkafka settings, or `ClientSettings`.
        group_id: the consumer group that stores the progress of the windows. It must have no live members.
        ledger_topic: the compacted topic that stores plans and progress; created on demand.
        timeout_s: time limit for each call to the cluster, retries included. Without it, a call gives up after 7 s where
            every bootstrap address refuses and none has answered this process. It does not cover reading timestamps
            (`stall_timeout_s`), the job, publishing an output, or a policy's `claim_wait`.
        lookup_timeout_s: time limit for one request; after it, the request is repeated over a new connection.
        stall_timeout_s: how long a scan or read waits while no partition moves.
        run_id: the name of the planning run, for display: for example a scheduler's run id.
        owner: the task or asset that plans the group's windows; another owner is refused. None: not checked.
        on_foreign_commit: what to do if another program moved the group's committed offset: ``fail`` or ``adopt``.
        progress: called with (offsets done, offsets in all) during a scan.
        clock: returns the time in seconds since the epoch; for tests.

    Raises:
        ConfigError: a value of the wrong type or out of range, or a setting that is not allowed.
    """

    def run(
        self,
        window: Window,
        window_id: str | None = None,
        policy: Policy = _DEFAULT_POLICY,
        *,
        output: str | os.PathLike[str] | Sink | None = None,
        table: str | None = None,
        mode: str | None = None,
        keys: str | Sequence[str] = (),
        delete_tombstones: bool = False,
        function: Callable[[OpenWindow], Any] | None = None,
        application: str | os.PathLike[str] | None = None,
        arguments: Sequence[str] = (),
        submit: SparkSubmit | Mapping[str, Any] | None = None,
        spark: Any = None,
        engine: Engine | str | None = None,
        ordered: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        partition_by: str | None = None,
    ) -> RunResult:
        """Deliver a window: plan, read, write, commit, publish. Repeating the call does only what is left.

        Without a function or an application, the records are copied to `output` or `table` unchanged. A call that fails or is
        killed commits everything or nothing, and the next call continues with the same records.

        Args:
            window: which records.
            window_id: the window's id; None: made from the group and the window's topics and times.
            policy: what to do if other windows are in the way.
            output: the folder that gets ``window_id=<times>-<digest>/`` with Parquet files, a prefix in an object store such as
                ``s3://bucket/lake/orders``, or a sink such as a `TableSink`.
            table: instead of `output`, an existing Delta or Iceberg table, ``lake.orders``; needs `spark` or an
                application. Without either a function or an application, its columns are filled from those of a record
                that have the same name.
            mode: how rows get into the table: ``append`` (the default), ``replace`` or ``merge``; see `TableSink`.
            keys: for mode ``merge``, the columns that identify a row.
            delete_tombstones: with mode ``merge``, a row whose ``value`` is null deletes the row with its key.
            function: called with the `OpenWindow` in this process. With an `output`, it calls ``window.write``.
                Without an output, a normal return means that the records were delivered, at least once.
            application: the path of a Python file, run by spark-submit; it calls ``current_window(spark)``. With a `table`,
                it is run once more after the commit, to publish.
            arguments: the arguments of the application.
            submit: the options of spark-submit.
            spark: the session that reads and writes. None: this process reads and writes, without Spark.
            engine: who reads Kafka: ``python`` or ``connector`` (Spark's executors), or ``local`` (this process).
                None: ``python`` with Spark, otherwise ``local``.
            ordered: True for total order by (timestamp, topic, partition, offset), False for the order of reading.
            storage_options: credentials and settings of an object store; None: as the environment has them. They are
                not stored anywhere, so every call needs them. Spark gets keys of S3 from them, for the output's bucket.
            partition_by: ``date`` or ``hour``: put the window's folder below ``date=2026-11-20/``, or below
                ``date=2026-11-20/hour=11/``: the UTC time at which it starts. All windows of an `output` need the same.

        Raises:
            ConfigError: an invalid argument; nothing was planned.
            SpillError: without Spark, the temporary folder for sorting fails: its disk is full, for example.
            JobFailedError: the application failed.
            KafkaOrderedOpsError: as `plan` and `commit` raise it. Exceptions of the function propagate.
        """
        self._window_id(window, window_id)
        job = _Job(
            self.settings,
            self.group_id,
            output=output,
            target=table_target(table, mode, keys, delete_tombstones, output=output),
            function=function,
            application=application,
            arguments=arguments,
            submit=submit,
            spark=spark,
            engine=engine,
            ordered=ordered,
            storage_options=storage_options,
            partition_by=partition_by,
            window=window,
        )
        plan = self.plan(window, window_id, check_policy(policy), place=job.publishes_to)
        delivery = self.deliver(plan, job.write, job.earlier)
        return run_result(self._window_id(window, window_id), plan, delivery, job.place)

    @contextlib.contextmanager
    def open(
        self,
        window: Window,
        window_id: str | None = None,
        policy: Policy = _DEFAULT_POLICY,
        *,
        output: str | os.PathLike[str] | Sink | None = None,
        table: str | None = None,
        mode: str | None = None,
        keys: str | Sequence[str] = (),
        delete_tombstones: bool = False,
        spark: Any = None,
        engine: Engine | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        partition_by: str | None = None,
    ) -> Iterator[OpenWindow]:
        """Plan a window for a ``with`` block, and commit it if the block does not raise.

        If the block raises, nothing is committed, and the next `open` resumes the same plan. Side effects of the block
        happen at least once: a crash between the end of the block and the commit repeats the block. A window that was
        committed before is read again (`OpenWindow.is_replay`), and committing it changes nothing.

        Args:
            window: which records.
            window_id: the window's id; None: made from the group and the window's topics and times.
            policy: what to do if other windows are in the way.
            output: the folder or sink for ``window.write(df)``, published after the commit.
            table, mode, keys, delete_tombstones: instead of `output`, a table; see `run`.
            spark: the session for ``window.read()``.
            engine: who reads Kafka if Spark is used.
            storage_options: as for `run`.
            partition_by: as for `run`.

        Raises:
            ConfigError: an invalid argument; nothing was planned.
            WindowCoveredError: other windows have taken all of its records; the block does not run.
            SinkError: the block ended without writing to `output`.
            KafkaOrderedOpsError: as `plan` and `commit` raise it.
        """
        self._window_id(window, window_id)
        job = _Job(
            self.settings,
            self.group_id,
            output=output,
            target=table_target(table, mode, keys, delete_tombstones, output=output),
            spark=spark,
            engine=engine,
            storage_options=storage_options,
            partition_by=partition_by,
            window=window,
            is_block=True,
        )
        plan = self.plan(window, window_id, check_policy(policy), place=job.publishes_to)
        if plan.content is PlanContent.COVERED:
            self.commit(plan)
            raise WindowCoveredError(
                f"{covered_text(plan)}. Skip it, or open it with Policy(on_covered='replay') to read the same records again",
                window_id=plan.window_id,
            )
        if plan.status.is_done:
            self.check_readable(plan)
        delivered: list[Staged] = []
        try:
            with job.opened(plan) as opened:
                yield opened
                delivered = opened.outputs(None)
            # A finished window keeps its first result unless it was written again.
            if plan.status.is_open or opened.has_output:
                self.commit(plan, delivered[0])
        except NEVER_PUBLISHED as error:
            give_back(self, [plan], error, fresh=[plan])
            discard(self, dict(zip([plan.window_id], delivered, strict=False)))
            raise

    def adopt_output(
        self,
        output: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Make this ledger the owner of a root whose windows belong to another one: after a fail-over to another cluster.

        What is published stays as it is, and is never replaced by windows of this ledger.

        Args:
            output: the root of the outputs.
            storage_options: credentials and settings of an object store.

        Returns:
            The former owner, as ``cluster id/ledger topic id``; None if there was none, or it was this ledger.

        Raises:
            ConfigError: an invalid root or option.
            LedgerUnavailableError: this ledger does not exist yet: plan a window first.
            SinkError: the file system or the store failed.
        """
        return adopt_root(output, self.existing_ledger_id(), storage_options)

    def clean(
        self,
        output: str | os.PathLike[str],
        *,
        older_than: timedelta | str = "P1D",
        storage_options: Mapping[str, Any] | None = None,
    ) -> int:
        """Remove what attempts of all groups have staged below a root and nobody will publish; return how many files.

        Published files are not touched, nor the output of a window that is open, or committed and not published yet.

        Args:
            output: the root of the outputs.
            older_than: how long ago a stage was last written to. Longer than a job may take.
            storage_options: credentials and settings of an object store.

        Raises:
            ConfigError: an invalid argument.
            OutputOwnedError: the root belongs to another ledger.
            SinkError: the file system or the store failed.
        """
        old = before(older_than, what="older_than")
        stages = leftovers(output, storage_options)
        ledger_id = self.existing_ledger_id()
        dead = choose(stages, old, ledger_id=ledger_id, needed=self.needed_outputs).dead
        return sum(map(stages.remove, dead)) + stages.remove_probes(old)


@dataclass(frozen=True)
class _Earlier:
    """Finds what earlier attempts have delivered: in a sink first, then in files and reports."""

    sink: Callable[[Mapping[str, Any]], Staged | None] | None
    files: EarlierOutputs

    def __call__(self, result: Mapping[str, Any]) -> Staged | None:
        return (self.sink(result) if self.sink is not None else None) or self.files(result)

    def elsewhere(self, result: Mapping[str, Any]) -> Staged | None:
        """Return the output of a published window that is not in this place."""
        return self.files.elsewhere(result)

    def left(self, result: Mapping[str, Any]) -> Staged | None:
        """Return the output of another window of the group, if it was written to this place."""
        return (self.sink(result) if self.sink is not None else None) or self.files.left(result)


@dataclass(frozen=True, eq=False)
class _Job:
    """The job of a window; checked when it is created, before the window is planned."""

    settings: ClientSettings
    group_id: str
    output: str | os.PathLike[str] | Sink | None = None
    target: TableTarget | None = None
    function: Callable[[OpenWindow], Any] | None = None
    application: str | os.PathLike[str] | None = None
    arguments: Sequence[str] = ()
    submit: SparkSubmit | Mapping[str, Any] | None = None
    spark: Any = None
    engine: Engine | str | None = None
    ordered: bool = True
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    partition_by: str | None = None
    window: Window | None = None
    #: True if a block does the work: then neither a function nor an output is required.
    is_block: bool = False

    def __post_init__(self) -> None:
        check_flag(self.ordered, what="ordered")
        if self.spark is not None:
            check_spark(self.spark)
        if self.engine is not None:
            check_engine(self.engine)
        self._check_combination()
        check_partitioned(
            self.partition_by, self.folder, [] if self.window is None else [self.window]
        )
        if self.application is not None:
            from kafka_ordered_ops.spark import SparkSubmit

            arguments_of(self.arguments)
            how = submit_of(self.submit) or SparkSubmit()
            check_deployed(
                how, self.folder, table=None if self.target is None else self.target.table
            )
            check_submission(self.application, self.settings, how)
        if self.function is not None:
            check_function(self.function, "window", keywords={})
        if self.spark is not None or self.application is not None:
            conf = None if self.spark is None else dict[str, str]()
            check_reading(self._engine, self.settings, conf=conf, group_id=self.group_id)
        if self.folder is not None:
            check_writable(self.folder, self.storage_options, self.partition_by)
        else:
            check_storage_options(self.storage_options, None)
        if self._table is not None and self.function is None and not self.is_block:
            self._table.check_copy()

    @property
    def place(self) -> str | None:
        """The folder or the table for the window's rows; None for a sink."""
        return self.folder if self.target is None else self.target.table

    @property
    def folder(self) -> str | None:
        """The folder for the window's files."""
        if self.output is None or self._sink is not None:
            return None
        return check_output(self.output)

    @property
    def publishes_to(self) -> OutputPlace | None:
        """Where files are published; None: they are not."""
        if self.folder is None:
            return None
        return OutputPlace(self.folder, self.storage_options, self.partition_by)

    @property
    def earlier(self) -> _Earlier:
        """What finds the outputs of earlier attempts."""
        return _Earlier(self._find, EarlierOutputs(self.folder, self.storage_options))

    def write(self, plan: WindowPlan) -> Staged:
        """Write the window."""
        with java_answers(), self.opened(plan) as window:
            if self.application is not None:
                return self._submitted(window)
            if self.function is not None:
                return window.outputs(self.function(window))[0]
            if self.spark is not None:
                rows = window.read()
                return window.write(rows if self._table is None else self._table.fitting(rows))
            return window.copy()

    @contextlib.contextmanager
    def opened(self, plan: WindowPlan) -> Iterator[OpenWindow]:
        """Open the window until the block ends."""
        handle = WindowHandle(
            [plan],
            self.settings,
            output=self.folder,
            ordered=self.ordered,
            engine=self._engine,
            lacks="there is no folder to write the window to: give output=, or write(df, path) one",
            stop=Stop("this process"),
            say=_log.info,
            storage_options=self.storage_options,
            table=None if self.application is None else self.target,
            partition_by=self.partition_by,
        )
        window = OpenWindow(handle, spark=self.spark, sink=self._sink)
        with contextlib.closing(window):
            yield window

    @cached_property
    def _table(self) -> TableSink | None:
        if self.target is None or self.application is not None:
            return None
        from kafka_ordered_ops.spark.write.table_windows import table_sink

        return table_sink(self.spark, self.target)

    @property
    def _find(self) -> Callable[[Mapping[str, Any]], Staged | None] | None:
        """What looks for an earlier attempt's output elsewhere than in files."""
        if self._table is None:
            return self._by if self._sink is None else self._sink.found
        from kafka_ordered_ops.spark.write.table_windows import found_in_table

        return partial(found_in_table, self._table)

    @cached_property
    def _by(self) -> TableApplication | None:
        """The application that writes and publishes the table's rows."""
        if self.target is None or self.application is None:
            return None
        from kafka_ordered_ops.spark.applications.tables import table_application

        how, arguments = submit_of(self.submit), arguments_of(self.arguments)
        return table_application(self.target, self.application, how, arguments=arguments)

    @property
    def _sink(self) -> Sink | None:
        if self._table is not None:
            return self._table
        if self.output is None or isinstance(self.output, str | os.PathLike):
            return None
        return check_sink(self.output)

    @property
    def _engine(self) -> str:
        if self.engine is not None:
            return str(self.engine)
        return (Engine.LOCAL if self._copies_alone else Engine.PYTHON).value

    @property
    def _copies_alone(self) -> bool:
        given = (self.spark, self.application, self.function)
        return not self.is_block and all(one is None for one in given)

    def _check_combination(self) -> None:
        if self.function is not None and self.application is not None:
            raise ConfigError("function and application are both given: give one of them")
        if self.target is not None and self.spark is None and self.application is None:
            raise ConfigError(
                f"table is {self.target.table!r}, which Spark writes: give spark=, a session with the table's catalogue, "
                "or application="
            )
        if self.application is None and (self.arguments or self.submit is not None):
            raise ConfigError("arguments and submit are for an application: give application=")
        if self.application is not None and self.spark is not None:
            raise ConfigError(
                "application and spark are both given: an application creates its own session. Pass a function "
                "to use this session"
            )
        if self._copies_alone:
            if self.output is None:
                raise ConfigError(
                    "there is nothing to do with the window's records: give output= (a folder or a sink), table=, function= "
                    "or application="
                )
            if self._sink is not None:
                raise ConfigError(
                    f"output is {shown(self.output)}, which takes a Spark DataFrame: give spark= as well, or a "
                    "function that creates one"
                )
            if self.engine is not None and self.engine != Engine.LOCAL:
                raise ConfigError(
                    f"engine is {str(self.engine)!r}, which reads with Spark: give spark=, or engine='local'"
                )

    def _submitted(self, window: OpenWindow) -> Staged:
        """Run the application; return its output."""
        arguments, how = arguments_of(self.arguments), submit_of(self.submit)
        application = check_application(self.application)
        if self.folder is not None or self.target is not None:
            return window.submit(application, arguments, how)
        told = window.submit_alone(application, arguments, how)
        found = Reported.found(told) if self._sink is None else self._sink.found(told)
        if self._sink is None and found is None and not _is_hidden(told):
            return Reported.of(told)
        if found is None or self._sink is None:
            raise SinkError(
                f"window {window.window_id}: the application wrote a hidden output, but run has no output= to publish it "
                "to. Nothing was committed: give the same output= (a folder or a sink) to run",
                window_id=window.window_id,
            )
        return found


def _is_hidden(report: Mapping[str, Any]) -> bool:
    """Return whether an application reports an output that waits to be published."""
    return "claim_id" in report or isinstance(report.get("write"), Mapping)
