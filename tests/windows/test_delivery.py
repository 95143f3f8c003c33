"""Bringing a window from wherever an earlier attempt left it to published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from kafka_ordered_ops import Earliest, SinkError, Window, WindowPlan, WindowSupersededError
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.windows_support import BASE_MS, at


@dataclass
class Shelf:
    """A sink in memory: what is staged by attempt, what is published by window."""

    staged: dict[str, str] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)
    jobs: int = 0

    def write(self, plan: WindowPlan) -> Output:
        """The user's job."""
        self.jobs += 1
        name = f"{plan.window_id}/{plan.claim_id}-{plan.attempt}-{self.jobs}"
        self.staged[name] = plan.window_id
        return Output(self, name)

    def reopen(self, result: Mapping[str, Any]) -> Output | None:
        """What an earlier attempt wrote, if it is still there."""
        name = result.get("name")
        if name in self.staged or name in self.published.values():
            return Output(self, str(name))
        return None


@dataclass
class Output:
    """One attempt's output on a shelf."""

    shelf: Shelf
    name: str

    def to_json(self) -> dict[str, Any]:
        """What the ledger keeps."""
        return {"name": self.name}

    def publish(self) -> None:
        """Idempotent."""
        window_id = self.shelf.staged.pop(self.name, None)
        if window_id is not None:
            self.shelf.published[window_id] = self.name
        elif self.name not in self.shelf.published.values():
            raise SinkError(f"{self.name} is gone")

    def discard(self) -> None:
        """Idempotent."""
        self.shelf.staged.pop(self.name, None)


@pytest.fixture
def window(topic: MakeTopic, produce: Produce) -> Window:
    """Three records in one partition."""
    name = topic()
    produce((name, 0, None, b"x", BASE_MS + n, ()) for n in range(3))
    return Window([name], at(100), starting_offsets=Earliest())


def test_a_window_is_delivered_once(windows: OrderedWindows, window: Window) -> None:
    """Job, commit, publish; again, the same window: nothing runs."""
    shelf = Shelf()
    first = windows.deliver(windows.plan(window, "w"), shelf.write, shelf.reopen)
    assert (first.ran, first.record.status) == (True, WindowStatus.PUBLISHED)
    second = windows.deliver(windows.plan(window, "w"), shelf.write, shelf.reopen)
    assert (second.ran, second.record) == (False, first.record)
    assert (shelf.jobs, list(shelf.published)) == (1, ["w"])


def test_a_written_window_is_only_committed(windows: OrderedWindows, window: Window) -> None:
    """The job of the attempt that died is not run again."""
    shelf = Shelf()
    plan = windows.plan(window, "w")
    windows.mark_written(plan, shelf.write(plan).to_json())
    retry = windows.deliver(windows.plan(window, "w"), shelf.write, shelf.reopen)
    assert (retry.ran, shelf.jobs) == (False, 1)
    assert retry.record.status is WindowStatus.PUBLISHED


def test_a_committed_window_is_only_published(windows: OrderedWindows, window: Window) -> None:
    """Between commit and publish nothing is lost."""
    shelf = Shelf()
    plan = windows.plan(window, "w")
    windows.mark_written(plan, shelf.write(plan).to_json())
    windows.commit(plan)
    retry = windows.deliver(windows.plan(window, "w"), shelf.write, shelf.reopen)
    assert (retry.ran, shelf.jobs) == (False, 1)
    assert list(shelf.published) == ["w"]


@pytest.mark.parametrize("committed", [False, True])
def test_output_that_is_gone_is_written_again(
    windows: OrderedWindows, window: Window, committed: bool
) -> None:
    """The newest result is the one the ledger keeps, so that a third try runs nothing."""
    shelf = Shelf()
    plan = windows.plan(window, "w")
    windows.mark_written(plan, shelf.write(plan).to_json())
    if committed:
        windows.commit(plan)
    shelf.staged.clear()
    second = windows.deliver(windows.plan(window, "w"), shelf.write, shelf.reopen)
    assert (second.ran, shelf.jobs) == (True, 2)
    third = windows.deliver(windows.plan(window, "w"), shelf.write, shelf.reopen)
    assert (third.ran, shelf.jobs) == (False, 2)
    assert third.record.result == {"name": shelf.published["w"]}


def test_a_covered_window_never_reaches_the_sink(windows: OrderedWindows, window: Window) -> None:
    """Others deliver its records: an empty overwrite would be a loss."""
    shelf = Shelf()
    windows.deliver(windows.plan(window, "w"), shelf.write, shelf.reopen)
    covered = windows.deliver(windows.plan(window, "same"), shelf.write, shelf.reopen)
    assert covered.plan.content is PlanContent.COVERED
    assert covered.record.status is WindowStatus.COMMITTED
    assert (covered.ran, shelf.jobs) == (False, 1)


def test_a_failed_job_commits_nothing(windows: OrderedWindows, window: Window) -> None:
    """The window stays planned, and the next attempt gets the same plan."""

    def fail(plan: WindowPlan) -> Output:
        raise SinkError("no space")

    plan = windows.plan(window, "w")
    with pytest.raises(SinkError):
        windows.deliver(plan, fail, Shelf().reopen)
    assert windows.show("w").status is WindowStatus.PLANNED
    assert windows.plan(window, "w").taken == plan.taken


@pytest.mark.slow
def test_a_try_that_was_taken_over_leaves_nothing_behind(
    windows: OrderedWindows, window: Window
) -> None:
    """Its commit is refused, and its hidden output is removed; the newer attempt's is what shows."""
    shelf = Shelf()
    slow = windows.plan(window, "w")
    quick = windows.deliver(windows.plan(window, "w"), shelf.write, shelf.reopen)
    other = windows.plan(Window(list(window.topics), at(200)), "other")
    windows.plan(Window(list(window.topics), at(200)), "other")
    with pytest.raises(WindowSupersededError):
        windows.deliver(other, shelf.write, shelf.reopen)
    assert shelf.staged == {}
    assert shelf.published == {"w": quick.record.result["name"]}
    assert windows.commit(slow).status is WindowStatus.PUBLISHED


def test_what_the_ledger_names_is_kept_for_the_try_that_takes_over(
    windows: OrderedWindows, window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overtaken once its output is written down, an attempt leaves it: the newer one need not write again."""
    shelf = Shelf()
    plan = windows.plan(window, "w")
    commit_many = windows.commit_many
    taken_over: list[WindowPlan] = []

    def overtaken(plans: Any, staged: Any) -> list[WindowPlan]:
        windows.mark_written_many(plans, [one.to_json() for one in staged])
        taken_over.append(windows.plan(window, "w"))
        return commit_many(plans, staged)

    with monkeypatch.context() as patch:
        patch.setattr(windows, "commit_many", overtaken)
        with pytest.raises(WindowSupersededError):
            windows.deliver(plan, shelf.write, shelf.reopen)
    [newer] = taken_over
    delivered = windows.deliver(newer, shelf.write, shelf.reopen)
    assert (delivered.ran, shelf.jobs) == (False, 1)
    assert list(shelf.published) == ["w"]


@pytest.mark.parametrize(
    "result",
    [
        {"rows": 2**70},
        {"rows": float("nan")},
        {"text": "\ud800"},
        {"when": at(1)},
        {1: "one", "two": 2},
        {"text": "x" * 1_100_000},
    ],
    ids=["beyond 64 bits", "not a number", "half a character", "an object", "keys", "too large"],
)
def test_a_result_that_nobody_could_read_again_is_refused(
    windows: OrderedWindows, orders: str, result: dict[str, Any]
) -> None:
    """Written down it would lock the group; refused, the window stays as it was."""
    plan = windows.plan(Window([orders], at(60), starting_offsets=Earliest()), "w")
    with pytest.raises(SinkError, match=r"window w of group .* cannot be stored"):
        windows.mark_written(plan, result)
    assert windows.show("w").status is WindowStatus.PLANNED
    assert windows.mark_written(plan, {"rows": 2**60}).status is WindowStatus.WRITTEN
    assert windows.show("w").result == {"rows": 2**60}
