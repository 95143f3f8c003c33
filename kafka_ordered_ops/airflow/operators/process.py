"""The operator that calls a function for each record of a window, and commits when all are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from kafka_ordered_ops.airflow.compat import Context, errors_for_airflow
from kafka_ordered_ops.airflow.operators.deliver_task import DeliverTask
from kafka_ordered_ops.airflow.operators.plan_task import OnEmpty, PlanTask
from kafka_ordered_ops.airflow.support.links import WindowLink
from kafka_ordered_ops.airflow.support.literals import check_native, is_literal
from kafka_ordered_ops.airflow.support.times import WindowMode
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.processing.failures import RETRIES, Backoff, WhenExhausted
from kafka_ordered_ops.core.processing.options import WorkerKind
from kafka_ordered_ops.core.processing.scheduling import Ordering
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
    WindowStatus,
)
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.hosting.arguments import arguments
from kafka_ordered_ops.hosting.process_job import ProcessJob, processed_facts
from kafka_ordered_ops.hosting.window_handle import Stop
from kafka_ordered_ops.output.writing.reported import Reported

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.windows import Delivery, OrderedWindows

#: This operator's own arguments.
_OWN = (
    "python_callable",
    "op_kwargs",
    "ordering",
    "max_concurrency",
    "workers",
    "timeout_s",
    "record_retries",
    "backoff",
    "when_exhausted",
    "dead_letter_topic",
    "batch_size",
)


class ProcessWindowOperator(DeliverTask):
    """Calls a function for each record before a time, many at a time, in order by key; commits when all are done.

    What is done is kept in the ledger every 10 s, and when the task fails or is ended. Its next attempt calls the function
    only for the records that are left. Returns, as a small XCom, the window and its counts (`facts.delivery_facts`).

    Takes the arguments of `WindowTask` and `PlanTask`, and:

    Args:
        python_callable: called as ``f(record)`` with a `Record`, or with `batch_size` with a list of them. It may be async.
            It fails by raising, and may be called again for a record: it must be idempotent.
        op_kwargs: more arguments for the function. (templated)
        ordering: ``key``: records of one partition with the same key, one after another; ``partition``; ``unordered``.
        max_concurrency: how many records, or batches, are processed at the same time. None: 16; with processes, one for
            each processor.
        workers: ``threads``, or ``processes``, for functions that compute. They import the function: it cannot be in the
            DAG's file.
        timeout_s: how long the function may take for a record or a batch, which otherwise counts as failed.
        record_retries: attempts for a record after the first one; None: without a limit. (`retries` is the task's.)
        backoff: seconds before the next attempt, or a function of the record and its error that returns them; default: from
            0.2 s, doubled up to 60 s.
        when_exhausted: what to do with a record that failed in its last attempt: ``stop`` fails the task, ``skip``, or
            ``dead-letter``.
        dead_letter_topic: an existing topic for such records. (templated)
        batch_size: how many records the function gets at once, at most; None: one, and no list.
        window_url: a page about the window, for the task's link; see `links.WindowLink`.

    Raises:
        ConfigError: an invalid argument.
        AirflowFailException: an error that no retry can fix; with the error's name.
        AirflowSkipException: there is nothing to do, and the task is to be skipped.
    """

    template_fields: Sequence[str] = (
        *PlanTask.template_fields,
        "dead_letter_topic",
        "op_kwargs",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_kwargs": "py"}
    operator_extra_links = (WindowLink(),)
    ui_color = "#f0ece0"

    def __init__(
        self,
        *,
        topics: str | Sequence[str],
        group_id: str,
        mode: WindowMode | str,
        python_callable: Callable[..., Any],
        kafka_conn_id: str | None = None,
        kafka_config_id: str | None = None,
        cutoff: datetime | str | None = None,
        since: datetime | str | None = None,
        partition_span: timedelta | None = None,
        starting_offsets: Bound | datetime | str | None = None,
        max_out_of_orderness: timedelta | str | None = None,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        exclude: str | Sequence[str] = (),
        on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
        window_id: str | None = None,
        settings_allowed: Sequence[str] = (),
        ledger_topic: str | None = None,
        on_covered: OnCovered | str = OnCovered.AUTO,
        on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND,
        claim_age: timedelta | str | None = None,
        claim_wait: timedelta | str | None = None,
        on_empty: OnEmpty | str = OnEmpty.SUCCEED,
        on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL,
        redefine: bool = False,
        max_offsets: int | str | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        ordering: Ordering | str = Ordering.KEY,
        max_concurrency: int | None = None,
        workers: WorkerKind | str = WorkerKind.THREADS,
        timeout_s: float | None = None,
        record_retries: int | None = RETRIES,
        backoff: Backoff | float | None = None,
        when_exhausted: WhenExhausted | str | None = None,
        dead_letter_topic: str | None = None,
        batch_size: int | None = None,
        window_url: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**arguments(locals(), own=_OWN))
        self.python_callable = python_callable
        self.op_kwargs = {} if op_kwargs is None else op_kwargs
        self.ordering = ordering
        self.max_concurrency = max_concurrency
        self.workers = workers
        self.timeout_s = timeout_s
        self.record_retries = record_retries
        self.backoff = backoff
        self.when_exhausted = when_exhausted
        self.dead_letter_topic = dead_letter_topic
        self.batch_size = batch_size
        self._stop = Stop("Airflow")
        self._job(is_known=is_literal).check()

    def on_kill(self) -> None:
        """Make processing end and keep what is done. Airflow calls it in a signal's handler."""
        self._stop.set()

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan, process, commit."""
        with errors_for_airflow():
            self._job().check()
        return super().execute(context)

    def _opened_job(
        self, windows: OrderedWindows, times: WindowTimes
    ) -> AbstractContextManager[ProcessJob]:
        return nullcontext(self._job())

    def _deliver(self, windows: OrderedWindows, plan: WindowPlan, job: ProcessJob) -> Delivery:
        def process(one: WindowPlan) -> Reported:
            self._stop.check(one.window_id)
            return job.process(one, windows, stopped=self._stop.__bool__, say=self._say)

        def reopen(result: Mapping[str, Any]) -> Reported | None:
            # A published window is replayed.
            return None if plan.status is WindowStatus.PUBLISHED else Reported.found(result)

        return windows.deliver(plan, process, reopen)

    def _job_facts(self, result: Any) -> Mapping[str, Any]:
        return processed_facts(result)

    def _say(self, line: str) -> None:
        self.log.info("%s", line)

    def _job(self, is_known: Callable[[Any], bool] = lambda _: True) -> ProcessJob:
        """Return the job, as far as it is known; raise `ConfigError`."""
        keywords: Any = self.op_kwargs
        check_native(keywords, "op_kwargs")
        if not isinstance(keywords, Mapping) and is_known(keywords):
            raise ConfigError(f"op_kwargs is a mapping, not a {type(keywords).__name__}")
        return ProcessJob(
            function=self.python_callable,
            # The names of a mapping are known before its values are rendered.
            keywords=keywords if isinstance(keywords, Mapping) else None,
            ordering=self.ordering,
            max_concurrency=self.max_concurrency,
            workers=self.workers,
            timeout_s=self.timeout_s,
            retries=self.record_retries,
            backoff=self.backoff,
            when_exhausted=self.when_exhausted,
            dead_letter_topic=self.dead_letter_topic,
            batch_size=self.batch_size,
        )
