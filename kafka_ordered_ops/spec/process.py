"""A function that runs on each record of a window: concurrency, order, and retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.masked import masked, shown_fields
from kafka_ordered_ops.core.processing.failures import RETRIES, Backoff, WhenExhausted
from kafka_ordered_ops.core.processing.options import ProcessorOptions, WorkerKind
from kafka_ordered_ops.core.processing.scheduling import Ordering
from kafka_ordered_ops.core.templates import is_literal
from kafka_ordered_ops.spec.jobs import Name, check_call, full_name


@dataclass(frozen=True, repr=False)
class Process:
    """Call a function for each record of a window, many at a time; see `Processor`.

    Args:
        call: a plain or async function; gets a `Record`, or with `batch_size` a list of records. It fails by raising, and
            may be called again for a record, so it must be idempotent.
        keywords: its other arguments.
        ordering: ``key``: records of one partition with the same key, one after another; ``partition``; ``unordered``.
        max_concurrency: how many records or batches are processed at the same time. None means 16, or one for each core
            with processes.
        workers: ``threads``, or ``processes`` for functions that compute. Processes import the function, so it cannot be
            in a DAG file.
        timeout_s: how long the function may take for a record or a batch, which otherwise counts as failed.
        retries: attempts for a record after the first one; None means no limit.
        backoff: seconds before the next attempt, or a function of the record and its error that returns them; by default
            0.2 s, doubled up to 60 s.
        when_exhausted: what to do with a record that failed in its last attempt: ``stop`` fails the job, ``skip``, or
            ``dead-letter``.
        dead_letter_topic: an existing topic for such records.
        batch_size: the maximum number of records that the function gets at once; None means a single record, not in a
            list.

    Raises:
        ConfigError: an invalid argument, or a function that does not take these arguments.
    """

    call: Callable[..., Any]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    ordering: Ordering | str = Ordering.KEY
    max_concurrency: int | None = None
    workers: WorkerKind | str = WorkerKind.THREADS
    timeout_s: float | None = None
    retries: int | None = RETRIES
    backoff: Backoff | float | None = None
    when_exhausted: WhenExhausted | str | None = None
    dead_letter_topic: str | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        options = self.options()
        if not is_literal(self.dead_letter_topic):
            # Any name will do to check the other options.
            options["dead_letter_topic"] = "unknown"
        ProcessorOptions.of(**options).check_batch_size(self.batch_size)
        what = "record" if self.batch_size is None else "records"
        check_call(self.call, what, self.keywords, may_be_async=True)

    @property
    def function(self) -> Callable[..., Any]:
        """The function, with its other arguments."""
        return partial(self.call, **self.keywords) if self.keywords else self.call

    def options(self) -> dict[str, Any]:
        """Return the arguments of a `Processor`."""
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

    def __repr__(self) -> str:
        changed = {
            option.name: value if isinstance(value, int | float | str | None) else full_name(value)
            for option in fields(self)
            if option.name not in ("call", "keywords")
            and (value := getattr(self, option.name)) != option.default
        }
        return shown_fields(
            self, call=Name(full_name(self.call)), keywords=masked(self.keywords), **changed
        )


def check_process(job: object) -> Process:
    """Return a caller's job for each record: a function means a `Process`; raise `ConfigError` for anything else."""
    if isinstance(job, Process):
        return job
    if not callable(job) or isinstance(job, type):
        raise ConfigError(f"job is {shown(job)}: give a function of a record, or a Process")
    return Process(job)
