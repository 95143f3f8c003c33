"""Tries at one window: which may write, commit, publish and report, and which were superseded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import ConfigError, Earliest, WindowPlan, WindowSupersededError
from kafka_ordered_ops.core.group.decisions.splitting import shares
from kafka_ordered_ops.core.types import (
    WindowStatus,
)
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.interval_oracle import stamped
from tests.support.logs import read_plan, write_afresh
from tests.support.windows_support import BASE_MS, TIMEOUT_S, before, offsets_of, wait_until_gone
from tests.windows.test_delivery import Shelf


def _commit(windows: OrderedWindows, plan: WindowPlan) -> object:
    return windows.commit(plan)


def _mark_processed(windows: OrderedWindows, plan: WindowPlan) -> object:
    windows.mark_processed(plan, plan.taken)
    return None


def _mark_written(windows: OrderedWindows, plan: WindowPlan) -> object:
    return windows.mark_written(plan, {"rows": 1})


def _publish(windows: OrderedWindows, plan: WindowPlan) -> object:
    return windows.publish(plan, Shelf().write(plan))


def _report(windows: OrderedWindows, plan: WindowPlan) -> object:
    return windows.report(shares(plan, 1)[0], {})


def _split(windows: OrderedWindows, plan: WindowPlan) -> object:
    return windows.split(plan, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [_commit, _mark_processed, _mark_written, _publish, _report, _split]
)
@pytest.mark.parametrize("how", ["taken up", "abandoned", "planned anew"])
def test_a_superseded_try_gets_nowhere(
    windows: OrderedWindows,
    orders: str,
    step: Callable[[OrderedWindows, WindowPlan], object],
    how: str,
) -> None:
    """At every step; the window is as the newer attempt left it."""
    asked = before(orders, 12, Earliest())
    old = windows.plan(asked, "w")
    windows.split(old, 1)
    if how != "taken up":
        windows.abandon("w")
    if how != "abandoned":
        windows.split(windows.plan(asked, "w"), 1)
    record = windows.show("w")
    told = "abandoned meanwhile" if how == "abandoned" else "Another attempt"
    with pytest.raises(WindowSupersededError, match=told):
        step(windows, old)
    assert windows.show("w") == record


@pytest.mark.parametrize("how", ["committed", "published"])
def test_a_second_copy_is_refused_when_the_window_is_done(
    windows: OrderedWindows, orders: str, how: str
) -> None:
    """An attempt that hands over an output after a newer one has committed is told; to commit again is no news."""
    asked = before(orders, 12, Earliest())
    old, newest = (windows.plan(asked, "w") for _ in range(2))
    shelf = Shelf()
    windows.commit(newest, shelf.write(newest) if how == "published" else None)
    record, shown = windows.show("w"), dict(shelf.published)
    for step in (
        lambda: windows.mark_written(old, {"rows": 1}),
        lambda: windows.commit(old, shelf.write(old)),
        lambda: windows.publish(old, shelf.write(old)),
        lambda: windows.deliver(old, shelf.write, shelf.reopen),
    ):
        with pytest.raises(WindowSupersededError, match="Another attempt"):
            step()
        assert (windows.show("w"), shelf.published) == (record, shown)
    assert windows.commit(old).status is record.plan.status


def test_attempts_rise_with_every_try(windows: OrderedWindows, orders: str) -> None:
    """Only the newest commits; an abandoned id starts over, under another claim."""
    asked = before(orders, 12, Earliest())
    tries = [windows.plan(asked, "w") for _ in range(3)]
    assert [plan.attempt for plan in tries] == [1, 2, 3]
    assert len({plan.claim_id for plan in tries}) == 1
    windows.abandon("w")
    anew = windows.plan(asked, "w")
    assert (anew.attempt, anew.taken) == (1, tries[0].taken)
    assert anew.claim_id != tries[0].claim_id
    for plan in tries:
        with pytest.raises(WindowSupersededError, match="claim"):
            windows.commit(plan)
    windows.commit(anew)
    # Once it is committed, every attempt of the same claim may say so; those of another claim may not.
    with pytest.raises(WindowSupersededError):
        windows.commit(tries[2])


def test_a_window_is_taken_up_as_it_stands(windows: OrderedWindows, orders: str) -> None:
    """Written stays written and committed committed, with what the sink said."""
    asked = before(orders, 12, Earliest())
    windows.mark_written(windows.plan(asked, "w"), {"rows": 3})
    written = windows.plan(asked, "w")
    assert (written.status, written.attempt) == (WindowStatus.WRITTEN, 2)
    assert windows.show("w").result == {"rows": 3}
    windows.commit(written)
    assert windows.plan(asked, "w").status is WindowStatus.COMMITTED
    assert windows.show("w").plan.attempt == 2


def test_nothing_is_made_visible_before_its_window_is_committed(
    windows: OrderedWindows, orders: str
) -> None:
    """Publishing asks the ledger first, not afterwards."""
    shelf = Shelf()
    plan = windows.plan(before(orders, 12, Earliest()), "w")
    output = shelf.write(plan)
    with pytest.raises(ConfigError, match="is planned: commit it before"):
        windows.publish(plan, output)
    assert (len(shelf.staged), shelf.published) == (1, {})


def test_a_preview_of_an_open_window_cannot_be_committed(
    windows: OrderedWindows, orders: str
) -> None:
    """It shows what is planned, and is no attempt at it."""
    plan = windows.plan(before(orders, 12, Earliest()), "w")
    preview = windows.preview(before(orders, 12), "w")
    assert preview.taken == plan.taken
    with pytest.raises(ConfigError, match="preview"):
        windows.commit(preview)


def test_what_an_abandoned_window_held_is_looked_at_again(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """An out-of-order record that it had taken lies among records of which only the others' times are known."""
    name = topic()
    produce(stamped(name, 1, 20, 21, 5, 22))
    windows.commit(windows.plan(before(name, 2, Earliest()), "first"))
    windows.plan(before(name, 10), "w")
    windows.abandon("w")
    again = windows.plan(before(name, 15), "again")
    assert offsets_of(read_plan(windows.settings, again)) == {3}


def test_an_origin_that_was_given_up_leaves_nothing_known_of_its_topic(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """The topic is deleted and recreated before the next first plan: old bounds say nothing about it."""
    name = topic()
    produce(stamped(name, 0, 1, 20, 21))
    windows.plan(before(name, 10, Earliest()), "w")
    windows.abandon("w")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    wait_until_gone(bootstrap, name)
    topic(name)
    write_afresh(bootstrap, name, 0, [BASE_MS + second * 1000 for second in (100, 1, 2, 3)])
    plan = windows.plan(before(name, 10, Earliest()), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {1, 2, 3}
