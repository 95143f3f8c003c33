"""Workers and their queue under real threads, processes and coroutines: every record once, or accounted for."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from kafka_ordered_ops import (
    ConfigError,
    FunctionTimeoutError,
    HungFunctionsError,
    ProcessingError,
    RecordFailedError,
    WorkerDiedError,
)
from kafka_ordered_ops.core.processing.failures import FailurePolicy, FixedBackoff, WhenExhausted
from kafka_ordered_ops.core.processing.progress import Progress
from kafka_ordered_ops.core.processing.scheduling import Ordering
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.processing import Record, Result
from kafka_ordered_ops.processing.work_queue import WorkQueue
from kafka_ordered_ops.processing.workers import process_workers
from kafka_ordered_ops.processing.workers.crew import WorkerKind, crew_of
from kafka_ordered_ops.processing.workers.turns import Turn
from kafka_ordered_ops.processing.workers.workers import Workers
from tests.support.work_functions import answer, burn, lengths

TPS = [TopicPartition("t", number) for number in range(3)]
DEADLINE_S = 60.0
SKIP = FailurePolicy(2, FixedBackoff(0.001), WhenExhausted.SKIP)


class Work:
    """A queue, its workers, and what came of records so far."""

    def __init__(self, queue: WorkQueue, workers: Workers) -> None:
        self.queue, self.workers = queue, workers
        self.results: list[Result] = []

    def add(self, tp: TopicPartition, values: Sequence[bytes], *, keys: int = 5) -> None:
        """Adds records from offset 0; every key comes again and again."""
        records = [
            Record(tp.topic, tp.partition, offset, 0, b"%d" % (offset % keys), value)
            for offset, value in enumerate(values)
        ]
        self.queue.add(tp, records, np.arange(len(values), dtype=np.int64), len(values))

    def take(self, count: int) -> list[Result]:
        """Takes results until there are so many, or no more come."""
        ends_at = time.monotonic() + DEADLINE_S
        while len(self.results) < count and (found := self.queue.take_results(0.1)) is not None:
            self.results += found
            assert time.monotonic() < ends_at, (
                f"stuck with {len(self.results)} of {count} results: {self.queue.counts}"
            )
        return self.results


@contextmanager
def working(
    function: Any,
    policy: FailurePolicy = SKIP,
    *,
    kind: WorkerKind = WorkerKind.THREADS,
    ordering: Ordering = Ordering.KEY,
    concurrency: int = 8,
    batch_size: int | None = None,
    timeout_s: float | None = None,
    results_max: int = 10_000,
    join_s: float = 10.0,
) -> Iterator[Work]:
    """Workers at work on three partitions; they have all ended afterwards, unless `join_s` is too short for them."""
    make = crew_of(
        function, kind, concurrency=concurrency, batch_size=batch_size, timeout_s=timeout_s
    )
    queue = WorkQueue(ordering, policy, results_max=results_max, batch_size=batch_size or 1)
    for tp in TPS:
        queue.begin(tp, Progress(0))
    workers = make(queue)
    workers.start()
    try:
        yield Work(queue, workers)
    finally:
        queue.stop()
        began = time.monotonic()
        workers.join(join_s)
        assert time.monotonic() - began < join_s + 5
        queue.end()


def until(holds: Callable[[], bool]) -> None:
    """Waits for a condition."""
    ends_at = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.002)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("ordering", Ordering)
def test_every_record_ends_once(seed: int, is_async: bool, ordering: Ordering) -> None:
    """Random failures, waits, and results that are taken late: each record has one result, and no key is out of order."""
    chance = random.Random(seed)
    begun: dict[Any, list[int]] = {}
    running: Counter[Any] = Counter()
    lock = threading.Lock()

    def shard(record: Record) -> Any:
        if ordering is Ordering.UNORDERED:
            return record.partition, record.offset
        return record.partition, record.key if ordering is Ordering.KEY else None

    def begin(record: Record) -> float:
        with lock:
            running[shard(record)] += 1
            assert running[shard(record)] == 1, "two of a shard at once"
            begun.setdefault(shard(record), []).append(record.offset)
            return chance.choice((0, 0, 0, 0.0005, 0.002))

    def end(record: Record) -> int:
        with lock:
            running[shard(record)] -= 1
            if chance.random() < 0.2:
                raise ValueError("by chance")
        return record.offset

    def plain(record: Record) -> int:
        if wait_s := begin(record):
            time.sleep(wait_s)
        return end(record)

    async def awaited(record: Record) -> int:
        if wait_s := begin(record):
            await asyncio.sleep(wait_s)
        return end(record)

    with working(awaited if is_async else plain, ordering=ordering, results_max=50) as work:
        for tp in TPS:
            work.add(tp, [b""] * 300)
        results = work.take(900)
        counts = work.queue.counts
        snapshots = work.queue.snapshots()
    assert Counter((one.record.partition, one.record.offset) for one in results) == Counter(
        (tp.partition, offset) for tp in TPS for offset in range(300)
    )
    assert all(isinstance(one.error, ValueError | None) for one in results)
    assert counts.failed == sum(one.error is not None for one in results)
    assert counts.succeeded + counts.failed == 900
    assert (counts.held, counts.in_flight) == (0, 0)
    assert counts.retried == sum(map(len, begun.values())) - 900
    assert all(offsets == sorted(offsets) for offsets in begun.values())
    assert all(one.base == 300 for one in snapshots.values())


def test_nothing_is_begun_while_results_wait() -> None:
    """Whoever does not take results holds processing, not memory."""
    with working(lambda record: None, results_max=20, concurrency=4) as work:
        work.add(TPS[0], [b""] * 5_000, keys=5_000)
        until(lambda: work.queue.counts.succeeded >= 20)
        until(lambda: work.queue.counts.in_flight == 0)
        held = work.queue.counts.held
        assert held > 5_000 - 20 - 4 * 256
        assert len(work.take(5_000)) == 5_000


def test_a_pause_begins_nothing() -> None:
    """And nothing is lost by it."""
    with working(lambda record: None) as work:
        work.queue.pause()
        work.add(TPS[0], [b""] * 100)
        time.sleep(0.1)
        assert work.queue.counts.succeeded == 0
        work.queue.resume()
        assert len(work.take(100)) == 100


def test_stop_in_the_middle_loses_nothing() -> None:
    """What is not done is neither a result nor in a snapshot, and what has begun is finished."""
    with working(lambda record: time.sleep(0.001), concurrency=4) as work:
        work.add(TPS[0], [b""] * 2_000, keys=2_000)
        work.take(100)
        work.queue.stop()
        until(lambda: work.queue.counts.in_flight == 0)
        with suppress(AssertionError):
            work.results += work.queue.take_results(0.01) or []
        done = {one.record.offset for one in work.results}
        [snapshot] = [one for tp, one in work.queue.snapshots().items() if tp == TPS[0]]
        beyond = {offset for start, end in snapshot.beyond for offset in range(start, end)}
        assert done == set(range(snapshot.base)) | beyond
        assert 100 <= len(done) < 2_000


def test_a_dropped_partition_counts_for_nothing() -> None:
    """What is being processed of it ends unheard; the others go on."""
    hold = threading.Event()

    def function(record: Record) -> None:
        if record.partition == 0:
            hold.wait(DEADLINE_S)

    with working(function) as work:
        work.add(TPS[0], [b""] * 10)
        until(lambda: work.queue.counts.in_flight > 0)
        work.queue.drop(TPS[0])
        hold.set()
        work.add(TPS[1], [b""] * 50)
        results = work.take(50)
    assert {one.record.partition for one in results} == {1}


@pytest.mark.parametrize("is_async", [False, True])
def test_nothing_waits_for_a_slow_record_but_its_key(is_async: bool) -> None:
    """Workers take many quick records at once; when one of them is slow, others take over what is behind it."""
    hold = threading.Event()
    is_slow = False

    def plain(record: Record) -> None:
        if is_slow and record.offset == 1_000:
            hold.wait(DEADLINE_S)

    async def awaited(record: Record) -> None:
        while is_slow and record.offset == 1_000 and not hold.is_set():
            await asyncio.sleep(0.01)

    with working(awaited if is_async else plain, ordering=Ordering.UNORDERED) as work:
        work.add(TPS[0], [b""] * 5_000)
        work.take(5_000)
        is_slow = True
        work.add(TPS[1], [b""] * 5_000)
        assert len(work.take(9_999)) == 9_999
        hold.set()
        assert len(work.take(10_000)) == 10_000


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hung_call_fails_and_its_late_result_counts_for_nothing(is_async: bool) -> None:
    """The record is tried again, by a worker in the hung one's place; with one worker, too."""
    hold = threading.Event()
    attempts: list[int] = []

    def plain(record: Record) -> str:
        attempts.append(record.attempt)
        if record.offset == 3 and record.attempt == 1:
            hold.wait(DEADLINE_S)
            return "late"
        return "in time"

    async def awaited(record: Record) -> str:
        attempts.append(record.attempt)
        if record.offset == 3 and record.attempt == 1:
            await asyncio.sleep(DEADLINE_S)
        return "in time"

    function = awaited if is_async else plain
    with working(function, concurrency=1, timeout_s=0.2) as work:
        work.add(TPS[0], [b""] * 10)
        results = work.take(10)
        hold.set()
        time.sleep(0.1)
        assert work.queue.counts.succeeded == 10
    assert [one.value for one in results] == ["in time"] * 10
    assert sorted(attempts) == [1] * 10 + [2]


def test_a_call_that_always_hangs_is_a_failure_that_says_so() -> None:
    """With its time-out; and too many of them stop processing, by name."""
    hold = threading.Event()
    stop = FailurePolicy(0)
    with working(lambda record: hold.wait(DEADLINE_S), stop, timeout_s=0.1, join_s=0.2) as work:
        work.add(TPS[0], [b""])
        until(lambda: work.queue.failure is not None)
    failure = work.queue.failure
    assert isinstance(failure, RecordFailedError)
    assert (failure.topic, failure.partition, failure.offset, failure.attempts) == ("t", 0, 0, 1)
    assert isinstance(failure.__cause__, FunctionTimeoutError)
    with working(lambda record: hold.wait(DEADLINE_S), timeout_s=0.05, join_s=0.2) as work:
        work.add(TPS[0], [b""] * 100, keys=100)
        until(lambda: work.queue.failure is not None)
    assert isinstance(work.queue.failure, HungFunctionsError)
    hold.set()


def test_a_back_off_that_raises_stops_with_a_name() -> None:
    """The record is not done."""

    def backoff(record: Record, error: BaseException) -> float:
        raise KeyError("mine")

    def fails(record: Record) -> None:
        raise ValueError("first")

    with working(fails, FailurePolicy(3, backoff)) as work:
        work.add(TPS[0], [b""])
        until(lambda: work.queue.failure is not None)
    assert isinstance(work.queue.failure, ProcessingError)
    assert isinstance(work.queue.failure.__cause__, KeyError)
    assert work.queue.counts.succeeded == 0


@pytest.mark.parametrize("kind", WorkerKind)
def test_batches_are_of_records_that_may_run_together(kind: WorkerKind) -> None:
    """Each record has its own value, and all of a batch fail together."""
    with working(lengths, kind=kind, concurrency=1, batch_size=4) as work:
        work.queue.pause()
        work.add(TPS[0], [b""] * 10, keys=5)
        work.queue.resume()
        results = work.take(10)
    sizes = [one.value for one in results]
    assert len(results) == 10
    assert max(sizes) == 4
    assert Counter(one.record.offset for one in results) == Counter(range(10))


@pytest.mark.parametrize("value", [[1], "text", 5])
def test_a_batch_with_the_wrong_number_of_values_fails(value: Any) -> None:
    """Nobody could say which record a value belongs to."""
    policy = FailurePolicy(0, when_exhausted=WhenExhausted.SKIP)
    with working(lambda records: value, policy, batch_size=5, concurrency=1) as work:
        work.queue.pause()
        work.add(TPS[0], [b""] * 4, keys=4)
        work.queue.resume()
        results = work.take(4)
    assert all(isinstance(one.error, TypeError) for one in results)


def test_a_coroutine_from_a_plain_function_is_an_error() -> None:
    """It would never have run."""

    async def later() -> None: ...

    policy = FailurePolicy(0, when_exhausted=WhenExhausted.SKIP)
    with working(lambda record: later(), policy) as work:
        work.add(TPS[0], [b""])
        [result] = work.take(1)
    assert isinstance(result.error, TypeError)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"exit", WorkerDiedError),
        (b"kill", WorkerDiedError),
        (b"hang", FunctionTimeoutError),
        (b"raise", ProcessingError),
        (b"closure", ProcessingError),
    ],
)
def test_a_process_fails_exactly_the_record_it_was_at(
    value: bytes, kind: type[BaseException]
) -> None:
    """It ends, is killed, hangs, or cannot say what happened: the others are processed, each once."""
    policy = FailurePolicy(1, FixedBackoff(0), WhenExhausted.SKIP)
    values = [b""] * 5 + [value] + [b""] * 20
    with working(answer, policy, kind=WorkerKind.PROCESSES, concurrency=2, timeout_s=5.0) as work:
        work.add(TPS[0], values, keys=7)
        results = work.take(26)
        assert work.queue.counts.retried == 1
    failed = [one for one in results if one.error is not None]
    assert Counter(one.record.offset for one in results) == Counter(range(26))
    assert [(one.record.offset, one.record.attempt, type(one.error)) for one in failed] == [
        (5, 2, kind)
    ]


def test_a_process_that_hangs_at_the_end_has_no_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed with its worker, and nothing is left."""
    started: list[object] = []
    start = process_workers._Process.start

    def noted(process: process_workers._Process) -> None:
        started.append(process)
        start(process)

    monkeypatch.setattr(process_workers._Process, "start", noted)
    before = set(threading.enumerate())
    with working(answer, kind=WorkerKind.PROCESSES, concurrency=1, join_s=0.1) as work:
        until(lambda: len(started) == 1)
        work.add(TPS[0], [b"hang"])
        until(lambda: work.queue.counts.in_flight == 1)
    until(lambda: not set(threading.enumerate()) - before)
    assert len(started) == 1


def test_workers_may_end_while_they_are_looked_at() -> None:
    """Collecting garbage lets other threads in, wherever something is allocated."""
    threshold = gc.get_threshold()

    def let_others_in(*_: object) -> None:
        time.sleep(0)

    with working(lambda _: None, concurrency=300, timeout_s=DEADLINE_S) as work:
        work.add(TPS[0], [b""] * 500, keys=1_000)
        work.take(500)
        gc.callbacks.append(let_others_in)
        gc.set_threshold(1)
        try:
            work.queue.stop()
            until(lambda: work.workers.join(0.01))
        finally:
            gc.set_threshold(*threshold)
            gc.callbacks.remove(let_others_in)
    assert work.queue.failure is None


def test_a_call_that_ends_while_it_is_given_up_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not counted among those that hang, however often it happens."""
    ended = threading.Semaphore(0)
    fence = Turn.fence

    def slow_fence(turn: Turn, began_before: float) -> list[Record]:
        if found := fence(turn, began_before):
            release.set()
            assert ended.acquire(timeout=DEADLINE_S)
        return found

    release = threading.Event()

    def function(record: Record) -> None:
        release.wait(DEADLINE_S)
        release.clear()

    finish = Workers._finish

    def noted_finish(workers: Workers, worker: int, turn: Turn) -> bool:
        goes_on = finish(workers, worker, turn)
        if turn.is_fenced:
            ended.release()
        return goes_on

    monkeypatch.setattr(Turn, "fence", slow_fence)
    monkeypatch.setattr(Workers, "_finish", noted_finish)
    policy = FailurePolicy(0, FixedBackoff(0), WhenExhausted.SKIP)
    with working(function, policy, concurrency=1, timeout_s=0.01) as work:
        work.add(TPS[0], [b""] * 20)
        results = work.take(20)
    assert {type(one.error) for one in results} == {FunctionTimeoutError}


def test_only_functions_that_reach_a_process_are_taken() -> None:
    """Before anything starts."""

    async def awaited(record: Record) -> None: ...

    for function in (lambda record: None, awaited, None):
        with pytest.raises(ConfigError):
            crew_of(
                function,  # type: ignore[arg-type]
                WorkerKind.PROCESSES,
                concurrency=1,
                batch_size=None,
                timeout_s=None,
            )


@pytest.mark.long
def test_two_processes_compute_faster_than_one() -> None:
    """The ratio itself is a benchmark's; here, that they do work side by side."""
    taken_s = []
    for concurrency in (1, 2):
        with working(burn, kind=WorkerKind.PROCESSES, concurrency=concurrency) as work:
            work.add(TPS[0], [b""] * 20, keys=1_000)
            work.take(20)
            began = time.perf_counter()
            work.add(TPS[1], [b""] * 400, keys=1_000)
            work.take(420)
            taken_s.append(time.perf_counter() - began)
    print("one process / two:", taken_s[0] / taken_s[1])
