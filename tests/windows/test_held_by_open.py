"""What a plan says of the open windows that keep it short."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kafka_ordered_ops import ConfigError, Earliest, Window, WindowPlan
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.plan import HeldElsewhere
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows, Policy
from tests.support.windows_support import BASE_MS, at


@pytest.fixture
def windows() -> Iterator[OrderedWindows]:
    """A group on the topic ``orders``: seconds 0, 10, 20, 5, 30, 15 at offsets 0 to 5."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for second in (0, 10, 20, 5, 30, 15):
            kafka.produce("orders", timestamp_ms=BASE_MS + second * 1000)
        with OrderedWindows(kafka.settings, "g", clock=lambda: BASE_MS / 1000 + 10_000) as service:
            yield service


def asked(before: float, since: float | None = None) -> Window:
    """Records up to a second, from another one on where it is given."""
    return Window(
        ["orders"],
        at(before),
        since=None if since is None else at(since),
        starting_offsets=Earliest(),
    )


def held(plan: WindowPlan) -> dict[str, int]:
    """The offsets that each open window holds."""
    return {one.window_id: one.offsets for one in plan.held_by_open}


def test_the_run_after_a_failed_one_says_what_it_leaves_to_it(
    windows: OrderedWindows, caplog: pytest.LogCaptureFixture
) -> None:
    """Which window, how many offsets, its status and age; in the result, the ledger and the log."""
    windows.plan(asked(12), "failed")
    plan = windows.plan(asked(22), "next")
    touched_ms = windows.show("failed").touched_at_ms
    expected = HeldElsewhere("failed", 3, WindowStatus.PLANNED, touched_ms)
    assert plan.held_by_open == (expected,)
    assert windows.show("next").plan.held_by_open == (expected,)
    [told] = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert "window next leaves up to 3 offsets" in told
    assert "failed (3 offsets, planned" in told
    windows.abandon("failed")
    assert held(windows.plan(asked(23), "third")) == {"next": 2}


def test_an_interval_is_told_of_those_that_hold_its_times(windows: OrderedWindows) -> None:
    """The same interval under another id, and none of the others; so in a preview."""
    windows.plan(asked(20, since=10), "mine")
    windows.plan(asked(10, since=0), "before")
    assert held(windows.plan(asked(20, since=10), "again")) == {"mine": 2}
    assert held(windows.preview(asked(31, since=20), "after")) == {}
    assert held(windows.preview(asked(15, since=5), "across")) == {"mine": 2, "before": 2}


def test_a_sweep_is_told_of_all(windows: OrderedWindows) -> None:
    """It asks for all times."""
    windows.plan(asked(20, since=10), "mine")
    sweep = Window(["orders"], at(40), sweep=True)
    assert held(windows.plan(sweep, "sweep")) == {"mine": 2}


def test_of_windows_planned_together_those_that_ask_are_told(windows: OrderedWindows) -> None:
    """A backfill over an interval that somebody else holds."""
    windows.plan(asked(20, since=10), "mine")
    plans = windows.plan_many([asked(one + 10, since=one) for one in (0, 10, 20)], ["a", "b", "c"])
    assert [held(plan) for plan in plans] == [{}, {"mine": 2}, {}]


def test_a_run_tells_of_windows_that_nobody_works_on(windows: OrderedWindows) -> None:
    """Also beside its own times: once they are older than `claim_age`, and not those that it names anyway."""
    long_ago = OrderedWindows(windows.settings, "g", clock=lambda: BASE_MS / 1000 + 100)
    with long_ago:
        long_ago.plan(asked(10, since=0), "marked")
        long_ago.plan(asked(20, since=10), "in-the-way")
    age = Policy(claim_age="PT2H")
    [note] = windows.plan(asked(20, since=10), "again", age).notes
    assert note.startswith("group g has 1 open window untouched for long: marked (")
    assert "(2 offsets, planned, untouched for PT2H45M)" in note
    # Beside intervals, at most their own length: an hour, or less than two.
    assert "marked (" in windows.plan(asked(20, since=11), "short").notes[0]
    day = asked(0, since=-24 * 3600)
    assert "marked (" not in "".join(windows.plan(day, "long").notes)


def test_a_group_says_which_windows_hold_records(windows: OrderedWindows) -> None:
    """At any time, without a plan: nothing while each window is young, and nothing once readers have all of it."""
    assert windows.left_notes() == ()
    plan = windows.plan(asked(12), "marked")
    assert windows.left_notes() == ()
    later = OrderedWindows(windows.settings, "g", clock=lambda: BASE_MS / 1000 + 20_000)
    with later:
        [note] = later.left_notes("PT2H")
        assert "group g has 1 open window untouched for long: marked (3 offsets" in note
        assert "run them again, or abandon them" in note
        following = later.plan(asked(22), "next", Policy(claim_age="PT2H"))
        assert later.left_notes("PT2H", beside=[following]) == ()
        with pytest.raises(ConfigError, match="age"):
            later.left_notes("soon")
        windows.commit(plan)
        assert later.left_notes("PT2H") == ()
