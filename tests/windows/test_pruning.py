"""Old windows cut down to a stub, or forgotten, on a real broker; progress is never touched."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    UnknownWindowError,
    Window,
    WindowCoveredError,
    WindowPrunedError,
)
from kafka_ordered_ops.core.group.decisions.pruning import PRUNED_AT_ONCE_MAX
from kafka_ordered_ops.core.group.group_state import Pruned
from kafka_ordered_ops.core.types import (
    OnCovered,
    OnDataLoss,
    PlanContent,
    WindowStatus,
)
from kafka_ordered_ops.windows import OrderedWindows, Policy
from tests.conftest import MakeTopic, Produce
from tests.support.interval_oracle import interval, stamped, sweep
from tests.support.logs import read_plan
from tests.support.windows_support import at, before, delete_before, offsets_of

DAY_S = 86_400.0


def days_ago(windows: OrderedWindows, days: float) -> OrderedWindows:
    """The same group, by a clock that runs behind."""
    return OrderedWindows(
        windows.settings, windows.group_id, clock=lambda: time.time() - days * DAY_S
    )


def names(windows: OrderedWindows) -> list[str]:
    """The ids of all windows, by cutoff."""
    return [record.plan.window_id for record in windows.list()]


@pytest.mark.slow
def test_windows_are_pruned_by_age(windows: OrderedWindows, orders: str) -> None:
    """By when they were last changed, the oldest first; the open and the young stay whole."""
    with days_ago(windows, 10) as past:
        past.commit(past.plan(before(orders, 1, Earliest()), "oldest"))
        past.plan(before(orders, 12), "open-for-ten-days")
        given_up = past.plan(before(orders, 18), "abandoned")
        past.abandon(given_up.window_id)
        slow = past.plan(before(orders, 22), "committed-today")
    windows.commit(slow)
    with days_ago(windows, 5) as past:
        past.commit(past.plan(before(orders, 25), "old"))
        revived = past.plan(before(orders, 28), "taken-up-since")
    windows.commit(windows.plan(before(orders, 28), revived.window_id))
    windows.commit(windows.plan(before(orders, 100), "young"))
    state = windows.state()
    assert windows.prune(timedelta(days=7)) == ["oldest", "abandoned"]
    assert windows.prune(timedelta(days=7)) == []
    assert windows.prune(timedelta(days=4)) == ["old"]
    pruned = {record.plan.window_id: record.pruned is not None for record in windows.list()}
    assert pruned == {
        "oldest": True,
        "open-for-ten-days": False,
        "abandoned": True,
        "committed-today": False,
        "old": True,
        "taken-up-since": False,
        "young": False,
    }
    after = windows.state()
    assert state is not None
    assert after is not None
    assert (after.topics, after.open) == (state.topics, ("open-for-ten-days",))
    windows.commit(windows.plan(before(orders, 12), "open-for-ten-days"))


@pytest.mark.slow
def test_a_stub_knows_that_its_window_is_done(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """Its question, its state and its counts; neither its offsets nor what its sink said."""
    windows.commit(windows.plan(before(orders, 1, Earliest()), "first"))
    delete_before(bootstrap, orders, 2)
    asked = Window([orders], at(12), on_data_loss=OnDataLoss.WARN)
    plan = windows.plan(asked, "w")
    windows.mark_written(plan, {"rows": 1})
    windows.commit(plan)
    before_it = windows.show("w")
    assert windows.prune(timedelta(0)) == ["first", "w"]
    record = windows.show("w")
    assert record.pruned == Pruned(offsets=1, lost=1)
    assert (record.status, record.plan.window) == (WindowStatus.COMMITTED, asked)
    assert (record.committed_at_ms, record.plan.claim_id, record.plan.attempt) == (
        before_it.committed_at_ms,
        plan.claim_id,
        plan.attempt,
    )
    assert (record.result, record.plan.partitions) == (None, ())
    assert names(windows) == ["first", "w"]
    calls: list[Callable[[], object]] = [
        lambda: windows.plan(asked, "w"),
        lambda: windows.preview(asked, "w"),
        lambda: windows.replay("w"),
    ]
    for call in calls:
        with pytest.raises(WindowPrunedError) as caught:
            call()
        assert caught.value.window_id == "w"
    # Whoever still holds the plan is told that it is committed.
    assert windows.commit(plan).status is WindowStatus.COMMITTED
    # Nobody can replay what the stub no longer knows.
    with pytest.raises(WindowCoveredError):
        windows.plan(asked, "again", Policy(on_covered=OnCovered.REPLAY))


@pytest.mark.slow
def test_an_abandoned_stub_can_be_planned_anew(windows: OrderedWindows, orders: str) -> None:
    """It delivered nothing, so nothing is missing."""
    windows.commit(windows.plan(before(orders, 1, Earliest()), "first"))
    windows.plan(before(orders, 12), "w")
    windows.abandon("w")
    windows.prune(timedelta(0))
    plan = windows.plan(before(orders, 12), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {1, 3}
    assert windows.show("w").pruned is None
    windows.commit(plan)


@pytest.mark.slow
def test_forgotten_windows_leave_nothing_but_progress(windows: OrderedWindows, orders: str) -> None:
    """Stubs among them; another process no longer finds them, and their records never come again."""
    for number, cutoff in enumerate((1, 12, 25)):
        windows.commit(windows.plan(before(orders, cutoff, Earliest()), f"w{number}"))
    windows.plan(before(orders, 35), "open")
    assert windows.prune(timedelta(0)) == ["w0", "w1", "w2"]
    assert windows.prune(timedelta(0), forget=True) == ["w0", "w1", "w2"]
    assert windows.prune(timedelta(0), forget=True) == []
    for service in (windows, OrderedWindows(windows.settings, windows.group_id)):
        assert names(service) == ["open"]
        with pytest.raises(UnknownWindowError):
            service.show("w1")
        with pytest.raises(UnknownWindowError):
            service.replay("w1")
        service.close()
    with OrderedWindows(windows.settings, windows.group_id) as other:
        again = other.plan(before(orders, 12), "w1")
        assert (again.content, again.offsets) == (PlanContent.COVERED, 0)
        rest = other.plan(before(orders, 100), "rest")
        assert rest.offsets == 0
        assert rest.stepped_around == ("open",)


@pytest.mark.slow
def test_pruned_intervals_still_cover_their_times(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """What is late stays late, and gaps stay gaps: that is the group's progress, not the windows'."""
    name = topic()
    produce(stamped(name, 5, 15, 25))
    windows.commit(windows.plan(interval(name, 10, 20), "ten"))
    gaps = windows.gaps()
    windows.prune(timedelta(0), forget=True)
    assert windows.gaps() == gaps
    produce(stamped(name, 12))
    plan = windows.plan(interval(name, 20, 30), "twenty")
    assert offsets_of(read_plan(windows.settings, plan)) == {2, 3}
    assert windows.plan(interval(name, 10, 20), "ten").content is PlanContent.COVERED
    assert windows.plan(sweep(name, 30), "rest").offsets == 1


@pytest.mark.slow
def test_more_windows_than_fit_one_transaction_are_pruned(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """A year of hours or so; a fresh process then reads a group whose records are a fraction as long."""
    count = PRUNED_AT_ONCE_MAX + 20
    name = topic()
    produce(stamped(name, *range(count)))
    asked = [interval(name, n, n + 1) for n in range(count)]
    window_ids = [f"w{n:04}" for n in range(count)]
    plans = windows.plan_many(asked, window_ids)
    assert {plan.offsets for plan in plans} == {1}
    windows.commit_many(plans)
    open_ = windows.plan(interval(name, count, count + 1), "open")
    assert sorted(windows.prune(timedelta(0))) == window_ids
    with OrderedWindows(windows.settings, windows.group_id) as other:
        records = other.list()
        assert [record.plan.window_id for record in records] == [*window_ids, "open"]
        assert {record.pruned for record in records[:-1]} == {Pruned(offsets=1, lost=0)}
        assert other.show("open").plan == open_
        assert len(other.prune(timedelta(0), forget=True)) == count
        assert names(other) == ["open"]
        state = other.state()
        assert state is not None
        assert [one.base for _, one in state] == [count]


def test_a_prune_of_nothing_writes_nothing(windows: OrderedWindows, orders: str) -> None:
    """Neither in a group that was never planned, nor where all is young, nor twice."""
    assert windows.prune(timedelta(0)) == []
    assert windows.state() is None
    with pytest.raises(ConfigError, match="negative"):
        windows.prune(timedelta(seconds=-1))
    windows.commit(windows.plan(before(orders, 1, Earliest()), "young"))
    state = windows.state()
    assert windows.prune(timedelta(days=1)) == []
    assert windows.state() == state
