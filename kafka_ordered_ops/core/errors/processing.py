"""Errors of per-record processing; public as `core.errors`."""

from __future__ import annotations

from kafka_ordered_ops.core.errors.base import KafkaOrderedOpsError


class ProcessingError(KafkaOrderedOpsError):
    """A function could not process its records. Progress is kept; the other records can be processed again."""


class RecordFailedError(ProcessingError):
    """A record failed in its last attempt, and processing stopped. Its error is the `__cause__`.

    It is retriable, as failed tasks are for schedulers: the next attempt of the task continues where this one stopped.
    """

    retriable = True
    topic: str
    partition: int
    offset: int
    attempts: int


class FunctionTimeoutError(ProcessingError):
    """The function took longer than `timeout_s` for a record, which counts as failed."""

    retriable = True
    timeout_s: float


class WorkerDiedError(ProcessingError):
    """A worker process died: killed, out of memory, or ended by the function. Its record counts as failed."""

    retriable = True
    #: The negative number of a signal if one killed it; None if unknown.
    exit_code: int | None


class HungFunctionsError(ProcessingError):
    """Too many calls of the function still run after their timeout, or one of them blocks the event loop."""

    retriable = True
    hung: int


class ProcessingStoppedError(ProcessingError):
    """Processing stopped before all records of a plan were done: its window must not be committed."""

    retriable = True
    #: Offsets of the plan that are not done, including offsets without a record.
    left: int
