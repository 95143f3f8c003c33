"""A host's job that calls a function for each record of a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.spec.process import Process

if TYPE_CHECKING:
    from kafka_ordered_ops.output.writing.reported import Reported
    from kafka_ordered_ops.windows import OrderedWindows


def process(
    job: Process,
    plan: WindowPlan,
    windows: OrderedWindows,
    *,
    stopped: Callable[[], bool] = lambda: False,
    say: Callable[[str], object],
) -> Reported:
    """Process the remaining records of a window; return the counts to commit with it.

    Args:
        job: the function and its options.
        plan: the window's plan.
        windows: the service of its group, which stores the progress.
        stopped: whether the host ends the job.
        say: receives a line of progress now and then.

    Raises:
        ProcessingStoppedError: the host has ended the job.
        KafkaOrderedOpsError: as `processing.window_job.process_plan`.
    """
    # Imported late: definitions do not process.
    from kafka_ordered_ops.processing.processor import Processor
    from kafka_ordered_ops.processing.window_job import process_plan

    with Processor(windows.settings, **job.options()) as processor:
        counts = process_plan(
            plan,
            job.function,
            processor,
            keep=windows,
            batch_size=job.batch_size,
            stopped=stopped,
            say=say,
        )
    return counts.reported()


def processed_facts(result: Any) -> dict[str, int]:
    """Return the counts of a window that such a job has delivered, from its result in the ledger."""
    from kafka_ordered_ops.processing.window_job import ProcessedCounts

    counts = ProcessedCounts.stored(result)
    return {name: getattr(counts, name) for name in ProcessedCounts.__slots__}
