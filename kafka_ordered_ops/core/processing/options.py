"""How records are processed: the options of a `Processor`, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kafka_ordered_ops.core.arguments import check_choice, check_count, check_timeout_s
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.processing.failures import (
    RETRIES,
    Backoff,
    FailurePolicy,
    WhenExhausted,
    backoff_of,
)
from kafka_ordered_ops.core.processing.scheduling import Ordering

CONCURRENCY_MAX: Final = 10_000
BATCH_SIZE_MAX: Final = 10_000


class WorkerKind(StrEnum):
    """Where a plain function runs; an async one runs on an event loop.

    `THREADS`: for functions that mostly wait. `PROCESSES`: for functions that compute, or that may have to be killed.
    """

    THREADS = "threads"
    PROCESSES = "processes"


@dataclass(frozen=True, kw_only=True)
class ProcessorOptions:
    """The order of records, how many run at the same time, and what happens to failed records; see `Processor`."""

    ordering: Ordering
    max_concurrency: int | None
    workers: WorkerKind
    timeout_s: float | None
    policy: FailurePolicy
    dead_letter_topic: str | None

    @classmethod
    def of(
        cls,
        *,
        ordering: Ordering | str = Ordering.KEY,
        max_concurrency: int | None = None,
        workers: WorkerKind | str = WorkerKind.THREADS,
        timeout_s: float | None = None,
        retries: int | None = RETRIES,
        backoff: Backoff | float | None = None,
        when_exhausted: WhenExhausted | str | None = None,
        dead_letter_topic: str | None = None,
    ) -> ProcessorOptions:
        """Return checked options; raise `ConfigError` for invalid ones."""
        if max_concurrency is not None:
            max_concurrency = check_count(
                max_concurrency, what="max_concurrency", least=1, greatest=CONCURRENCY_MAX
            )
        if timeout_s is not None:
            timeout_s = check_timeout_s(timeout_s, what="timeout_s")
        last = WhenExhausted.STOP if dead_letter_topic is None else WhenExhausted.DEAD_LETTER
        if when_exhausted is not None:
            last = check_choice(when_exhausted, WhenExhausted, what="when_exhausted")
        if (last is WhenExhausted.DEAD_LETTER) != (dead_letter_topic is not None):
            raise ConfigError(
                "when_exhausted='dead-letter' and dead_letter_topic go together: give both"
            )
        return cls(
            ordering=check_choice(ordering, Ordering, what="ordering"),
            max_concurrency=max_concurrency,
            workers=check_choice(workers, WorkerKind, what="workers"),
            timeout_s=timeout_s,
            policy=FailurePolicy(retries, backoff_of(backoff), last),
            dead_letter_topic=dead_letter_topic,
        )

    def check_batch_size(self, batch_size: int | None) -> int | None:
        """Return the number of records that the function gets at once; raise `ConfigError` if it is invalid."""
        if batch_size is None:
            return None
        return check_count(batch_size, what="batch_size", least=1, greatest=BATCH_SIZE_MAX)
