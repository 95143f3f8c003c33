"""Define the public `OrderedWindows`: the service plus the calls that combine windows, outputs and Spark."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError, WindowCoveredError
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.types import OnCovered, PlanContent
from kafka_ordered_ops.core.window.covered import covered_text
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy, check_policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.delivery.host import Host, Stop
from kafka_ordered_ops.delivery.job import WindowJob
from kafka_ordered_ops.delivery.lineage import run_lineage
from kafka_ordered_ops.delivery.open_window import OpenWindow
from kafka_ordered_ops.delivery.open_windows import OpenWindows
from kafka_ordered_ops.delivery.run_result import RunResult as RunResult
from kafka_ordered_ops.delivery.run_result import run_result
from kafka_ordered_ops.delivery.verdict import check_same_output, delivered_again, nothing_left
from kafka_ordered_ops.output.cleaning import leftovers
from kafka_ordered_ops.output.places import adopt_root
from kafka_ordered_ops.output.roots.leftovers import before, choose
from kafka_ordered_ops.spec.destination import Folder, Output, destination_of
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.jobs import Copy, Job, job_of
from kafka_ordered_ops.windows import OrderedWindows as Service
from kafka_ordered_ops.windows.delivery import NEVER_PUBLISHED, give_back

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import Staged

_log = logging.getLogger(__name__)


class OrderedWindows(Service, in_steps={"open", "run"}):
    """Windows of one consumer group. `run` and `open` deliver a window; the other methods are steps and maintenance.

    ::

        windows = OrderedWindows("localhost:9092", group_id="orders-hourly")
        windows.run(Window("orders", cutoff=noon, starting_offsets="earliest"), "/lake/orders")

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
        stall_timeout_s: how long a scan or read waits while no partition moves, or for one whose leader is away.
        run_id: the name of the planning run, for display: for example a scheduler's run id.
        owner: the task or asset that plans the group's windows; another owner is refused. `None` disables the check.
        progress: called with (offsets done, offsets in all) during a scan.
        clock: returns the time in seconds since the epoch; for tests.

    Raises:
        ConfigError: a value of the wrong type or out of range, or a setting that is not allowed.
    """

    def run(
        self,
        window: Window,
        output: Output = None,
        *,
        job: Job | Callable[[OpenWindow], Any] | None = None,
        window_id: str | None = None,
        policy: Policy = DEFAULT_POLICY,
        spark: Any = None,
    ) -> RunResult:
        """Deliver a window: plan, read, write, commit, publish. Repeating the call does only the remaining steps.

        A finished window is left as it is; with ``Policy(on_covered="replay")`` its records are read again, and the new
        output replaces the older one. A call that fails or is killed commits everything or nothing, and the next call continues with the same records.

        Args:
            window: which records.
            output: their destination: a path or a `Folder`, which gets ``window_id=<id>/`` with Parquet files; a
                `Table`; or your own sink, such as a `TableSink`. `None` means that the job delivers them.
            job: the work on them: a function of the `OpenWindow`, a `Function`, an `Application`, or a `Copy`. `None` means
                `Copy()`.
            window_id: the window's id. Default: made from the group and the window's topics and times.
            policy: how to handle conflicts with other windows and programs.
            spark: the session that reads and writes. Without it, this process reads and writes.

        Raises:
            ConfigError: an invalid argument; nothing was planned.
            SpillError: without Spark, the temporary folder for sorting fails: its disk is full, for example.
            JobFailedError: the application failed.
            WindowMismatchError: the window is finished, and was delivered to another output.
            KafkaOrderedOpsError: as `plan` and `commit` raise it. Exceptions of the function propagate.
        """
        work = WindowJob(job=job_of(job), to=destination_of(output), spark=spark)
        name = self._window_id(window, window_id)
        work.check(self.settings, self.group_id, [window])

        def write(plan: WindowPlan) -> Staged:
            return work.deliver(self._opened(work, plan))[0]

        with (
            work.session(self.settings, [window]) as find_output,
            run_lineage(self.group_id, self.settings.bootstrap_servers) as say,
        ):
            plan = self.plan(window, window_id, check_policy(policy), place=work.place())
            [plan] = delivered_again(self, [plan], policy.on_covered)
            say(plan)
            delivery = self.deliver(plan, write, find_output)
            check_same_output(delivery, work.to)
            say(delivery.record)
        return run_result(name, plan, delivery, work.to)

    @contextlib.contextmanager
    def open(
        self,
        window: Window,
        output: Output = None,
        *,
        window_id: str | None = None,
        policy: Policy = DEFAULT_POLICY,
        spark: Any = None,
        engine: Engine | str | None = None,
    ) -> Iterator[OpenWindow]:
        """Plan a window for a ``with`` block, and commit it if the block does not raise.

        If the block raises, nothing is committed, and the next `open` resumes the same plan. Side effects of the block
        happen at least once: a crash between the end of the block and the commit repeats the block. A window that was
        committed before is read again (`OpenWindow.is_replay`), and committing it changes nothing.

        Args:
            window: which records.
            output: where ``window.write`` writes, as for `run`; published after the commit.
            window_id: the window's id. Default: made from the group and the window's topics and times.
            policy: how to handle conflicts with other windows and programs.
            spark: the session for ``window.read()``.
            engine: the engine that reads Kafka with Spark, see `Copy`.

        Raises:
            ConfigError: an invalid argument; nothing was planned.
            WindowCoveredError: other windows have taken all of its records, or the window is finished and ``on_covered``
                is skip or fail; the block does not run.
            SinkError: the block ended without writing to `output`.
            KafkaOrderedOpsError: as `plan` and `commit` raise it.
        """
        self._window_id(window, window_id)
        work = WindowJob(job=Copy(engine), to=destination_of(output), spark=spark, is_block=True)
        work.check(self.settings, self.group_id, [window])
        with work.session(self.settings, [window]):
            plan = self.plan(window, window_id, check_policy(policy), place=work.place())
            if plan.content is PlanContent.COVERED:
                self.commit(plan)
                raise WindowCoveredError(
                    f"{covered_text(plan)}. Skip it, or open it with Policy(on_covered='replay') to read the same records "
                    "again",
                    window_id=plan.window_id,
                )
            if plan.status.is_done:
                if policy.on_covered in (OnCovered.SKIP, OnCovered.FAIL):
                    raise WindowCoveredError(
                        f"{nothing_left(plan)}, and on_covered={policy.on_covered.value!r}. Use 'replay' to read the same "
                        "records again",
                        window_id=plan.window_id,
                    )
                self.check_readable(plan)
            with self._committed_after(work, plan) as opened:
                yield opened

    @contextlib.contextmanager
    def _committed_after(self, work: WindowJob, plan: WindowPlan) -> Iterator[OpenWindow]:
        delivered: list[Staged] = []
        with run_lineage(self.group_id, self.settings.bootstrap_servers) as say:
            say(plan)
            try:
                with work.opened(self._opened(work, plan)) as opened:
                    yield opened
                    delivered = opened.outputs(None)
                # A finished window keeps its first result unless it was written again.
                if plan.status.is_open or opened.has_output:
                    done = self.commit(plan, delivered[0])
                    say(WindowRecord(plan=done, result=delivered[0].to_json()))
            except NEVER_PUBLISHED as error:
                outputs = dict(zip([plan.window_id], delivered, strict=False))
                give_back(self, [plan], error, fresh=[plan], outputs=outputs)
                raise

    def _opened(self, work: WindowJob, plan: WindowPlan) -> OpenWindows:
        lacks = "there is no folder to write the window to: give output=, or use write(df, path)"
        host = Host(Stop("this process"), lacks, _log.info)
        return OpenWindows(
            [plan], self.settings, work.to, host, engine=work.engine, ordered=work.job.ordered
        )

    def adopt_output(self, output: str | os.PathLike[str] | Folder) -> str | None:
        """Make this ledger the owner of a root that belongs to another ledger, after a fail-over to another cluster.

        Published windows stay as they are, and are never replaced by windows of this ledger.

        Args:
            output: the root of the outputs.

        Returns:
            The former owner, as ``cluster id/ledger topic id``; `None` without one, or if it was this ledger.

        Raises:
            ConfigError: an invalid root.
            LedgerUnavailableError: this ledger does not exist yet: plan a window first.
            SinkError: the file system or the store failed.
        """
        folder = _folder_of(output)
        return adopt_root(folder.root, self.existing_ledger_id(), folder.storage_options)

    def clean(
        self, output: str | os.PathLike[str] | Folder, *, older_than: timedelta | str = "P1D"
    ) -> int:
        """Remove staged files of all groups below a root that no attempt will publish; return the number of files.

        Published files are not touched, nor the output of a window that is open, or committed and not published yet.

        Args:
            output: the root of the outputs.
            older_than: the least time since the last write to a stage. It must be longer than a job may take.

        Raises:
            ConfigError: an invalid argument.
            OutputOwnedError: the root belongs to another ledger.
            SinkError: the file system or the store failed.
        """
        old, folder = before(older_than, what="older_than"), _folder_of(output)
        stages = leftovers(folder.root, folder.storage_options)
        ledger_id = self.existing_ledger_id()
        dead = choose(stages, old, ledger_id=ledger_id, needed=self.needed_outputs).dead
        return sum(map(stages.remove, dead)) + stages.remove_probes(old)


def _folder_of(output: object) -> Folder:
    to = destination_of(output)
    if not isinstance(to, Folder):
        raise ConfigError(
            f"output is {shown(output)}: give the root of the outputs, a path or a Folder"
        )
    return to
