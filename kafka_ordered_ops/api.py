"""Define the public `OrderedWindows`: the service plus the calls that combine windows, outputs and Spark."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import WindowCoveredError
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.core.window.covered import covered_text
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import check_policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.hosting.job import WindowJob
from kafka_ordered_ops.hosting.open_window import OpenWindow as OpenWindow
from kafka_ordered_ops.hosting.run_result import RunResult as RunResult
from kafka_ordered_ops.hosting.run_result import run_result
from kafka_ordered_ops.hosting.window_handle import Host, Stop, WindowHandle
from kafka_ordered_ops.output.cleaning import leftovers
from kafka_ordered_ops.output.places import adopt_root
from kafka_ordered_ops.output.roots.leftovers import before, choose
from kafka_ordered_ops.spec.destination import Sink, destination_of
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.jobs import Copy, job_of
from kafka_ordered_ops.spec.table import table_of_parameters
from kafka_ordered_ops.windows import OrderedWindows as Service
from kafka_ordered_ops.windows import Policy
from kafka_ordered_ops.windows.delivery import NEVER_PUBLISHED, discard, give_back

if TYPE_CHECKING:
    from kafka_ordered_ops.spec.spark_submit import SparkSubmit
    from kafka_ordered_ops.windows import Staged

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
        to = destination_of(
            output,
            table_of_parameters(table, mode, keys, delete_tombstones, output=output),
            storage_options,
            partition_by,
        )
        job = job_of(function, application, arguments, submit, engine=engine, ordered=ordered)
        self._window_id(window, window_id)
        work = WindowJob(job=job, to=to, spark=spark)
        work.check(self.settings, self.group_id, [window])

        def write(plan: WindowPlan) -> Staged:
            return work.deliver(self._opened(work, plan))[0]

        with work.session() as found:
            plan = self.plan(window, window_id, check_policy(policy), place=work.place())
            delivery = self.deliver(plan, write, found)
        return run_result(self._window_id(window, window_id), plan, delivery, work.to)

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
            output: the folder or sink for ``window.write``, published after the commit.
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
        to = destination_of(
            output,
            table_of_parameters(table, mode, keys, delete_tombstones, output=output),
            storage_options,
            partition_by,
        )
        work = WindowJob(job=Copy(engine), to=to, spark=spark, is_block=True)
        work.check(self.settings, self.group_id, [window])
        with work.session():
            plan = self.plan(window, window_id, check_policy(policy), place=work.place())
            if plan.content is PlanContent.COVERED:
                self.commit(plan)
                raise WindowCoveredError(
                    f"{covered_text(plan)}. Skip it, or open it with Policy(on_covered='replay') to read the same records "
                    "again",
                    window_id=plan.window_id,
                )
            if plan.status.is_done:
                self.check_readable(plan)
            delivered: list[Staged] = []
            try:
                with work.opened(self._opened(work, plan)) as opened:
                    yield opened
                    delivered = opened.outputs(None)
                # A finished window keeps its first result unless it was written again.
                if plan.status.is_open or opened.has_output:
                    self.commit(plan, delivered[0])
            except NEVER_PUBLISHED as error:
                give_back(self, [plan], error, fresh=[plan])
                discard(self, dict(zip([plan.window_id], delivered, strict=False)))
                raise

    def _opened(self, work: WindowJob, plan: WindowPlan) -> WindowHandle:
        lacks = "there is no folder to write the window to: give output=, or write(df, path) one"
        host = Host(Stop("this process"), lacks, _log.info)
        return WindowHandle(
            [plan], self.settings, work.to, host, engine=work.engine, ordered=work.job.ordered
        )

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
