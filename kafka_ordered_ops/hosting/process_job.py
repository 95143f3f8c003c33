"""A host's job that calls a function for each record of a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.processing.failures import RETRIES, Backoff, WhenExhausted
from kafka_ordered_ops.core.processing.options import ProcessorOptions, WorkerKind
from kafka_ordered_ops.core.processing.scheduling import Ordering
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.spec.jobs import check_function

if TYPE_CHECKING:
    from kafka_ordered_ops.output.writing.reported import Reported
    from kafka_ordered_ops.windows import OrderedWindows


@dataclass(frozen=True, kw_only=True)
class ProcessJob:
    """Calls a function for each record, many at a time; see `Processor` for the meaning of the options.

    Args:
        function: plain or async; gets a `Record`, or with `batch_size` a list of them.
        keywords: more arguments of the function; None: unknown yet.
    """

    function: Callable[..., Any]
    keywords: Mapping[str, Any] | None = field(default_factory=dict)
    ordering: Ordering | str = Ordering.KEY
    max_concurrency: int | None = None
    workers: WorkerKind | str = WorkerKind.THREADS
    timeout_s: float | None = None
    retries: int | None = RETRIES
    backoff: Backoff | float | None = None
    when_exhausted: WhenExhausted | str | None = None
    dead_letter_topic: str | None = None
    batch_size: int | None = None

    def check(self) -> None:
        """Raise `ConfigError` for a job that cannot run, before its window is planned and holds its records."""
        ProcessorOptions.of(**self._options()).check_batch_size(self.batch_size)
        what = "record" if self.batch_size is None else "records"
        check_function(self.function, what, keywords=self.keywords, may_be_async=True)

    def process(
        self,
        plan: WindowPlan,
        windows: OrderedWindows,
        *,
        stopped: Callable[[], bool] = lambda: False,
        say: Callable[[str], object],
    ) -> Reported:
        """Process what is left of a window; return the counts to commit with it.

        Args:
            plan: the window's.
            windows: the service of its group, which keeps what is done.
            stopped: whether the host ends the job.
            say: receives a line of progress now and then.

        Raises:
            ProcessingStoppedError: the host has ended the job.
            KafkaOrderedOpsError: as `processing.window_job.process_plan`.
        """
        # Imported late: definitions do not process.
        from kafka_ordered_ops.processing.processor import Processor
        from kafka_ordered_ops.processing.window_job import process_plan

        function = partial(self.function, **self.keywords) if self.keywords else self.function
        with Processor(windows.settings, **self._options()) as processor:
            counts = process_plan(
                plan,
                function,
                processor,
                keep=windows,
                batch_size=self.batch_size,
                stopped=stopped,
                say=say,
            )
        return counts.reported()

    def _options(self) -> dict[str, Any]:
        return {
            "ordering": self.ordering,
            "max_concurrency": self.max_concurrency,
            "workers": self.workers,
            "timeout_s": self.timeout_s,
            "retries": self.retries,
            "backoff": self.backoff,
            "when_exhausted": self.when_exhausted,
            # A template without a value is rendered to an empty text.
            "dead_letter_topic": self.dead_letter_topic or None,
        }


def processed_facts(result: Any) -> dict[str, int]:
    """Return the counts of a window that such a job has delivered, from its result in the ledger."""
    from kafka_ordered_ops.processing.window_job import ProcessedCounts

    counts = ProcessedCounts.stored(result)
    return {name: getattr(counts, name) for name in ProcessedCounts.__slots__}
