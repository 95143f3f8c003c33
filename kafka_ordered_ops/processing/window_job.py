"""Process each record of a window with a function: `process_window`, and the part of it that hosts share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.arguments import check_function, check_timeout_s
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.group.checks import check_owns_output
from kafka_ordered_ops.core.group.decisions.splitting import waiting_parts
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import check_window
from kafka_ordered_ops.output.writing.reported import Reported, returned_by
from kafka_ordered_ops.processing.plan_source import COMMIT_INTERVAL_S, PlanSource, ProgressKeeper
from kafka_ordered_ops.processing.processor import Processor
from kafka_ordered_ops.windows.checks import check_claims

if TYPE_CHECKING:
    from kafka_ordered_ops.core.processing.record import Result
    from kafka_ordered_ops.core.window.window import Window
    from kafka_ordered_ops.windows import OrderedWindows

#: Time between two progress lines.
SAY_EVERY_S: Final = 10.0
#: How long calls may continue after a host has ended the job. Airflow kills a task 5 s after the request to end, and
#: the progress must be stored before that.
STOP_TIMEOUT_S: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessedCounts:
    """The records of a window that one attempt processed."""

    succeeded: int = 0
    #: Records that failed in their last attempt: skipped, or in the dead-letter topic.
    failed: int = 0
    #: Offsets that earlier attempts processed, including offsets without a record.
    earlier_offsets: int = 0

    def reported(self) -> Reported:
        """Return the counts as the window's result."""
        # The number of records in earlier attempts is unknown.
        facts = None if self.earlier_offsets else {"records": self.succeeded + self.failed}
        counts = {
            "succeeded": self.succeeded,
            "failed": self.failed,
            "earlier_offsets": self.earlier_offsets,
        }
        return Reported.of(counts, facts)

    @classmethod
    def stored(cls, result: Any) -> ProcessedCounts:
        """Return the counts from a window's result in the ledger; zeros if another job delivered the window."""
        counts = [_counts_of(report) for report in _reports(result)]
        return cls(**{name: sum(part.get(name, 0) for part in counts) for name in cls.__slots__})


def _reports(result: Any) -> Sequence[Any]:
    """Return the reports about a window: its result, or the results of its parts."""
    parts = result.get("parts") if isinstance(result, Mapping) else None
    return parts if isinstance(parts, list | tuple) else [result]


def _counts_of(report: Any) -> Mapping[str, int]:
    result = returned_by(report)
    if not isinstance(result, Mapping):
        return {}
    return {name: count for name, count in result.items() if isinstance(count, int)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedWindow:
    """The outcome of `process_window`."""

    #: The plan with its current status; for a part, the window's status.
    plan: WindowPlan
    #: `False` if an earlier call processed the window, or if there was nothing to process.
    ran: bool
    #: The counts of the attempt that finished the window.
    counts: ProcessedCounts

    @property
    def succeeded(self) -> int:
        """The number of records that the function processed, in the attempt that finished the window."""
        return self.counts.succeeded

    @property
    def failed(self) -> int:
        """The number of records that were skipped or sent to the dead-letter topic, in the same attempt."""
        return self.counts.failed


def process_window(
    windows: OrderedWindows,
    window: Window | WindowPlan,
    function: Callable[[Any], Any],
    *,
    window_id: str | None = None,
    policy: Policy | None = None,
    processor: Processor | None = None,
    batch_size: int | None = None,
    commit_interval_s: float = COMMIT_INTERVAL_S,
    on_result: Callable[[Result], object] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ProcessedWindow:
    """Process a window's records, and commit the window when all of them are done.

    The progress is stored in the ledger at intervals, and when processing ends early. After a failure or ``kill -9``, call
    this function again with the same window: your function is called only for the records that are left. A window that
    is already committed is not processed again.

    A part that `split` returned is processed by itself and reported. Once all parts are reported, commit the whole plan.

    Args:
        windows: the service of the window's group.
        window: the records to process; or their plan, or a part of the plan.
        function: called with each `Record`; may be async.
        window_id: the window's id. `None` means an id made from the group and the window's topics and times.
        policy: what to do if other windows overlap.
        processor: how to process. `None` means a `Processor` with its defaults, for the cluster of `windows`.
        batch_size: see `Processor.run`.
        commit_interval_s: how often the progress is stored; at least every 30 s.
        on_result: called in this thread with the `Result` of each record that this call processes.
        progress: see `Processor.run`.

    Raises:
        ConfigError: an invalid argument; nothing was planned.
        PartsMissingError: the plan was split, and some parts are not processed. This call processed nothing.
        RecordFailedError: a record failed in its last attempt. Nothing was committed; the progress is stored.
        ProcessingStoppedError: `Processor.stop` was called before all records were done. Nothing was committed; the
            progress is stored.
        WindowSupersededError: another attempt has taken over the window.
        KafkaOrderedOpsError: see `Processor.run`, and `plan` and `commit` of the service.
    """
    processor = processor or Processor(windows.settings)
    processor.check(function, batch_size)
    for what, called, takes in (("on_result", on_result, 1), ("progress", progress, 2)):
        if called is not None:
            check_function(called, what=what, takes=takes)
    commit_interval_s = check_timeout_s(commit_interval_s, what="commit_interval_s")
    if isinstance(window, WindowPlan):
        if window_id is not None or policy is not None:
            raise ConfigError("a plan already has its id: omit window_id and policy")
        plan = _with_status(windows, window)
    else:
        check_window(window).check_for_function()
        plan = windows.plan(window, window_id, policy or Policy())

    def write(attempt_plan: WindowPlan) -> Reported:
        counts = process_plan(
            attempt_plan,
            function,
            processor,
            keep=windows,
            batch_size=batch_size,
            commit_interval_s=commit_interval_s,
            on_result=on_result,
            progress=progress,
        )
        return counts.reported()

    def reopen(result: Mapping[str, Any]) -> Reported | None:
        if all(
            isinstance(report, Mapping) and Reported.found(report) for report in _reports(result)
        ):
            return Reported.found(result) or ProcessedCounts.stored(result).reported()
        # A window that is done was delivered, by this job or by another one.
        return Reported() if plan.status.is_done else None

    if plan.part is not None:
        return _process_part(windows, plan, write)
    delivery = windows.deliver(plan, write, reopen)
    counts = ProcessedCounts.stored(delivery.record.result)
    return ProcessedWindow(plan=delivery.plan, ran=delivery.ran, counts=counts)


def _with_status(windows: OrderedWindows, plan: WindowPlan) -> WindowPlan:
    """Return a plan with its window's current status; raise like `process_window` if another attempt owns the window."""
    check_claims(windows.group_id, plan)
    record = windows.show(plan.window_id)
    check_owns_output(record, plan)
    return replace(plan, status=record.status)


def _process_part(
    windows: OrderedWindows, part: WindowPlan, write: Callable[[WindowPlan], Reported]
) -> ProcessedWindow:
    """Process one part of a split window and report it, unless it was reported before."""
    record = windows.show(part.window_id)
    ran = waiting_parts(record, part) is not None
    if ran:
        record = windows.report(part, write(part).to_json())
    result = record.result
    if record.parts is not None and part.part is not None:
        result = record.parts.results.get(part.part.index)
    return ProcessedWindow(
        plan=replace(part, status=record.status), ran=ran, counts=ProcessedCounts.stored(result)
    )


def process_plan(
    plan: WindowPlan,
    function: Callable[[Any], Any],
    processor: Processor,
    *,
    keep: ProgressKeeper,
    batch_size: int | None = None,
    commit_interval_s: float = COMMIT_INTERVAL_S,
    on_result: Callable[[Result], object] | None = None,
    progress: Callable[[int, int], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    say: Callable[[str], object] = _log.info,
) -> ProcessedCounts:
    """Process the remaining records of a plan, and return once all of them are done. The caller commits.

    Args:
        plan: the plan of a window. A window that is already done is read again, and processed as a whole.
        function: see `Processor.run`, also for `batch_size`.
        processor: a processor without other work: it is stopped when the job must end.
        keep: stores the progress.
        commit_interval_s: how often the progress is stored.
        on_result: called with each result.
        progress: see `Processor.run`.
        stopped: returns whether the job must end; called several times a second.
        say: called with a line about the progress from time to time.

    Raises:
        ProcessingStoppedError: the job was ended before all records were done.
        KafkaOrderedOpsError: see `Processor.run`.
    """
    if not plan.offsets:
        return ProcessedCounts()
    source = PlanSource(
        plan,
        None if plan.status.is_done else keep,
        commit_interval_s=commit_interval_s,
        progress=progress,
    )
    job = _Job(plan, source, on_result, say)
    with closing(processor.turns(source, function, batch_size)) as turns:
        try:
            for results in turns:
                job.take(results)
                if stopped():
                    processor.stop(timeout_s=STOP_TIMEOUT_S)
        except BaseException as error:
            if not isinstance(error, Exception):
                # Ctrl-C, or a host that interrupts its jobs and kills them soon after.
                processor.stop(timeout_s=STOP_TIMEOUT_S)
            raise
    return job.end()


class _Job:
    """The counts and the progress lines of one attempt."""

    def __init__(
        self,
        plan: WindowPlan,
        source: PlanSource,
        on_result: Callable[[Result], object] | None,
        say: Callable[[str], object],
    ) -> None:
        self._source = source
        self._plan, self._on_result, self._say = plan, on_result, say
        self._records = self._failed = self._said = 0
        self._said_at = time.monotonic()

    def take(self, results: Sequence[Result]) -> None:
        """Count results, and report the progress if it is due."""
        for result in results:
            self._records += 1
            self._failed += result.error is not None
            if self._on_result is not None:
                self._on_result(result)
        if (waited_s := time.monotonic() - self._said_at) >= SAY_EVERY_S:
            self._say(
                f"{self._where()}: {self._source.done_offsets():,} of {self._plan.offsets:,} offsets are done, "
                f"{self._failed:,} records have failed, {(self._records - self._said) / waited_s:,.0f} records/s"
            )
            self._said, self._said_at = self._records, time.monotonic()

    def end(self) -> ProcessedCounts:
        """Return the counts; raise `ProcessingStoppedError` unless all records are done."""
        self._source.check_whole()
        earlier = self._source.processed_before
        self._say(
            f"{self._where()}: all {self._plan.offsets:,} offsets are done; {self._records:,} records were processed, "
            f"and {self._failed:,} of them failed"
            + (f"; earlier attempts had processed {earlier:,} offsets" if earlier else "")
        )
        return ProcessedCounts(self._records - self._failed, self._failed, earlier)

    def _where(self) -> str:
        return f"window {self._plan.window_id} of group {self._plan.group_id}"
