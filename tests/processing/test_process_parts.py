"""A window that several tasks process, a part each: what each does, what a retry repeats, and the one commit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    PartsMissingError,
    RecordFailedError,
    WindowMismatchError,
    WindowPlan,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group.decisions.splitting import shares
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.processing import Processor, process_window
from kafka_ordered_ops.processing.window_job import ProcessedCounts, ProcessedWindow
from tests.support.memory_world import MemoryWorld
from tests.support.processing_groups import wait_until
from tests.support.window_processing import Calls, filled
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

_WORKER = Path(__file__).parents[1] / "support" / "process_window_worker.py"


def planned(world: World) -> WindowPlan:
    """The window of all records."""
    plan = world.plan("w", 10_000, starting_offsets=Earliest())
    assert plan is not None
    return plan


def process(world: World, plan: WindowPlan, function: Any, **options: Any) -> ProcessedWindow:
    """Process a plan or a part, in a service of its own."""
    processor = Processor(world.settings, retries=0, max_concurrency=4)
    service = world.windows(run_id=str(plan.part))
    return process_window(service, plan, function, processor=processor, **options)


def test_parts_at_the_same_time_are_the_window(world: World) -> None:
    """Each record once; the parts' counts add up, whoever asks for them after the commit."""
    filled(world, 30)
    plan, calls = planned(world), Calls()
    parts = world.windows().split(plan, 3)
    done: dict[int, ProcessedWindow] = {}

    def task(number: int) -> None:
        done[number] = process(world, parts[number], calls, commit_interval_s=0.01)

    threads = [threading.Thread(target=task, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert [(done[n].ran, done[n].succeeded) for n in range(3)] == [(True, 20)] * 3
    assert WindowStatus.WRITTEN in {one.plan.status for one in done.values()}
    assert Counter(calls.seen.values()) == {1: 60}
    assert world.windows().commit(plan).status is WindowStatus.COMMITTED
    assert [one[0] for one in world.committed("orders").values()] == [30, 30]
    whole = process(world, planned(world), calls)
    assert (whole.ran, whole.counts) == (False, ProcessedCounts(60))
    again = process(world, parts[1], calls)
    assert (again.ran, again.counts) == (False, ProcessedCounts(20))
    assert Counter(calls.seen.values()) == {1: 60}


def test_a_failed_part_is_processed_again_alone(world: World) -> None:
    """Its retry does only what is missing, and the parts that are done are left alone."""
    filled(world, 30)
    plan, calls = planned(world), Calls(25)
    first, second = world.windows().split(plan, 2)
    for part in (first, second):
        with pytest.raises(RecordFailedError):
            process(world, part, calls)
    calls.poison.clear()
    succeeded = len([place for place in calls.seen if place[1] != 25])
    done = process(world, first, calls)
    assert done.plan.status is WindowStatus.PLANNED
    assert not process(world, first, calls).ran
    # Nothing is processed for a commit that would be refused.
    with pytest.raises(PartsMissingError, match="1 have not reported"):
        process(world, plan, calls)
    last = process(world, second, calls)
    assert last.plan.status is WindowStatus.WRITTEN
    assert done.succeeded + last.succeeded == 60 - succeeded
    assert done.counts.earlier_offsets + last.counts.earlier_offsets == succeeded
    # Whoever processes the window now finds it written, and commits it.
    whole = process(world, plan, calls)
    assert (whole.ran, whole.plan.status) == (False, WindowStatus.PUBLISHED)
    assert whole.counts == ProcessedCounts(60 - succeeded, 0, succeeded)
    assert len(calls.seen) == 60


def test_a_part_that_nobody_waits_for_is_refused_before_its_first_record(world: World) -> None:
    """Of an older attempt, of another number of parts, of a window that was never split, or of a preview."""
    filled(world)
    plan, calls = planned(world), Calls()
    [old, _] = world.windows().split(plan, 2)
    newer = planned(world)
    with pytest.raises(WindowSupersededError):
        process(world, old, calls)
    with pytest.raises(WindowSupersededError):
        process(world, plan, calls)
    with pytest.raises(WindowMismatchError, match="no parts"):
        process(world, shares(newer, 2)[0], calls)
    world.windows().split(newer, 3)
    with pytest.raises(WindowMismatchError, match="3 parts"):
        process(world, shares(newer, 2)[0], calls)
    with pytest.raises(ConfigError, match="preview"):
        process(world, shares(replace(newer, claim_id=""), 3)[0], calls)
    assert not calls.seen


@pytest.mark.slow
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(count=st.integers(1, 7), data=st.data())
def test_however_parts_fail_each_record_succeeds_once(count: int, data: st.DataObject) -> None:
    """In any order, with retries of parts that are done; and a new attempt does what no part has done."""
    with MemoryWorld() as world:
        filled(world, 20)
        succeeded: Counter[tuple[int, int]] = Counter()
        plan = planned(world)
        parts = world.windows().split(plan, count)
        for number in data.draw(st.lists(st.integers(0, count - 1), max_size=8)):
            bad = data.draw(st.sets(st.integers(0, 19), max_size=2))

            def function(record: Any, bad: set[int] = bad) -> None:
                if record.offset in bad:
                    raise ValueError
                succeeded[record.partition, record.offset] += 1

            with contextlib.suppress(RecordFailedError):
                process(world, parts[number], function)
        if data.draw(st.booleans()):
            process(world, planned(world), lambda one: succeeded.update([one[1:3]]))
        else:
            for part in parts:
                process(world, part, lambda one: succeeded.update([one[1:3]]))
            world.windows().commit(plan)
        assert Counter(succeeded.values()) == {1: 40}
        assert [one[0] for one in world.committed("orders").values()] == [20, 20]


@pytest.mark.long
def test_a_part_whose_process_is_killed_repeats_at_most_one_interval(
    broker: Any, tmp_path: Path
) -> None:
    """The retry gets the same part as text, and calls the function only for what was not kept."""
    filled(broker, 400, 2)
    plan = planned(broker)
    service = broker.windows()
    mine, other = service.split(plan, 2)
    log, text = tmp_path / "calls", tmp_path / "part"
    text.write_text(mine.to_text())
    command = [sys.executable, str(_WORKER), broker.settings.bootstrap_servers]
    command += [broker.named("g"), "w", str(log), str(text)]
    killed = subprocess.Popen(command)

    def kept() -> int:
        return sum(one.count for one in service.processed(mine).values())

    try:
        wait_until(lambda: kept() > 50)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(TIMEOUT_S)
    first, saved = log.read_text().split(), kept()
    assert 50 < saved < mine.offsets
    assert process(broker, other, Calls()).succeeded == 400
    done = subprocess.run(command, timeout=TIMEOUT_S, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    second = log.read_text().split()[len(first) :]
    assert len(set(first) | set(second)) == 400
    assert len(second) == 400 - saved
    assert service.show("w").status is WindowStatus.WRITTEN
    assert service.commit(plan).status is WindowStatus.COMMITTED
    counts = ProcessedCounts.stored(json.loads(json.dumps(service.show("w").result)))
    assert counts == ProcessedCounts(800 - saved, 0, saved)
