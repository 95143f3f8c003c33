"""Runs of a plan from beginning to end, however they end, in the model in memory and on a real broker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from kafka_ordered_ops import (
    ConfigError,
    NotShareableError,
    ProcessingStoppedError,
    RecordFailedError,
    Window,
    WindowPlan,
)
from kafka_ordered_ops.processing import Processor, Record
from tests.support.memory_world import MemoryWorld
from tests.support.windows_support import at
from tests.support.work_functions import answer
from tests.support.worlds import World

RECORDS = 400


@pytest.fixture
def plan(world: World) -> WindowPlan:
    """A plan of some hundred records in two partitions, with twenty keys."""
    world.create("orders", partitions=2)
    for number in range(2):
        world.write_content(
            "orders",
            number,
            [(second, b"%d" % (second % 20), b"v", ()) for second in range(RECORDS // 2)],
        )
    window = Window(world.named("orders"), cutoff=at(RECORDS), starting_offsets="earliest")
    return world.windows().plan(window)


def function_of(kind: str) -> Any:
    """A function of each kind."""

    async def awaited(record: Record) -> int:
        await asyncio.sleep(0)
        return record.offset

    return {"plain": lambda record: record.offset, "async": awaited, "process": answer}[kind]


@pytest.mark.parametrize("kind", ["plain", "async", "process"])
def test_each_record_of_a_plan_has_one_result(world: World, plan: WindowPlan, kind: str) -> None:
    """By threads, coroutines and processes."""
    workers = "processes" if kind == "process" else "threads"
    with Processor(world.settings, workers=workers) as processor:
        results = list(processor.run(plan, function_of(kind)))
    places = sorted((one.record.partition, one.record.offset) for one in results)
    assert places == [(number, offset) for number in range(2) for offset in range(RECORDS // 2)]
    assert all(one.error is None for one in results)


def test_a_record_that_fails_for_good_stops_with_its_name(world: World, plan: WindowPlan) -> None:
    """The error says which record and how often, and has the function's own as its cause."""

    def fails(record: Record) -> None:
        if (record.partition, record.offset) == (1, 70):
            raise ValueError("no such customer")

    processor = Processor(world.settings, retries=1, backoff=lambda record, error: 0.0)
    with pytest.raises(RecordFailedError, match=r"\[1\]@70 failed in attempt 2.*no such") as caught:
        list(processor.run(plan, fails))
    assert (caught.value.offset, caught.value.attempts) == (70, 2)
    assert isinstance(caught.value.__cause__, ValueError)


def test_leaving_the_iterator_ends_everything(world: World, plan: WindowPlan) -> None:
    """What has begun may end; nothing else is begun, and no thread is left."""
    begun: list[int] = []

    def function(record: Record) -> None:
        begun.append(record.offset)
        time.sleep(0.01)

    before = set(threading.enumerate())
    for _ in Processor(world.settings, max_concurrency=4).run(plan, function):
        break
    assert len(begun) < RECORDS / 2
    left = [one for one in threading.enumerate() if one not in before]
    for thread in left:
        thread.join(10)
    assert not [one.name for one in left if one.is_alive() and one.name.startswith("process-")]


def test_a_hung_function_does_not_hold_the_end(world: World, plan: WindowPlan) -> None:
    """Longer than `stop_timeout_s` and the time to close."""
    hold = threading.Event()

    def function(record: Record) -> None:
        if record.offset == 5:
            hold.wait(60)

    began = time.monotonic()
    for _ in Processor(world.settings, stop_timeout_s=0.3).run(plan, function):
        break
    assert time.monotonic() - began < 5
    hold.set()


def test_draining_ends_when_all_that_was_read_is_done(world: World, plan: WindowPlan) -> None:
    """And a plan's records that were not read are left: the iterator raises then."""
    processor = Processor(world.settings)
    count = left = 0
    try:
        for _ in processor.run(plan, lambda record: time.sleep(0.0005)):
            if not count:
                processor.stop(drain=True)
            count += 1
    except ProcessingStoppedError as error:
        left = error.left
    assert count > 0
    assert count + left == RECORDS


def test_a_pause_and_what_is_counted(world: World, plan: WindowPlan) -> None:
    """Nothing is begun in a pause."""
    with Processor(world.settings, max_concurrency=1) as processor:
        results = processor.run(plan, lambda record: time.sleep(0.001))
        next(results)
        processor.pause()
        time.sleep(0.1)
        [first] = processor.counts
        time.sleep(0.1)
        [second] = processor.counts
        assert first == second
        assert first.in_flight == 0
        processor.resume()
        rest = list(results)
    assert len(rest) == RECORDS - 1
    assert processor.counts == ()


def test_draining_ends_a_pause(world: World, plan: WindowPlan) -> None:
    """What was read could not be finished in it."""
    processor = Processor(world.settings)
    results = processor.run(plan, lambda record: time.sleep(0.0005))
    next(results)
    processor.pause()
    processor.stop(drain=True)
    with suppress(ProcessingStoppedError):
        list(results)
    assert processor.counts == ()


def test_draining_has_a_limit(world: World, plan: WindowPlan) -> None:
    """One record fails for ever; the others are done."""

    def fails(record: Record) -> None:
        if (record.partition, record.offset) == (0, 3):
            raise ValueError

    processor = Processor(world.settings, ordering="unordered", retries=None)
    results = processor.run(plan, fails)
    for _ in range(RECORDS - 1):
        next(results)
    processor.stop(drain=True, timeout_s=0.2)
    with pytest.raises(ProcessingStoppedError) as caught:
        next(results)
    assert caught.value.left == 1


@pytest.mark.parametrize("interrupt", [ValueError, KeyboardInterrupt])
def test_the_end_of_the_block_waits_for_what_is_kept(
    world: World, plan: WindowPlan, interrupt: type[BaseException]
) -> None:
    """Though somebody still holds the iterator."""
    windows = world.windows()
    processor = Processor(world.settings)
    results = processor.run(plan, lambda record: time.sleep(0.0005), keep=windows)

    def take_some() -> None:
        with processor:
            for _ in range(50):
                next(results)
            raise interrupt

    with pytest.raises(interrupt):
        take_some()
    assert sum(one.count for one in windows.processed(plan).values()) >= 50


@pytest.mark.timeout(60, method="thread")
def test_a_signal_may_come_at_any_line(memory_plan_of_some: tuple[World, WindowPlan]) -> None:
    """Its handler may ask the processor for anything."""
    world, plan = memory_plan_of_some
    processor = Processor(world.settings, max_concurrency=2)

    def handler(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename.endswith(("work_queue.py", "progress.py")):
            processor.pause()
            processor.resume()
            assert len(processor.counts) <= 1
            assert len(processor.partitions) <= 1
        return handler

    results = processor.run(plan, lambda record: time.sleep(0.0005))
    next(results)
    before = sys.gettrace()
    sys.settrace(handler)
    try:
        rest = sum(1 for _ in results if processor.partitions)
    finally:
        sys.settrace(before)
    assert rest + 1 == RECORDS


def test_a_forked_process_is_refused(
    memory_plan_of_some: tuple[World, WindowPlan],
) -> None:
    """Nobody works there, and it would wait for ever; the parent goes on."""
    world, plan = memory_plan_of_some
    processor = Processor(world.settings)
    results = processor.run(plan, lambda record: time.sleep(0.0005))
    next(results)
    child = os.fork()
    if child == 0:
        # Ends it if it hangs.
        signal.alarm(20)
        try:
            list(results)
        except NotShareableError:
            processor.stop()
            results.close()  # type: ignore[attr-defined]
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(results)) == RECORDS - 1


def test_ctrl_c_ends_within_a_second(world: World, plan: WindowPlan) -> None:
    """Whatever the function is at."""
    hold = threading.Event()
    at_s: list[float] = []

    def function(record: Record) -> None:
        if record.offset == 3:
            at_s.append(time.monotonic())
            threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()
            hold.wait(30)

    with pytest.raises(KeyboardInterrupt):
        for _ in Processor(world.settings).run(plan, function):
            pass
    # The first signal came 0.2 s after the first call that hangs.
    assert time.monotonic() - at_s[0] < 0.2 + 1
    hold.set()


@pytest.mark.parametrize(
    "options",
    [
        {"max_concurrency": 0},
        {"workers": "fibres"},
        {"timeout_s": 0},
        {"retries": -1},
        {"when_exhausted": "dead-letter"},
        {"backoff": -1},
        {"backoff": float("nan")},
        {"backoff": False},
        {"backoff": []},
        {"backoff": lambda: 1.0},
        {"backoff": ""},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    """By name, before anything is touched."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        Processor("nowhere:1", **options)


@pytest.mark.parametrize(
    ("ordering", "batch_size"), [("partition", 0), ("key", 0), ("key", 10**9), ("key", "5")]
)
def test_bad_batches_are_refused(memory_plan: WindowPlan, ordering: str, batch_size: Any) -> None:
    """When they are asked for, not with the first result."""
    with pytest.raises(ConfigError, match="batch_size"):
        Processor("nowhere:1", ordering=ordering).run(
            memory_plan, lambda records: None, batch_size=batch_size
        )


def test_a_function_that_takes_no_record_is_refused(memory_plan: WindowPlan) -> None:
    """At once, and not with each record, after all its attempts."""
    takes_nothing: Any = lambda: None  # noqa: E731
    with pytest.raises(ConfigError, match="called with 1 argument"):
        Processor("nowhere:1").run(memory_plan, takes_nothing)


@pytest.fixture
def memory_plan_of_some() -> Iterator[tuple[World, WindowPlan]]:
    """A plan of some hundred records."""
    with MemoryWorld() as world:
        world.create("orders")
        world.write_content("orders", 0, [(1.0, None, b"v", ())] * RECORDS)
        yield (
            world,
            world.windows().plan(
                Window(world.named("orders"), cutoff=at(2), starting_offsets="earliest")
            ),
        )


@pytest.fixture
def memory_plan() -> Iterator[WindowPlan]:
    """A plan of nothing."""
    with MemoryWorld() as world:
        world.create("orders")
        yield world.windows().plan(
            Window(world.named("orders"), cutoff=at(1), starting_offsets="earliest")
        )
