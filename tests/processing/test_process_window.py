"""A window whose job is a function for each record: what is kept, what is done again, and what is committed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import (
    BrokerError,
    ConfigError,
    Earliest,
    KafkaOrderedOpsError,
    LedgerRecordError,
    ProcessingStoppedError,
    RecordFailedError,
    WindowPlan,
    WindowSupersededError,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import PlanContent, TopicPartition, WindowStatus
from kafka_ordered_ops.processing import Processor, Record, Result, plan_source, process_window
from kafka_ordered_ops.processing.plan_source import PlanSource
from kafka_ordered_ops.processing.window_job import ProcessedCounts, process_plan
from tests.support.memory_world import MemoryWorld
from tests.support.processing_groups import wait_until
from tests.support.window_processing import Calls, filled, kept, process
from tests.support.windows_support import TIMEOUT_S
from tests.support.work_functions import answer
from tests.support.worlds import World

_WORKER = Path(__file__).parents[1] / "support" / "process_window_worker.py"


# --- the ways a window ends ---------------------------------------------------------------------------


def test_every_record_once_and_the_window_is_committed_with_its_counts(world: World) -> None:
    """The results come to whoever asks; the second call finds the window done, and calls nothing."""
    filled(world)
    calls, results = Calls(), list[Result]()
    done = process(world, calls, on_result=results.append)
    assert (done.ran, done.succeeded, done.failed) == (True, 40, 0)
    assert done.plan.status is WindowStatus.PUBLISHED
    assert set(calls.seen.values()) == {1}
    assert len(calls.seen) == 40
    assert sorted(one.value for one in results) == sorted([*range(20), *range(20)])
    assert [one[0] for one in world.committed("orders").values()] == [20, 20]
    again = process(world, calls)
    assert (again.ran, again.succeeded, again.failed) == (False, 40, 0)
    assert len(calls.seen) == sum(calls.seen.values())


def test_failed_records_that_are_skipped_are_counted(world: World) -> None:
    """They are done; the window's result says how many there were."""
    filled(world)
    done = process(world, Calls(3, 5), how={"when_exhausted": "skip"})
    assert (done.succeeded, done.failed) == (36, 4)
    stored = world.windows().show("w").result
    assert stored is not None
    assert ProcessedCounts.stored(stored) == ProcessedCounts(36, 4)
    assert stored["reported"]["facts"] == {"records": 40}


def test_a_window_without_records_is_committed(world: World) -> None:
    """The function is not called."""
    world.create("orders")
    done = process(world, Calls(), 10)
    assert (done.ran, done.succeeded, done.plan.content) == (True, 0, PlanContent.EMPTY)
    assert done.plan.status is WindowStatus.PUBLISHED


def test_a_covered_window_is_left_to_the_others(world: World) -> None:
    """Another window has its records."""
    filled(world)
    world.run("first", 1_000, starting_offsets=Earliest())
    calls = Calls()
    done = process(world, calls, 1_000)
    assert (done.ran, done.succeeded, done.failed) == (False, 0, 0)
    assert not calls.seen


def test_a_window_that_another_job_has_delivered_is_left_alone(world: World) -> None:
    """It is not processed after its commit: nobody knows what the other job did with its records."""
    filled(world)
    world.run("w", 1_000, starting_offsets=Earliest())
    calls = Calls()
    done = process(world, calls)
    assert (done.ran, done.counts) == (False, ProcessedCounts())
    assert not calls.seen


def test_a_plan_is_taken_as_it_is(world: World) -> None:
    """Without another look at the cluster; it has its id."""
    filled(world)
    plan = world.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    with pytest.raises(ConfigError, match="omit window_id"):
        process_window(world.windows(), plan, Calls(), window_id="other")
    calls = Calls()
    assert process_window(world.windows(), plan, calls).succeeded == 40
    # The plan is older than its window by now.
    again = process_window(world.windows(), plan, calls)
    assert (again.ran, again.succeeded) == (False, 40)
    assert Counter(calls.seen.values()) == {1: 40}


@pytest.mark.parametrize(
    ("function", "batch_size", "told"),
    [
        (None, None, "give a function"),
        (lambda one: (yield one), None, "generator"),
        (str, 0, "batch_size"),
    ],
)
def test_a_job_that_cannot_run_is_refused_before_its_window_holds_records(
    memory: MemoryWorld, function: Any, batch_size: int | None, told: str
) -> None:
    """Nothing is planned."""
    filled(memory)
    with pytest.raises(ConfigError, match=told):
        process(memory, function, batch_size=batch_size)
    assert memory.windows().list() == []


# --- going on -------------------------------------------------------------------------------------------


def test_after_a_failed_record_the_next_attempt_does_only_the_rest(world: World) -> None:
    """Nothing is committed before; what was done is kept in the ledger."""
    filled(world)
    calls = Calls(7)
    with pytest.raises(RecordFailedError):
        process(world, calls)
    assert world.windows().show("w").status is WindowStatus.PLANNED
    succeeded = {place for place in calls.seen if place[1] != 7}
    assert kept(world) == len(succeeded) > 0
    calls.poison.clear()
    before = set(calls.seen)
    done = process(world, calls)
    assert done.ran
    assert done.counts == ProcessedCounts(40 - len(succeeded), 0, len(succeeded))
    assert len(calls.seen) == 40
    twice = {place for place, count in calls.seen.items() if count > 1}
    assert twice == before - succeeded
    assert kept(world) == 0


def test_processing_that_is_stopped_commits_nothing(world: World) -> None:
    """Though no record failed: the window would be committed without some of its records."""
    filled(world)
    calls = Calls()
    processor = Processor(world.settings, max_concurrency=1)

    def stops(record: Record) -> None:
        calls(record)
        if len(calls.seen) == 5:
            processor.stop()

    with pytest.raises(ProcessingStoppedError) as caught:
        process(world, stops, processor=processor)
    assert caught.value.left == 40 - kept(world) > 0
    assert world.windows().show("w").status is WindowStatus.PLANNED
    process(world, calls)
    assert Counter(calls.seen.values()) == {1: 40}


def test_a_plan_whose_processing_is_stopped_is_not_committed_by_its_block(world: World) -> None:
    """The iterator raises where it would have ended, also when what was read is done."""
    filled(world, 5_000, 1)
    plan = world.plan("w", 10_000, starting_offsets=Earliest())
    assert plan is not None
    processor = Processor(world.settings, max_concurrency=1, held_records_max=10)
    seen: list[Result] = []

    def take() -> None:
        for one in processor.run(plan, lambda record: None):
            seen.append(one)
            processor.stop(drain=True)

    with pytest.raises(ProcessingStoppedError, match=r"Do not commit the window") as caught:
        take()
    assert 0 < len(seen) == 5_000 - caught.value.left < 5_000


def test_an_error_of_whoever_takes_the_results_keeps_what_is_done(world: World) -> None:
    """It is raised as it is."""
    filled(world)
    calls = Calls()

    def full(result: Result) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        process(world, calls, on_result=full)
    assert kept(world) == len(calls.seen)
    process(world, calls)
    assert Counter(calls.seen.values()) == {1: 40}


def test_a_job_that_its_host_ends_does_not_wait_for_slow_calls(world: World) -> None:
    """It ends within some seconds, and what is done is kept."""
    filled(world)
    gate, calls = threading.Event(), Calls()

    def hangs(record: Record) -> None:
        if record.offset == 10:
            gate.wait(TIMEOUT_S)
        calls(record)

    plan = world.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    began = 0.0

    def stopped() -> bool:
        nonlocal began
        if len(calls.seen) < 30:
            return False
        began = began or time.monotonic()
        return True

    processor = Processor(world.settings, ordering="unordered", max_concurrency=4)
    with pytest.raises(ProcessingStoppedError):
        process_plan(plan, hangs, processor, keep=world.windows(), stopped=stopped)
    assert time.monotonic() - began < 5
    assert 30 <= kept(world) < 40
    gate.set()


async def _hangs(record: Record) -> None:
    if record.value == b"hang":
        await asyncio.sleep(TIMEOUT_S)


@pytest.mark.parametrize(("function", "workers"), [(_hangs, "threads"), (answer, "processes")])
def test_calls_that_can_be_ended_are_ended_with_the_job(
    memory: MemoryWorld, function: Any, workers: str
) -> None:
    """A coroutine is cancelled, and a process killed; the others' records are kept."""
    memory.create("orders")
    values = [b"hang" if n == 3 else b"x" for n in range(20)]
    memory.write_content("orders", 0, [(1.0, None, value, ()) for value in values])
    plan = memory.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    done: list[Result] = []
    began = 0.0

    def stopped() -> bool:
        nonlocal began
        if len(done) < 19:
            return False
        began = began or time.monotonic()
        return True

    processor = Processor(memory.settings, workers=workers, max_concurrency=2)
    with pytest.raises(ProcessingStoppedError):
        process_plan(
            plan,
            function,
            processor,
            keep=memory.windows(),
            on_result=done.append,
            stopped=stopped,
        )
    assert time.monotonic() - began < 4
    assert kept(memory) == 19


def test_an_attempt_that_was_superseded_stops(world: World) -> None:
    """When it keeps what it has done, at the latest; the newer attempt commits."""
    filled(world)
    plan = world.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    source = PlanSource(plan, world.windows(), commit_interval_s=0.01)
    calls = Calls()

    def slow(record: Record) -> None:
        calls(record)
        if len(calls.seen) == 1:
            world.plan("w", 1_000, starting_offsets=Earliest())
        time.sleep(0.02)

    processor = Processor(world.settings, max_concurrency=1)
    with pytest.raises(WindowSupersededError):
        for _ in processor.turns(source, slow):
            pass
    assert len(calls.seen) < 40
    done = process(world, Calls())
    assert done.plan.status is WindowStatus.PUBLISHED
    assert done.counts.succeeded + done.counts.earlier_offsets == 40


class _Away(BrokerError):
    retriable = True


class Keeper:
    """Keeps in memory; the first calls fail."""

    def __init__(self, error: KafkaOrderedOpsError, away: int) -> None:
        self.error, self.away = error, away
        self.saves: list[dict[TopicPartition, OffsetSet]] = []

    def processed(self, plan: WindowPlan) -> dict[TopicPartition, OffsetSet]:
        done: dict[TopicPartition, OffsetSet] = {}
        for one in self.saves:
            for tp, offsets in one.items():
                assert not done.get(tp, OffsetSet()) & offsets, "kept twice"
                done[tp] = done.get(tp, OffsetSet()) | offsets
        return done

    def mark_processed(self, plan: WindowPlan, done: Any) -> None:
        if self.away:
            self.away -= 1
            raise self.error
        self.saves.append(dict(done))


@pytest.mark.parametrize(
    "error", [_Away("away"), LedgerRecordError("too large", kind="processed", name="w")]
)
def test_what_cannot_be_kept_now_is_kept_later(
    memory: MemoryWorld, error: KafkaOrderedOpsError
) -> None:
    """The records are processed meanwhile; each offset is sent once."""
    filled(memory, 100)
    plan = memory.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    keeper = Keeper(error, away=3)
    source = PlanSource(plan, keeper, commit_interval_s=0.01)

    def slow(record: Record) -> None:
        time.sleep(0.002)

    for _ in Processor(memory.settings, max_concurrency=2).turns(source, slow):
        pass
    assert keeper.away == 0
    assert len(keeper.saves) > 1
    assert keeper.processed(plan) == dict(plan.taken)


def test_a_claim_is_renewed_while_nothing_is_done(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record takes long: the keeper is called without offsets, and nobody takes the window over."""
    monkeypatch.setattr(plan_source, "_RENEW_EVERY_S", 0.05)
    filled(memory, 1, 1)
    plan = memory.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    keeper = Keeper(_Away("away"), away=1)
    source = PlanSource(plan, keeper)
    results = Processor(memory.settings).turns(
        source, lambda record: wait_until(lambda: len(keeper.saves) > 2)
    )
    assert [one.error for some in results for one in some] == [None]
    assert keeper.saves[:2] == [{}, {}]
    assert keeper.processed(plan) == dict(plan.taken)


def test_progress_is_reported_to_whoever_asks(world: World) -> None:
    """Up to the whole window; a function that cannot be called is refused before anything is planned."""
    filled(world)
    seen: list[tuple[int, int]] = []
    process(world, Calls(), progress=lambda done, known: seen.append((done, known)))
    assert seen[-1] == (40, 40)
    for what in ("progress", "on_result"):
        with pytest.raises(ConfigError, match=f"{what} is 5"):
            process(world, Calls(), **{what: 5})


def test_after_a_crash_before_the_commit_only_the_commit_is_left(world: World) -> None:
    """All records were done and kept: nothing is read, and no function called."""
    filled(world)
    plan = world.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    results = Processor(world.settings).run(plan, lambda record: None, keep=world.windows())
    assert len(list(results)) == kept(world) == 40
    calls = Calls()
    done = process(world, calls)
    assert (done.ran, done.counts) == (True, ProcessedCounts(0, 0, 40))
    assert done.plan.status is WindowStatus.PUBLISHED
    assert not calls.seen


def test_a_window_whose_commit_was_refused_is_only_committed(world: World) -> None:
    """Its counts are those of the attempt that has processed it."""
    filled(world)
    plan = world.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    world.windows().mark_written(plan, ProcessedCounts(38, 2).reported().to_json())
    calls = Calls()
    done = process(world, calls)
    assert (done.ran, done.succeeded, done.failed) == (False, 38, 2)
    assert done.plan.status is WindowStatus.PUBLISHED
    assert not calls.seen


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    poison=st.lists(st.sets(st.integers(0, 29), max_size=4), max_size=4),
    ordering=st.sampled_from(["key", "partition", "unordered"]),
)
def test_however_attempts_fail_each_record_succeeds_once(
    poison: list[set[int]], ordering: str
) -> None:
    """Each attempt stops at its own records; all of them together process each record once with success."""
    with MemoryWorld() as world:
        filled(world, 30)
        succeeded: Counter[tuple[int, int]] = Counter()
        for bad in [*poison, set[int]()]:

            def function(record: Record, bad: set[int] = bad) -> None:
                if record.offset in bad:
                    raise ValueError
                succeeded[record.partition, record.offset] += 1

            try:
                done = process(world, function, how={"ordering": ordering})
            except RecordFailedError:
                assert kept(world) == len(succeeded)
            else:
                assert done.plan.status is WindowStatus.PUBLISHED
        assert Counter(succeeded.values()) == {1: 60}


# --- killed ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_process_that_is_killed_repeats_at_most_one_interval(broker: Any, tmp_path: Path) -> None:
    """After ``kill -9``, the next attempt calls the function for what was not kept, and only for that."""
    filled(broker, 500, 3)
    plan = broker.plan("w", 1_000, starting_offsets=Earliest())
    log = tmp_path / "calls"
    command = [
        sys.executable,
        str(_WORKER),
        broker.settings.bootstrap_servers,
        broker.named("g"),
        "w",
        str(log),
    ]
    killed = subprocess.Popen(command)
    try:
        wait_until(lambda: kept(broker) > 100)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(TIMEOUT_S)
    first, saved = log.read_text().split(), kept(broker)
    assert 100 < saved < plan.offsets
    done = subprocess.run(command, timeout=TIMEOUT_S, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    second = log.read_text().split()[len(first) :]
    assert len(set(first) | set(second)) == plan.offsets == 1_500
    # What was kept is not processed again.
    assert len(second) == plan.offsets - saved
    assert broker.windows().show("w").status is WindowStatus.PUBLISHED
