"""Open claims, what happens between the look and the fence, and covered windows, on a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    OpenClaimError,
    UnknownWindowError,
    WindowCoveredError,
    WindowPlan,
    WindowSupersededError,
)
from kafka_ordered_ops.core.types import (
    OnCovered,
    OnOpenClaim,
    PlanContent,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.windows import OrderedWindows, Policy
from tests.support.interval_oracle import commit_as_another, interval, sweep
from tests.support.logs import read_plan
from tests.support.windows_support import TIMEOUT_S, at, before, offsets_of

DAY_S = 86_400.0
WAIT = Policy(on_open_claim=OnOpenClaim.WAIT)
FAIL = Policy(on_open_claim=OnOpenClaim.FAIL)
TAKE_OVER = Policy(on_open_claim=OnOpenClaim.TAKE_OVER)


def at_clock(windows: OrderedWindows, clock: Callable[[], float]) -> OrderedWindows:
    """Another process of the same group, with a clock of its own."""
    return OrderedWindows(windows.settings, windows.group_id, clock=clock)


def yesterday() -> float:
    """A clock by which everything happened long ago."""
    return time.time() - 2 * DAY_S


class Interruption:
    """A clock that, asked for the n-th time, lets somebody else act first: a race that always happens."""

    def __init__(self, at_call: int, action: Callable[[], object]) -> None:
        self._left = at_call
        self._action = action
        self.happened = False

    def __call__(self) -> float:
        self._left -= 1
        if not self._left:
            self._action()
            self.happened = True
        return time.time()


# --- open claims ------------------------------------------------------------------------------------


def test_open_windows_are_stepped_around_and_named(windows: OrderedWindows, orders: str) -> None:
    """By default: their offsets are left alone, whoever commits first."""
    early = windows.plan(before(orders, 12, Earliest()), "early")
    middle = windows.plan(before(orders, 18), "middle")
    late = windows.plan(before(orders, 100), "late")
    assert [plan.stepped_around for plan in (early, middle, late)] == [
        (),
        ("early",),
        ("early", "middle"),
    ]
    found = [offsets_of(read_plan(windows.settings, plan)) for plan in (early, middle, late)]
    assert found == [{0, 1, 3}, {5}, {2, 4}]
    assert windows.show("late").plan.stepped_around == ("early", "middle")


@pytest.mark.slow
def test_a_plan_waits_until_open_windows_are_committed(
    windows: OrderedWindows, orders: str
) -> None:
    """Then it takes what is left, and stepped around nobody."""
    early = windows.plan(before(orders, 12, Earliest()), "early")
    found: list[WindowPlan] = []

    def wait() -> None:
        with OrderedWindows(windows.settings, windows.group_id) as other:
            found.append(other.plan(before(orders, 100), "late", WAIT))

    waiting = threading.Thread(target=wait)
    waiting.start()
    # Longer than it takes to plan: it can only be alive because it waits.
    waiting.join(3.0)
    assert waiting.is_alive()
    windows.commit(early)
    waiting.join(TIMEOUT_S)
    [late] = found
    assert late.stepped_around == ()
    assert offsets_of(read_plan(windows.settings, late)) == {2, 4, 5}


@pytest.mark.slow
def test_a_plan_that_waited_takes_what_was_abandoned(windows: OrderedWindows, orders: str) -> None:
    """An open window that is given up is no longer in the way, and its records are free."""
    windows.commit(windows.plan(before(orders, 1, Earliest()), "first"))
    windows.plan(before(orders, 12), "early")
    # Long enough for a first look that finds it open; were it not, the answer would be the same.
    giving_up = threading.Timer(1.0, lambda: windows.abandon("early"))
    with OrderedWindows(windows.settings, windows.group_id) as other:
        giving_up.start()
        late = other.plan(before(orders, 100), "late", WAIT)
    giving_up.join()
    assert offsets_of(read_plan(windows.settings, late)) == {1, 2, 3, 4, 5}


def test_a_plan_does_not_wait_for_ever(windows: OrderedWindows, orders: str) -> None:
    """After `claim_wait` it fails, names the windows, and may be tried again."""
    windows.plan(before(orders, 12, Earliest()), "early")
    impatient = replace(WAIT, claim_wait=timedelta(milliseconds=1))
    with pytest.raises(OpenClaimError, match=r"PT0\.001S") as caught:
        windows.plan(before(orders, 100), "late", impatient)
    assert caught.value.open_windows == ["early"]
    assert caught.value.window_id == "late"
    assert caught.value.retriable
    assert [record.plan.window_id for record in windows.list()] == ["early"]


@pytest.mark.slow
def test_a_plan_can_refuse_to_step_around(windows: OrderedWindows, orders: str) -> None:
    """Nothing is written; what is only being taken up, or done, stands in nobody's way."""
    early = windows.plan(before(orders, 12, Earliest()), "early")
    with pytest.raises(OpenClaimError, match="early") as caught:
        windows.plan(before(orders, 100), "late", FAIL)
    assert caught.value.open_windows == ["early"]
    with pytest.raises(UnknownWindowError):
        windows.show("late")
    again = windows.plan(before(orders, 12), "early", FAIL)
    assert (again.attempt, again.taken) == (2, early.taken)
    windows.commit(again)
    assert windows.plan(before(orders, 100), "late", FAIL).stepped_around == ()


def test_intervals_that_do_not_meet_are_not_in_the_way(
    windows: OrderedWindows, orders: str
) -> None:
    """An open window of other times holds nothing that is asked for; a sweep is in everybody's way."""
    windows.plan(interval(orders, 0, 10), "first")
    windows.plan(interval(orders, 10, 20), "second", FAIL)
    for policy in (FAIL, replace(WAIT, claim_wait=timedelta(0))):
        with pytest.raises(OpenClaimError, match="second"):
            windows.plan(interval(orders, 15, 25), "across", policy)
    windows.plan(sweep(orders, 100), "sweep")
    with pytest.raises(OpenClaimError) as caught:
        windows.plan(interval(orders, 40, 50), "third", FAIL)
    assert caught.value.open_windows == ["sweep"]


def test_windows_of_the_same_call_are_not_in_each_other_s_way(
    windows: OrderedWindows, orders: str
) -> None:
    """A list that is planned again with one more: this very try takes up those that are open."""
    asked = [before(orders, second, Earliest()) for second in (12, 18)]
    windows.plan_many(asked, ["a", "b"], FAIL)
    plans = windows.plan_many([*asked, before(orders, 100, Earliest())], ["a", "b", "c"], FAIL)
    assert [plan.attempt for plan in plans] == [2, 2, 1]
    assert offsets_of(read_plan(windows.settings, plans[2])) == {2, 4}


@pytest.mark.slow
@pytest.mark.parametrize("policy", [FAIL, replace(WAIT, claim_wait=timedelta(0))])
def test_a_claim_that_appears_while_a_window_is_drafted_is_in_the_way(
    windows: OrderedWindows, orders: str, policy: Policy
) -> None:
    """Between the look at the group and the fence: the fence looks again."""
    windows.commit(windows.plan(before(orders, 1, Earliest()), "first"))
    race = Interruption(2, lambda: windows.plan(before(orders, 12), "early"))
    with at_clock(windows, race) as other, pytest.raises(OpenClaimError) as caught:
        other.plan(before(orders, 100), "late", policy)
    assert race.happened
    assert caught.value.open_windows == ["early"]


@pytest.mark.slow
def test_forgotten_claims_are_taken_over(windows: OrderedWindows, orders: str) -> None:
    """Those planned, and older than the limit: told, and their attempts can never commit."""
    with at_clock(windows, yesterday) as past:
        old = past.plan(before(orders, 12, Earliest()), "old")
        written = past.plan(before(orders, 18), "written")
        past.mark_written(written, {"rows": 1})
    young = windows.plan(before(orders, 25), "young")
    late = windows.plan(before(orders, 100), "late", TAKE_OVER)
    assert late.stepped_around == ("written", "young")
    assert offsets_of(read_plan(windows.settings, late)) == {0, 1, 3, 4}
    [note] = late.notes
    assert "abandoned window old" in note
    assert "P2D" in note
    assert windows.show("old").status is WindowStatus.ABANDONED
    with pytest.raises(WindowSupersededError):
        windows.commit(old)
    windows.commit_many([young, late])
    # Its output was complete: it commits whenever somebody comes back to it.
    windows.commit(written)


def test_the_age_of_a_claim_has_a_limit_of_the_caller_s(
    windows: OrderedWindows, orders: str
) -> None:
    """A claim younger than that is stepped around."""
    with at_clock(windows, yesterday) as past:
        past.plan(before(orders, 12, Earliest()), "old")
    patient = replace(TAKE_OVER, claim_age=timedelta(days=3))
    late = windows.plan(before(orders, 100), "late", patient)
    assert (late.stepped_around, late.notes) == (("old",), ())


def test_a_claim_that_was_touched_meanwhile_is_not_taken_over(
    windows: OrderedWindows, orders: str
) -> None:
    """Somebody came back to it between the look and the fence: it is stepped around, and nothing else told."""
    with at_clock(windows, yesterday) as past:
        past.plan(before(orders, 12, Earliest()), "old")
    revived: list[WindowPlan] = []
    race = Interruption(
        2, lambda: revived.append(windows.plan(before(orders, 12, Earliest()), "old"))
    )
    with at_clock(windows, race) as other:
        late = other.plan(before(orders, 100), "late", TAKE_OVER)
    assert race.happened
    assert (late.stepped_around, late.notes) == (("old",), ())
    assert windows.commit(revived[0]).status is WindowStatus.COMMITTED


@pytest.mark.slow
def test_a_report_of_a_part_keeps_a_claim_young(windows: OrderedWindows, orders: str) -> None:
    """A split window is being worked on as long as parts report."""
    with at_clock(windows, yesterday) as past:
        plan = past.plan(before(orders, 12, Earliest()), "old")
        parts = past.split(plan, 2)
    windows.report(parts[0], {})
    late = windows.plan(before(orders, 100), "late", TAKE_OVER)
    assert late.stepped_around == ("old",)
    windows.report(parts[1], {})
    windows.commit(plan)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ({"claim_age": timedelta(0)}, "more than zero"),
        ({"claim_wait": timedelta(seconds=-1)}, "is negative"),
    ],
)
def test_a_policy_needs_spans_of_time(spans: dict[str, Any], message: str) -> None:
    """No age and less than no wait are slips."""
    with pytest.raises(ConfigError, match=message):
        Policy(**spans)


# --- between the look and the fence ------------------------------------------------------------------


class BetweenScanAndFence:
    """A scan's progress: once all is read, and before it is decided, somebody else acts."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self.happened = False

    def __call__(self, done: int, total: int) -> None:
        if done == total and not self.happened:
            self.happened = True
            self._action()


#: What somebody else does to a group whose windows are: "done" (before second 1, offset 0), "open" (before
#: second 12, offsets 1 and 3); and which offsets the window before second 25 then takes.
MEANWHILE: dict[str, tuple[Callable[[OrderedWindows, str], object], set[int]]] = {
    "nothing": (lambda windows, _: windows.state(), {2, 5}),
    "a window is planned": (lambda windows, name: windows.plan(before(name, 18), "other"), {2}),
    "a window is planned and given up": (
        lambda windows, name: (
            windows.plan(before(name, 18), "other"),
            windows.abandon("other"),
        ),
        {2, 5},
    ),
    "the open one is committed": (
        lambda windows, _: windows.commit(windows.show("open").plan),
        {2, 5},
    ),
    "the open one is given up": (lambda windows, _: windows.abandon("open"), {1, 2, 3, 5}),
    "all is delivered": (
        lambda windows, name: windows.commit(windows.plan(before(name, 100), "other")),
        set(),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("kind", ["catch-up", "interval"])
def test_a_window_is_decided_by_the_group_as_it_is_inside_the_fence(
    windows: OrderedWindows, orders: str, meanwhile: str, kind: str
) -> None:
    """Whatever happens to the group once its logs were read: what is free then is taken, and no more."""
    action, expected = MEANWHILE[meanwhile]
    windows.commit(windows.plan(before(orders, 1, Earliest()), "done"))
    windows.plan(before(orders, 12), "open")
    asked, policy = before(orders, 25), Policy()
    if kind == "interval":
        # Over the same records: those before second 1 are done.
        asked, policy = replace(asked, since=at(0)), Policy(redefine=True)
    race = BetweenScanAndFence(lambda: action(windows, orders))
    with OrderedWindows(windows.settings, windows.group_id, progress=race) as other:
        plan = other.plan(asked, "w", policy)
    assert race.happened
    assert offsets_of(read_plan(windows.settings, plan)) == expected
    # Who plans after it sees it.
    assert windows.plan(before(orders, 25), "next", Policy(redefine=True)).offsets == 0


def test_a_window_goes_behind_a_cut_that_was_adopted_meanwhile(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """Progress moved back once the logs were read: what it gave back is looked at as well."""
    windows.commit(windows.plan(before(orders, 12, Earliest()), "done"))

    def move() -> None:
        commit_as_another(bootstrap, windows.group_id, TopicPartition(orders, 0), 0)
        windows.adopt()

    race = BetweenScanAndFence(move)
    with OrderedWindows(windows.settings, windows.group_id, progress=race) as other:
        plan = other.plan(before(orders, 25), "w")
    assert race.happened
    assert offsets_of(read_plan(windows.settings, plan)) == {0, 1, 2, 3, 5}


def test_an_id_that_somebody_else_plans_meanwhile_is_taken_up(
    windows: OrderedWindows, orders: str
) -> None:
    """Two first tries at once: one window, and only the later one may commit."""
    asked = before(orders, 12, Earliest())
    first: list[WindowPlan] = []
    race = Interruption(2, lambda: first.append(windows.plan(asked, "w")))
    with at_clock(windows, race) as other:
        second = other.plan(asked, "w")
    assert (second.attempt, second.claim_id) == (2, first[0].claim_id)
    with pytest.raises(WindowSupersededError):
        windows.commit(first[0])
    windows.commit(second)


# --- covered ----------------------------------------------------------------------------------------


def test_a_covered_interval_is_skipped_replayed_or_refused(
    windows: OrderedWindows, orders: str
) -> None:
    """As in a group without beginnings: the plan of the window that has the same times, or an error."""
    windows.commit(windows.plan(interval(orders, 10, 20), "hour"))
    windows.plan(interval(orders, 20, 40), "later")
    skipped = windows.plan(interval(orders, 10, 20), "skip")
    assert (skipped.content, skipped.offsets) == (PlanContent.COVERED, 0)
    with pytest.raises(WindowCoveredError):
        windows.plan(interval(orders, 10, 20), "fail", Policy(on_covered=OnCovered.FAIL))
    replay = Policy(on_covered=OnCovered.REPLAY)
    replayed = windows.plan(interval(orders, 10, 20), "replay", replay)
    assert replayed == windows.show("hour").plan
    # Nobody has exactly these times; and an open window cannot be replayed.
    for since, cutoff in ((10, 15), (20, 40)):
        with pytest.raises(WindowCoveredError):
            windows.plan(interval(orders, since, cutoff), "nobody", replay)
    with pytest.raises(UnknownWindowError):
        windows.show("nobody")


def test_an_empty_window_is_replayed_as_empty(windows: OrderedWindows, orders: str) -> None:
    """Nothing happened then: whoever asks the same question later is told so, and gets no error."""
    windows.commit(windows.plan(interval(orders, 0, 40), "all"))
    nothing = windows.commit(windows.plan(interval(orders, 40, 50), "nothing"))
    assert nothing.content is PlanContent.EMPTY
    again = windows.plan(interval(orders, 40, 50), "again", Policy(on_covered=OnCovered.REPLAY))
    assert again == nothing


def test_covered_windows_among_several_are_replayed(windows: OrderedWindows, orders: str) -> None:
    """Each in its place of the list; the others are planned."""
    windows.commit(windows.plan(interval(orders, 10, 20), "hour"))
    plans = windows.plan_many(
        [interval(orders, since, since + 10) for since in (0, 10, 20)],
        ["a", "b", "c"],
        Policy(on_covered=OnCovered.REPLAY),
    )
    assert [plan.window_id for plan in plans] == ["a", "hour", "c"]
    assert [offsets_of(read_plan(windows.settings, plan)) for plan in plans] == [
        {0, 3},
        {1, 5},
        {2},
    ]
