"""Functions that do what no function should: no record is lost, no key out of order, and nothing waits without end."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    HungFunctionsError,
    ProcessingError,
    RecordFailedError,
    UnknownTopicError,
)
from kafka_ordered_ops.processing import Processor, Record, Result
from tests.support.memory_world import MemoryWorld
from tests.support.work_functions import emptied, unreadable

DEADLINE_S = 15.0
RECORDS = 20


@contextmanager
def in_time(processor: Processor, seconds: float = DEADLINE_S) -> Iterator[None]:
    """Stop what hangs: the test then fails, and does not wait for ever."""
    hung = threading.Event()

    def end() -> None:
        hung.set()
        processor.stop(timeout_s=0.1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        assert not hung.is_set(), "it hangs"


def run(
    memory: MemoryWorld,
    function: Any,
    *,
    batch_size: int | None = None,
    values: dict[int, bytes] | None = None,
    seconds: float = DEADLINE_S,
    made: Callable[[Processor], None] = lambda _: None,
    **options: Any,
) -> list[Result]:
    """What came of the records of a topic."""
    memory.create("orders")
    content = [(1.0, b"%d" % (n % 4), (values or {}).get(n, b"x"), ()) for n in range(RECORDS)]
    memory.write_content("orders", 0, content)
    plan = memory.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    chosen = {"retries": 0, "when_exhausted": "skip", "max_concurrency": 4, **options}
    processor = Processor(memory.settings, **chosen)
    made(processor)
    with in_time(processor, seconds):
        return list(processor.run(plan, function, batch_size=batch_size))


def failures(results: list[Result]) -> list[str]:
    """The errors' classes; every record has exactly one result."""
    assert sorted(one.record.offset for one in results) == list(range(RECORDS))
    return sorted(type(one.error).__name__ for one in results if one.error is not None)


# --- what a function raises -----------------------------------------------------------------------------

ODD = (KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit, asyncio.CancelledError)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_function_raises_fails_its_record(
    memory: MemoryWorld, kind: type[BaseException], is_async: bool
) -> None:
    """Also what would end a thread, a program or a coroutine."""

    def plain(record: Record) -> None:
        if record.offset == 7:
            raise kind

    async def coroutine(record: Record) -> None:
        await asyncio.sleep(0)
        plain(record)

    results = run(memory, coroutine if is_async else plain, timeout_s=20)
    assert len(failures(results)) == 1


class Mute(ProcessingError):
    """An error of this package's family that was never initialized, and cannot be shown."""

    def __init__(self) -> None:
        pass

    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize("options", [{"when_exhausted": "stop"}, {"dead_letter_topic": "dead"}])
def test_an_error_that_cannot_be_shown_is_an_error_all_the_same(
    memory: MemoryWorld, options: dict[str, Any]
) -> None:
    """Its class is named."""
    memory.create("dead")

    def function(record: Record) -> None:
        if record.offset == 7:
            raise Mute

    if "dead_letter_topic" in options:
        options = {"dead_letter_topic": memory.named("dead"), "when_exhausted": None}
        assert failures(run(memory, function, **options)) == ["Mute"]
    else:
        with pytest.raises(RecordFailedError, match="Mute"):
            run(memory, function, **options)


# --- what it returns ----------------------------------------------------------------------------------------


def _generator() -> Iterator[None]:
    yield


async def _nothing() -> None:
    """Do nothing."""


async def _generating() -> Any:
    yield


@pytest.mark.parametrize("work", [_generator, _nothing, _generating])
@pytest.mark.filterwarnings("ignore:coroutine")
def test_work_that_was_not_done_is_no_success(memory: MemoryWorld, work: Callable[[], Any]) -> None:
    """A wrapper hides that the function only prepares its work, and the window would be committed without it."""
    results = run(memory, lambda record: work() if record.offset == 7 else None)
    assert failures(results) == ["TypeError"]


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_batch_may_be_emptied(memory: MemoryWorld, workers: str) -> None:
    """The list is the function's own: all its records are done."""
    results = run(memory, emptied, batch_size=5, workers=workers, max_concurrency=2)
    assert failures(results) == []


def test_a_value_that_ends_whoever_reads_it_fails_its_record(memory: MemoryWorld) -> None:
    """It comes from a worker process, and its class decides what happens here. No process is blamed for it."""
    values = {3: b"exit", 5: b"away"}
    results = run(memory, unreadable, values=values, workers="processes", max_concurrency=1)
    assert failures(results) == ["OSError", "SystemExit"]
    assert len({one.value for one in results if one.error is None}) == 1


class Charge:
    """A callable object whose call is async, with an argument more."""

    async def __call__(self, record: Record, *, rate: int) -> int:
        await asyncio.sleep(0)
        return rate


def test_an_async_object_with_arguments_is_awaited(memory: MemoryWorld) -> None:
    """As `op_kwargs` of a task make it."""
    results = run(memory, functools.partial(Charge(), rate=3))
    assert (failures(results), {one.value for one in results}) == ([], {3})


# --- back-off ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ValueError, *ODD])
def test_a_back_off_that_raises_ends_processing(
    memory: MemoryWorld, kind: type[BaseException]
) -> None:
    """With its error; the record is not done."""

    def backoff(record: Record, error: BaseException) -> float:
        raise kind

    def function(record: Record) -> None:
        if record.offset == 7:
            raise ValueError

    with pytest.raises(ProcessingError, match=f"raised {kind.__name__}"):
        run(memory, function, retries=3, backoff=backoff)


@pytest.mark.parametrize("call", ["pause", "stop", "counts"])
@pytest.mark.parametrize("timeout_s", [None, 0.2])
def test_a_back_off_may_use_its_processor(
    memory: MemoryWorld, call: str, timeout_s: float | None
) -> None:
    """For example to pause when a service is away; also after a time-out."""
    found: list[Processor] = []

    def backoff(record: Record, error: BaseException) -> float:
        used = getattr(found[0], call)
        if callable(used):
            used()
        threading.Timer(0.1, found[0].resume).start()
        return 0.01

    def function(record: Record) -> None:
        if record.offset == 7 and record.attempt == 1:
            if timeout_s:
                time.sleep(2 * timeout_s)
            raise ValueError

    options: dict[str, Any] = {"retries": 3, "backoff": backoff, "timeout_s": timeout_s}
    if call == "stop":
        with pytest.raises(ProcessingError):
            run(memory, function, made=found.append, **options)
    else:
        assert failures(run(memory, function, made=found.append, **options)) == []


# --- functions that hang ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_async_function_that_blocks_its_event_loop_passes_its_time_out(
    memory: MemoryWorld,
) -> None:
    """Nobody can cancel it: processing ends with an error, instead of never."""
    gate = threading.Event()

    async def blocks(record: Record) -> None:
        if record.offset == 7:
            gate.wait(2 * DEADLINE_S)

    began = time.monotonic()
    with pytest.raises(HungFunctionsError, match="blocks its event loop"):
        run(memory, blocks, timeout_s=0.5, stop_timeout_s=0.2)
    assert time.monotonic() - began < 10
    gate.set()


def test_an_async_function_that_refuses_to_be_cancelled_passes_its_time_out(
    memory: MemoryWorld,
) -> None:
    """Others go on, and its record has failed."""
    ends_at = time.monotonic() + 5

    async def refuses(record: Record) -> None:
        while record.offset == 7 and time.monotonic() < ends_at:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    assert failures(run(memory, refuses, timeout_s=0.2)) == ["FunctionTimeoutError"]


@pytest.mark.parametrize("whose", ["its own", "all"])
def test_a_function_that_cancels_tasks_keeps_nobody_waiting(
    memory: MemoryWorld, whose: str
) -> None:
    """Each record has its result: no worker is lost, and none is interrupted for what another record did."""
    begun: list[int] = []

    async def cancels(record: Record) -> None:
        begun.append(record.offset)
        if record.offset % 5 == 1:
            task = asyncio.current_task()
            for one in asyncio.all_tasks() if whose == "all" else {task}:
                assert one is not None
                one.cancel()
        elif whose == "its own":
            await asyncio.sleep(0)

    assert failures(run(memory, cancels, max_concurrency=2)) == []


def test_what_an_async_function_leaves_behind_is_cancelled(memory: MemoryWorld) -> None:
    """As `asyncio.run` does: it can clean up."""
    cleaned: list[int] = []

    async def background(offset: int) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cleaned.append(offset)

    tasks = []

    async def function(record: Record) -> None:
        tasks.append(asyncio.create_task(background(record.offset)))
        await asyncio.sleep(0)

    assert failures(run(memory, function)) == []
    assert sorted(cleaned) == list(range(RECORDS))


def test_an_event_loop_that_is_not_needed_is_not_opened(memory: MemoryWorld) -> None:
    """Processing ends before it begins."""

    async def function(record: Record) -> None: ...

    results = Processor(memory.settings).subscribe("nowhere", function, group_id="g")
    with pytest.raises(UnknownTopicError):
        list(results)
    del results
    gc.collect()


# --- forks, and clusters that do not answer ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("error", "code"), [(None, 0), (SystemExit(3), 3), (SystemExit("no"), 1), (ValueError("no"), 1)]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_process_that_a_function_forks_ends_with_the_call(
    memory: MemoryWorld, tmp_path: Path, error: BaseException | None, code: int, is_async: bool
) -> None:
    """It works on no record; the parent works on each once."""
    notes, codes = tmp_path / "notes", []

    def plain(record: Record) -> None:
        with notes.open("a") as file:
            file.write(f"{os.getpid()} {record.offset}\n")
        if record.offset != 3:
            return
        if child := os.fork():
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        elif error is not None:
            raise error

    async def coroutine(record: Record) -> None:
        plain(record)

    assert failures(run(memory, coroutine if is_async else plain)) == []
    assert codes == [code]
    expected = [f"{os.getpid()} {offset}" for offset in range(RECORDS)]
    assert sorted(notes.read_text().splitlines()) == sorted(expected)


@pytest.mark.slow
def test_processing_stops_while_the_cluster_never_answers() -> None:
    """Connections are accepted, and nothing else comes: not even the group was joined."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        processor = Processor(f"127.0.0.1:{silent.getsockname()[1]}")
        results = processor.subscribe("orders", lambda _: None, group_id="live")
        threading.Timer(0.3, processor.stop).start()
        began = time.monotonic()
        assert list(results) == []
        assert time.monotonic() - began < 5


# --- odd options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [5, "", "a b", ".", b"dead", ["dead"]])
def test_a_dead_letter_topic_is_a_topic(memory: MemoryWorld, topic: Any) -> None:
    """Checked where it is given."""
    with pytest.raises(ConfigError, match="dead_letter_topic"):
        Processor(memory.settings, dead_letter_topic=topic)


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "5"])
def test_a_time_to_stop_is_checked(memory: MemoryWorld, timeout_s: Any) -> None:
    """Whether something runs or not."""
    with pytest.raises(ConfigError, match="timeout_s"):
        Processor(memory.settings).stop(timeout_s=timeout_s)


@pytest.mark.parametrize("how", [{"held_records_max": 1}, {"held_bytes_max": 1}])
@pytest.mark.parametrize("batch_size", [None, 10_000])
@pytest.mark.parametrize("concurrency", [1, 500])
def test_the_smallest_room_is_enough(
    memory: MemoryWorld, how: dict[str, int], batch_size: int | None, concurrency: int
) -> None:
    """However many records were asked for at once."""
    options: dict[str, Any] = {**how, "max_concurrency": concurrency}
    assert failures(run(memory, lambda _: None, batch_size=batch_size, **options)) == []


def test_two_runs_of_one_processor_and_a_run_within_a_run(memory: MemoryWorld) -> None:
    """Each has its own records; stopping the processor would end them all."""
    memory.create("orders")
    memory.write("orders", 0, *range(1, 11))
    plan = memory.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    processor = Processor(memory.settings, max_concurrency=2)

    def within(record: Record) -> int:
        return len(list(processor.run(plan, lambda _: None))) if record.offset == 3 else 0

    with in_time(processor):
        first, second = processor.run(plan, within), processor.run(plan, within)
        pairs = list(zip(first, second, strict=True))
        assert list(first) == list(second) == []
    assert sorted(one.value for one, _ in pairs) == [0] * 9 + [10]
