"""What a window's id stands for, and what all windows of a group have in common, on a real broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kafka_ordered_ops import (
    AtOffset,
    Earliest,
    GroupMismatchError,
    Latest,
    Window,
    WindowMismatchError,
)
from kafka_ordered_ops.core.types import (
    Isolation,
    Mode,
    OnDataLoss,
)
from kafka_ordered_ops.windows import OrderedWindows, Policy
from tests.conftest import MakeTopic, Produce
from tests.support.interval_oracle import interval, stamped, sweep
from tests.support.logs import read_plan
from tests.support.windows_support import at, before, offsets_of

# --- questions --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("cutoff", {"cutoff": at(50)}),
        ("since", {"since": at(5)}),
        ("starting_offsets", {"starting_offsets": Latest()}),
        ("starting_offsets", {"starting_offsets": AtOffset(3)}),
        ("max_out_of_orderness", {"max_out_of_orderness": timedelta(seconds=1)}),
        ("isolation", {"isolation": Isolation.READ_UNCOMMITTED}),
        ("exclude", {"exclude": ["audit"]}),
        ("topics", {"topics": ["orders", "payments"]}),
    ],
)
def test_another_question_under_the_same_id_is_refused(
    windows: OrderedWindows, orders: str, field: str, change: dict[str, Any]
) -> None:
    """Whatever differs is named, open or done, and the window stays as it is."""
    asked = interval(orders, 10, 40)
    plan = windows.plan(asked, "w")
    for is_done in (False, True):
        found = windows.commit(plan) if is_done else plan
        with pytest.raises(WindowMismatchError, match=field) as caught:
            windows.plan(replace(asked, **change), "w")
        assert set(caught.value.differences) == {field}
        assert windows.show("w").plan == found


def test_a_sweep_is_another_question(windows: OrderedWindows, orders: str) -> None:
    """Before the same cutoff, a sweep and an interval ask for other records."""
    windows.plan(interval(orders, 10, 40), "w")
    with pytest.raises(WindowMismatchError) as caught:
        windows.plan(sweep(orders, 40), "w")
    assert set(caught.value.differences) == {"since", "sweep"}


@pytest.mark.slow
@pytest.mark.parametrize("named", ["first", "later"])
def test_the_start_bound_is_no_question_once_the_group_has_begun(
    windows: OrderedWindows, orders: str, named: str
) -> None:
    """Left out or named later, it asks for the same window."""
    windows.commit(windows.plan(before(orders, 5, Earliest()), "begin"))
    bounds = (Earliest(), None) if named == "first" else (None, Earliest())
    first, second = (windows.plan(before(orders, 12, bound), "w") for bound in bounds)
    assert (second.attempt, second.taken) == (2, first.taken)


def test_how_loss_and_the_future_are_handled_may_change_from_try_to_try(
    windows: OrderedWindows, orders: str
) -> None:
    """They say nothing about which records are meant."""
    asked = before(orders, 12, Earliest())
    windows.plan(asked, "w")
    again = windows.plan(
        replace(asked, on_data_loss=OnDataLoss.WARN, allow_future_cutoff=True), "w"
    )
    assert again.attempt == 2


# --- the definition of a group ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_group_keeps_to_its_mode(windows: OrderedWindows, orders: str) -> None:
    """Intervals and windows without a beginning would contradict each other; a sweep fits both."""
    windows.plan(sweep(orders, 5), "sweep")
    windows.commit(windows.plan(interval(orders, 10, 20), "interval"))
    with pytest.raises(GroupMismatchError, match="mode") as caught:
        windows.plan(before(orders, 40), "all")
    assert caught.value.differences == {"mode": ("interval", "catch_up")}
    windows.plan(sweep(orders, 100), "sweep-again")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("isolation", {"isolation": Isolation.READ_UNCOMMITTED}),
        ("exclude", {"exclude": ["nothing"]}),
    ],
)
def test_a_group_keeps_to_its_selection_of_records(
    windows: OrderedWindows, orders: str, field: str, change: dict[str, Any]
) -> None:
    """Another isolation or selection is most often a slip; nothing is written."""
    windows.plan(before(orders, 12, Earliest()), "w")
    asked = replace(before(orders, 40), **change)
    with pytest.raises(GroupMismatchError, match="redefine") as caught:
        windows.plan(asked, "next")
    assert set(caught.value.differences) == {field}
    assert [record.plan.window_id for record in windows.list()] == ["w"]
    # The windows that there are can always be taken up.
    assert windows.plan(before(orders, 12), "w").attempt == 2


def test_a_group_is_redefined_when_that_is_declared(
    windows: OrderedWindows, orders: str, topic: MakeTopic, produce: Produce
) -> None:
    """From then on the new definition holds; progress stays."""
    more = topic()
    produce(stamped(more, 1, 50))
    windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))
    both = Window([orders, more], at(40), starting_offsets=Earliest())
    with pytest.raises(GroupMismatchError, match="topics"):
        windows.plan(both, "both")
    plan = windows.plan(both, "both", Policy(redefine=True))
    found = read_plan(windows.settings, plan)
    assert {(name, offset) for name, _, offset in found} == {
        (orders, 2),
        (orders, 4),
        (orders, 5),
        (more, 0),
    }
    with pytest.raises(GroupMismatchError):
        windows.plan(before(orders, 100), "alone")
    windows.plan(Window([more, orders], at(100)), "again")


def test_a_sweep_that_redefines_keeps_the_mode(windows: OrderedWindows, orders: str) -> None:
    """A sweep has no mode of its own to give."""
    windows.commit(windows.plan(interval(orders, 10, 20), "interval"))
    uncommitted = replace(sweep(orders, 30), isolation=Isolation.READ_UNCOMMITTED)
    windows.plan(uncommitted, "sweep", Policy(redefine=True))
    state = windows.state()
    assert state is not None
    assert state.definition.mode is Mode.INTERVAL
    assert state.definition.isolation is Isolation.READ_UNCOMMITTED


def test_a_group_without_a_topic_left_can_become_any(windows: OrderedWindows, orders: str) -> None:
    """Its only window was abandoned: nothing contradicts another definition."""
    windows.plan(before(orders, 12, Earliest()), "w")
    windows.abandon("w")
    plan = windows.plan(interval(orders, 10, 20), "w2")
    assert offsets_of(read_plan(windows.settings, plan)) == {1, 5}
    windows.commit(plan)
