"""Choose the workers: threads, processes, or coroutines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kafka_ordered_ops.core.arguments import check_function
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.functions import check_does_work
from kafka_ordered_ops.core.processing.options import WorkerKind as WorkerKind
from kafka_ordered_ops.processing.work_queue import WorkQueue
from kafka_ordered_ops.processing.workers.async_workers import AsyncWorkers
from kafka_ordered_ops.processing.workers.calls import (
    Decode,
    Function,
    async_call_of,
    call_of,
    is_async,
)
from kafka_ordered_ops.processing.workers.process_workers import (
    ProcessWorkers,
    pickled,
    usable_processors,
)
from kafka_ordered_ops.processing.workers.workers import ThreadWorkers, Workers

CONCURRENCY: Final = 16


def crew_of(
    function: Function,
    kind: WorkerKind,
    *,
    concurrency: int | None,
    batch_size: int | None,
    timeout_s: float | None,
    produces: bool = False,
    decode: Decode | None = None,
) -> Callable[[WorkQueue], Workers]:
    """Return a function that makes the workers of a queue.

    Args:
        function: called with a record; with a batch size, with a list of records.
        kind: where a plain function runs.
        concurrency: the number of workers. `None` means 16, or one process for each processor.
        batch_size: the maximum number of records for one call. `None` means one record, without a list.
        timeout_s: the limit of one call. `None` means no limit.
        produces: whether the function returns records to write.
        decode: returns records as the function gets them; `None` leaves bytes.

    Raises:
        ConfigError: the function cannot be called, or cannot run in workers of this kind.
    """
    check_function(function, what="the function", takes=1)
    check_does_work(function, may_be_async=True)
    in_batches, most = batch_size is not None, batch_size or 1
    if kind is WorkerKind.PROCESSES:
        if is_async(function):
            raise ConfigError(
                "an async function runs on an event loop of this process: omit workers='processes'"
            )
        processes = concurrency or usable_processors()
        sent = pickled(function, decode)
        return lambda queue: ProcessWorkers(
            sent,
            processes,
            queue,
            in_batches=in_batches,
            produces=produces,
            batch_size=most,
            timeout_s=timeout_s,
        )
    many = concurrency or CONCURRENCY
    if is_async(function):
        awaits = async_call_of(function, in_batches=in_batches, produces=produces, decode=decode)
        return lambda queue: AsyncWorkers(awaits, many, queue, batch_size=most, timeout_s=timeout_s)
    calls = call_of(function, in_batches=in_batches, produces=produces, decode=decode)
    return lambda queue: ThreadWorkers(calls, many, queue, batch_size=most, timeout_s=timeout_s)
