"""A window shared among tasks: parts that together are the window, reported one by one, committed once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    PartsMissingError,
    Window,
    WindowMismatchError,
    WindowPlan,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group.decisions.splitting import shares
from kafka_ordered_ops.core.offset_set import union_of
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.core.window.plan import PARTS_MAX, PlanPart
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic
from tests.support.examples import examples
from tests.support.logs import LogWriter, Records, read_plan
from tests.support.strategies import window_plans
from tests.support.windows_support import BASE_MS, at, before, offsets_of
from tests.windows.test_delivery import Shelf


@pytest.fixture
def plan(windows: OrderedWindows, orders: str) -> WindowPlan:
    """All six records of `orders`."""
    return windows.plan(before(orders, 100, Earliest()), "w")


# --- the shares -------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(window_plans, st.integers(1, 40))
def test_shares_are_the_plan_cut_by_weight(plan: WindowPlan, count: int) -> None:
    """Nothing twice, nothing missing, none heavier than another by more than one offset."""
    if plan.part is not None:
        with pytest.raises(ConfigError, match="again"):
            shares(plan, count)
        return
    parts = shares(plan, count)
    assert [part.part for part in parts] == [PlanPart(index, count) for index in range(count)]
    assert {(part.claim_id, part.attempt, part.window_id) for part in parts} == {
        (plan.claim_id, plan.attempt, plan.window_id)
    }
    assert sum(part.offsets for part in parts) == plan.offsets
    assert max(part.offsets for part in parts) - min(part.offsets for part in parts) <= 1
    for tp in {one.tp for one in plan}:
        cuts = [part.taken[tp] for part in parts if tp in part.taken]
        whole = plan.taken.get(tp)
        assert union_of(cuts) == (union_of([]) if whole is None else whole)
        # Each is a run of the plan's offsets: a task reads its partitions from front to back.
        assert all(one.end <= other.first for one, other in pairwise(cuts))
    assert not any(part.lost for part in parts)
    assert shares(plan, count) == parts


@pytest.mark.parametrize("count", [0, -1, PARTS_MAX + 1])
def test_a_number_of_parts_has_limits(
    windows: OrderedWindows, plan: WindowPlan, count: int
) -> None:
    """None at all, or more than any scheduler runs; nothing is written down."""
    record = windows.show("w")
    with pytest.raises(ConfigError, match="1 to 10,000"):
        windows.split(plan, count)
    assert windows.show("w") == record


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 500])
def test_parts_read_alone_are_together_the_window(
    bootstrap: str, topic: MakeTopic, windows: OrderedWindows, count: int
) -> None:
    """Also when there are more parts than offsets: some are empty then, and report like the others."""
    name = topic(partitions=3)
    writer = LogWriter(bootstrap, Random(count))
    writer.write(
        [(name, 0), (name, 2)], count=150, low_ms=BASE_MS - 30_000, high_ms=BASE_MS + 30_000
    )
    plan = windows.plan(before(name, 0, Earliest()), "w")
    whole = read_plan(windows.settings, plan)
    together: Records = {}
    parts = windows.split(plan, count)
    for part in parts:
        if not part.taken:
            assert part.offsets == 0
            continue
        records = read_plan(windows.settings, part)
        assert not records.keys() & together.keys()
        together |= records
    assert together == whole
    assert len(parts) == count
    # What tells out-of-order records and late records apart goes with each part.
    assert {(one.tp, one.head_end, one.late) for part in parts for one in part} == {
        (one.tp, one.head_end, one.late) for one in plan if one.taken
    }


# --- reports ----------------------------------------------------------------------------------------


def test_a_split_window_commits_when_all_parts_have_reported(
    windows: OrderedWindows, plan: WindowPlan
) -> None:
    """In any order; with the last report it is written, with all results in the order of the parts."""
    parts = windows.split(plan, 3)
    windows.report(parts[2], {"rows": 2})
    record = windows.report(parts[0], {"rows": 0})
    assert record.status is WindowStatus.PLANNED
    for finish in (windows.commit, lambda one: windows.commit(one, Shelf().write(one))):
        with pytest.raises(PartsMissingError, match="split into 3 parts, and 1 have not") as caught:
            finish(plan)
        assert caught.value.missing == (1,)
    assert windows.show("w") == record
    done = windows.report(parts[1], {"rows": 1})
    assert done.status is WindowStatus.WRITTEN
    assert done.result == {"parts": [{"rows": 0}, {"rows": 1}, {"rows": 2}]}
    assert windows.commit(plan).status is WindowStatus.COMMITTED
    state = windows.state()
    assert state is not None
    assert [one.base for _, one in state] == [6]


def test_the_first_report_of_a_part_counts(windows: OrderedWindows, plan: WindowPlan) -> None:
    """A task that is run twice is told what the first one said; so is one after the commit."""
    parts = windows.split(plan, 2)
    first = windows.report(parts[0], {"file": "a"})
    assert windows.report(parts[0], {"file": "b"}) == first
    windows.report(parts[1], {"file": "c"})
    for status in (WindowStatus.WRITTEN, WindowStatus.COMMITTED):
        record = windows.report(parts[1], {"file": "d"})
        assert record.status is status
        assert record.result == {"parts": [{"file": "a"}, {"file": "c"}]}
        windows.commit(plan)


@pytest.mark.slow
def test_reports_at_the_same_moment_all_count(windows: OrderedWindows, plan: WindowPlan) -> None:
    """Each from a process of its own; the last of them, whichever it is, completes the window."""
    parts = windows.split(plan, 4)
    failures: list[BaseException] = []

    def report(part: WindowPlan) -> None:
        try:
            with OrderedWindows(windows.settings, windows.group_id) as own:
                assert part.part is not None
                own.report(part, {"index": part.part.index})
        except BaseException as error:
            failures.append(error)
            raise

    tasks = [threading.Thread(target=report, args=(part,)) for part in parts]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join(240)
    assert failures == []
    record = windows.show("w")
    assert record.status is WindowStatus.WRITTEN
    assert record.result == {"parts": [{"index": index} for index in range(4)]}
    windows.commit(plan)


def test_a_part_can_be_reported_by_what_is_staged(
    windows: OrderedWindows, plan: WindowPlan
) -> None:
    """A task's hidden output says of itself what it is."""
    shelf = Shelf()
    [part] = windows.split(plan, 1)
    output = shelf.write(part)
    assert windows.report(part, output).result == {"parts": [output.to_json()]}


def test_a_window_split_once_is_split_like_that(windows: OrderedWindows, plan: WindowPlan) -> None:
    """The same number gives the same parts, another is refused, and so are parts of another split."""
    parts = windows.split(plan, 3)
    assert windows.split(plan, 3) == parts
    with pytest.raises(WindowMismatchError) as caught:
        windows.split(plan, 2)
    assert caught.value.differences == {"parts": (3, 2)}
    with pytest.raises(WindowMismatchError, match="knows of 3"):
        windows.report(shares(plan, 2)[0], {})


def test_a_window_that_was_never_split_takes_no_reports(
    windows: OrderedWindows, plan: WindowPlan
) -> None:
    """Shares made by hand say nothing of how many tasks there are."""
    with pytest.raises(WindowMismatchError, match="no parts"):
        windows.report(shares(plan, 2)[0], {})
    with pytest.raises(ConfigError, match="only a part"):
        windows.report(plan, {})


# --- tries ------------------------------------------------------------------------------------------


def test_a_retry_of_the_plan_begins_its_parts_anew(
    windows: OrderedWindows, plan: WindowPlan
) -> None:
    """Nothing that the older attempt's parts said or say counts; the number may be another."""
    old = windows.split(plan, 2)
    windows.report(old[0], {"try": 1})
    again = windows.plan(before(plan.topics[0], 100), "w")
    assert windows.show("w").parts is None
    for part in old:
        with pytest.raises(WindowSupersededError):
            windows.report(part, {"try": 1})
    parts = windows.split(again, 3)
    with pytest.raises(WindowSupersededError):
        windows.report(old[1], {"try": 1})
    for part in parts:
        windows.report(part, {"try": 2})
    assert windows.show("w").result == {"parts": [{"try": 2}] * 3}
    windows.commit(again)


def test_parts_of_an_abandoned_window_are_superseded(
    windows: OrderedWindows, plan: WindowPlan
) -> None:
    """Also once the id is planned and split anew in the same way."""
    old = windows.split(plan, 2)
    windows.abandon("w")
    with pytest.raises(WindowSupersededError):
        windows.report(old[0], {})
    windows.split(windows.plan(before(plan.topics[0], 100, Earliest()), "w"), 2)
    with pytest.raises(WindowSupersededError):
        windows.report(old[0], {})
    assert windows.show("w").parts is not None


@pytest.mark.parametrize("how", ["reported", "written as a whole"])
def test_a_retry_that_finds_a_window_written_has_nothing_to_report(
    windows: OrderedWindows, plan: WindowPlan, how: str
) -> None:
    """Its parts run for nothing, if they are run: what is written only waits for its commit."""
    if how == "reported":
        for part in windows.split(plan, 2):
            windows.report(part, {"try": 1})
    else:
        windows.mark_written(plan, {"try": 1})
    result = windows.show("w").result
    again = windows.plan(before(plan.topics[0], 100), "w")
    assert again.status is WindowStatus.WRITTEN
    for part in windows.split(again, 3):
        record = windows.report(part, {"try": 2})
        assert (record.status, record.result) == (WindowStatus.WRITTEN, result)
    windows.commit(again)
    record = windows.report(part, {"try": 2})
    assert (record.status, record.result) == (WindowStatus.COMMITTED, result)


def test_a_covered_window_needs_no_parts(windows: OrderedWindows, plan: WindowPlan) -> None:
    """Split like any other it has empty parts, and commits when they have reported."""
    covered = windows.plan(before(plan.topics[0], 50), "covered")
    assert covered.content is PlanContent.COVERED
    for part in windows.split(covered, 2):
        assert part.offsets == 0
        windows.report(part, {})
    windows.commit(covered)


# --- what a part is not -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda windows, part: windows.commit(part),
        lambda windows, part: windows.commit_many([part]),
        lambda windows, part: windows.commit(part, Shelf().write(part)),
        lambda windows, part: windows.mark_written(part, {}),
        lambda windows, part: windows.publish(part, Shelf().write(part)),
        lambda windows, part: windows.split(part, 2),
    ],
    ids=["commit", "commit_many", "commit staged", "mark_written", "publish", "split"],
)
def test_a_part_is_only_read_and_reported(
    windows: OrderedWindows, plan: WindowPlan, call: Callable[[OrderedWindows, WindowPlan], object]
) -> None:
    """Whatever else is asked of it is refused, and the window stays as it is."""
    part = windows.split(plan, 2)[0]
    record = windows.show("w")
    with pytest.raises(ConfigError, match="part 1 of 2"):
        call(windows, part)
    assert windows.show("w") == record


def test_no_job_is_run_for_a_part_as_if_it_were_a_window(
    windows: OrderedWindows, plan: WindowPlan
) -> None:
    """`deliver` refuses it before the sink sees anything."""
    shelf = Shelf()
    part = windows.split(plan, 2)[0]
    with pytest.raises(ConfigError, match="part 1 of 2"):
        windows.deliver(part, shelf.write, shelf.reopen)
    assert shelf.jobs == 0


def test_a_preview_is_not_split(windows: OrderedWindows, orders: str) -> None:
    """It claims nothing that tasks could share."""
    preview = windows.preview(Window([orders], at(100), starting_offsets=Earliest()))
    with pytest.raises(ConfigError, match="preview"):
        windows.split(preview, 2)


def test_parts_survive_json(windows: OrderedWindows, plan: WindowPlan) -> None:
    """A mapped task gets its part as text."""
    for part in windows.split(plan, 4):
        assert WindowPlan.from_text(part.to_text()) == part
        assert offsets_of(read_plan(windows.settings, part)) <= set(range(6))
