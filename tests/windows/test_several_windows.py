"""Several windows in one pass, on a real broker: the same windows as one by one, one scan, one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from random import Random

import pytest
from confluent_kafka import Producer

from kafka_ordered_ops import (
    ConfigError,
    CutoffInFutureError,
    Earliest,
    Latest,
    RecordsLostError,
    SinkError,
    UnknownWindowError,
    Window,
    WindowMismatchError,
    WindowPlan,
    WindowPrunedError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.planning.scan_fold import CHUNK_RECORDS
from kafka_ordered_ops.core.types import (
    Isolation,
    OnDataLoss,
    PlanContent,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.interval_oracle import (
    IntervalOracle,
    interval,
    late_of,
    stamped,
    sweep,
    taken_of,
)
from tests.support.logs import LogWriter, read_plan, visible_records
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, before, delete_before, offsets_of
from tests.windows.test_delivery import Output, Shelf


def ids(windows: Sequence[Window]) -> list[str]:
    """A name for each of several windows."""
    return [f"w{number}" for number in range(len(windows))]


def told(plan: WindowPlan) -> Mapping[object, object]:
    """What a plan says of each partition, but for the form in which lateness is told.

    And but for where out-of-order records begin, which a plan that has read more knows more often.
    """
    return {part.tp: (part.taken, part.lost, part.decided_end) for part in plan} | {
        "content": plan.content
    }


# --- the same windows -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["catch-up", "intervals"])
@pytest.mark.parametrize("seed", range(2))
def test_windows_planned_together_are_those_planned_one_by_one(
    bootstrap: str, topic: MakeTopic, windows: OrderedWindows, kind: str, seed: int
) -> None:
    """Over twins of one log, in any order, behind windows that exist: the same records, the same flags."""
    random = Random(f"{kind} {seed}")
    name = topic(partitions=3)
    writer = LogWriter(bootstrap, random)
    places = [(name, 0), (name, 1)]
    writer.write(places, count=200, low_ms=BASE_MS - 10_000, high_ms=BASE_MS + 60_000)

    def asked(low: int, high: int) -> Window:
        return before(name, high, Earliest()) if kind == "catch-up" else interval(name, low, high)

    edges = sorted(random.sample(range(60), 7))
    first, *rest = [asked(low, high) for low, high in pairwise(edges)]
    random.shuffle(rest)
    with OrderedWindows(windows.settings, f"{windows.group_id}-twin") as twin:
        for service in (windows, twin):
            service.plan(first, "first")
            service.commit(service.plan(asked(2, 20), "over-it"))
        # Late for both of them.
        writer.write(places, count=60, low_ms=BASE_MS - 10_000, high_ms=BASE_MS + 60_000)
        oracle = IntervalOracle(windows, bootstrap, name)
        oracle.look()
        together = windows.plan_many(rest, ids(rest))
        one_by_one = [
            twin.plan(one, window_id) for one, window_id in zip(rest, ids(rest), strict=True)
        ]
        for one, other in zip(together, one_by_one, strict=True):
            assert told(one) == told(other)
            records = taken_of(one, oracle.visible)
            assert late_of(one, records) == late_of(other, records)
        assert any(late_of(plan, taken_of(plan, oracle.visible)) for plan in together)
        windows.commit_many(list(reversed(together)))
        for plan in one_by_one:
            twin.commit(plan)
        mine, other_state = windows.state(), twin.state()
        assert mine is not None
        assert other_state is not None
        assert [(tp, one.done) for tp, one in mine] == [(tp, one.done) for tp, one in other_state]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_backfill_of_intervals_is_exact(
    bootstrap: str, topic: MakeTopic, windows: OrderedWindows, seed: int
) -> None:
    """Against all records of the log: a pass over intervals in no order, then another with late records."""
    random = Random(seed)
    name = topic(partitions=2)
    writer = LogWriter(bootstrap, random)
    oracle = IntervalOracle(windows, bootstrap, name)
    places = [(name, 0), (name, 1)]
    for turn in range(2):
        writer.write(places, count=150, low_ms=BASE_MS, high_ms=BASE_MS + 100_000)
        oracle.look()
        starts = list(range(turn * 50, turn * 50 + 50, 10))
        random.shuffle(starts)
        named = [(f"w{since}", interval(name, since, since + 10)) for since in starts]
        oracle.plan_many(named)
        oracle.check_gaps()
        oracle.commit(*oracle.open, read=turn == 1)
    oracle.plan("rest", sweep(name, 100))
    oracle.commit("rest")
    assert oracle.delivered == oracle.visible


# --- one scan ---------------------------------------------------------------------------------------


def backlog(bootstrap: str, name: str, *, partitions: int, count: int, windows: int) -> int:
    """A backlog that is nearly in order: each record up to a second before the one that came before it.

    Ten seconds for each window; returns the number of records.
    """
    random = Random(0)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 50}
    )
    for partition in range(partitions):
        for number in range(count):
            time_ms = BASE_MS + number * windows * 10_000 // count - random.randrange(1000)
            producer.produce(name, partition=partition, timestamp=max(time_ms, BASE_MS))
        assert producer.flush(TIMEOUT_S) == 0
    return partitions * count


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["catch-up", "intervals", "backward"])
@pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
def test_a_backlog_is_scanned_once(
    bootstrap: str, topic: MakeTopic, windows: OrderedWindows, kind: str, together: bool
) -> None:
    """However many windows: again only what lies around a cutoff, in chunks of bounded size."""
    partitions, count, number = 2, 8_000, 6
    name = topic(partitions=partitions)
    total = backlog(bootstrap, name, partitions=partitions, count=count, windows=number)
    cutoffs = range(10, 10 * number + 1, 10)
    asked = [
        before(name, cutoff, Earliest())
        if kind == "catch-up"
        else interval(name, cutoff - 10, cutoff)
        for cutoff in cutoffs
    ]
    if kind == "backward":
        asked.reverse()
    if together:
        plans = windows.plan_many(asked, ids(asked))
        # In one pass nothing is read twice.
        assert [plan.scanned for plan in plans[1:]] == [0] * (number - 1)
        assert plans[0].scanned <= total
    else:
        plans = [
            windows.plan(one, window_id) for one, window_id in zip(asked, ids(asked), strict=True)
        ]
        again = sum(plan.scanned for plan in plans) - total
        # A cutoff lies in at most two chunks of a partition whose records are out of order by a second.
        assert again <= 2 * CHUNK_RECORDS * partitions * number
        # The bound would say nothing if each window read the whole backlog.
        assert 2 * CHUNK_RECORDS * partitions * number < total * (number - 1)
    windows.commit_many(plans)
    state = windows.state()
    assert state is not None
    assert [one.base for _, one in state] == [count] * partitions


def test_what_is_planned_again_is_not_scanned_again(
    bootstrap: str, topic: MakeTopic, windows: OrderedWindows
) -> None:
    """Taking up reads no log; and a window of times that were all scanned reads none."""
    name = topic()
    backlog(bootstrap, name, partitions=1, count=4_000, windows=4)
    asked = [interval(name, low, low + 10) for low in (0, 10)]
    first = windows.plan_many(asked, ["a", "b"])
    assert sum(plan.scanned for plan in first) >= 2_000
    again = windows.plan_many(asked, ["a", "b"])
    assert [(plan.attempt, plan.scanned) for plan in again] == [
        (2, first[0].scanned),
        (2, 0),
    ]
    assert windows.plan(interval(name, 50, 60), "beyond").scanned == 0


# --- existing windows and arguments -----------------------------------------------------------------


def test_windows_that_exist_are_taken_up_among_new_ones(
    windows: OrderedWindows, orders: str
) -> None:
    """Open ones as another attempt, done ones as they are, in the order asked."""
    asked = [before(orders, second, Earliest()) for second in (1, 12, 18, 100)]
    names = ids(asked)
    done = windows.commit(windows.plan(asked[0], names[0]))
    windows.plan(asked[2], names[2])
    plans = windows.plan_many(asked, names)
    assert plans[0] == done
    assert [plan.attempt for plan in plans] == [1, 1, 2, 1]
    # The window of second 12 came after that of second 18: what it asks for is taken.
    assert plans[1].content is PlanContent.COVERED
    found = [offsets_of(read_plan(windows.settings, plan)) for plan in plans]
    assert found == [{0}, set(), {1, 3, 5}, {2, 4}]
    windows.commit_many(plans)
    assert {record.status for record in windows.list()} == {WindowStatus.COMMITTED}


def test_one_that_cannot_be_planned_leaves_none_planned(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """All or none: another question, a future cutoff, lost records."""
    windows.commit(windows.plan(before(orders, 1, Earliest()), "first"))
    good = before(orders, 12)
    with pytest.raises(WindowMismatchError):
        windows.plan_many([good, before(orders, 2)], ["good", "first"])
    far = Window([orders], at(10**9))
    with pytest.raises(CutoffInFutureError):
        windows.plan_many([good, far], ["good", "far"])
    delete_before(bootstrap, orders, 2)
    with pytest.raises(RecordsLostError):
        windows.plan_many([good, before(orders, 40)], ["good", "later"])
    assert [record.plan.window_id for record in windows.list()] == ["first"]
    # What is lost is written down once, with the first of them.
    tolerant = [replace(one, on_data_loss=OnDataLoss.WARN) for one in (good, before(orders, 40))]
    plans = windows.plan_many(tolerant, ["good", "later"])
    assert [bool(plan.lost) for plan in plans] == [True, False]


@pytest.mark.parametrize(
    "change",
    [
        {"topics": ["other"]},
        {"exclude": ["other"]},
        {"isolation": "read_uncommitted"},
        {"max_out_of_orderness": timedelta(seconds=1)},
        {"on_data_loss": "warn"},
        {"since": at(5)},
        {"starting_offsets": Latest()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_windows_planned_together_differ_in_nothing_but_their_times(
    windows: OrderedWindows, orders: str, change: dict[str, object]
) -> None:
    """One look at the logs answers one selection of records."""
    one = before(orders, 12, Earliest())
    with pytest.raises(ConfigError, match="only in their times"):
        windows.plan_many([one, replace(one, **{"cutoff": at(40), **change})], ["a", "b"])  # type: ignore[arg-type]
    assert windows.state() is None


def test_a_list_of_windows_must_be_one(windows: OrderedWindows, orders: str) -> None:
    """Empty, an id for each, and each id once; without ids the question is the id."""
    one, other = before(orders, 12, Earliest()), before(orders, 40, Earliest())
    with pytest.raises(ConfigError, match="no window"):
        windows.plan_many([])
    with pytest.raises(ConfigError, match="2 windows and 1 window ids"):
        windows.plan_many([one, other], ["a"])
    with pytest.raises(ConfigError, match="twice"):
        windows.plan_many([one, other], ["a", "a"])
    with pytest.raises(ConfigError, match="twice"):
        windows.plan_many([one, one])
    assert windows.state() is None
    plans = windows.plan_many([one, other])
    assert [plan.window_id for plan in windows.plan_many([one, other])] == [
        plan.window_id for plan in plans
    ]


@pytest.mark.slow
def test_several_windows_are_one_transaction(
    bootstrap: str, windows: OrderedWindows, group_id: str, orders: str
) -> None:
    """To plan them, to commit them and to write down what is published: one each, however many they are."""
    ledger = f"ledger-{group_id}"
    shop = Shop()
    with OrderedWindows(windows.settings, group_id, ledger_topic=ledger) as service:
        asked = [before(orders, second, Earliest()) for second in (12, 18, 100)]

        def markers() -> int:
            with Lookup(service.settings) as lookup:
                every = [
                    TopicPartition(ledger, number)
                    for number in lookup.topics([ledger])[ledger].partitions
                ]
                ends = lookup.end_offsets(every, Isolation.READ_UNCOMMITTED)
            return sum(ends.values()) - len(visible_records(bootstrap, ends))

        plans = service.plan_many(asked, ids(asked))
        assert markers() == 1
        service.commit_many(plans)
        assert markers() == 2
        service.deliver_many(service.plan_many(asked, ids(asked)), shop.write, shop.shelf.reopen)
        assert markers() == 3


# --- commit -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["taken up", "abandoned", "another group's", "unknown"])
def test_a_plan_that_cannot_commit_leaves_none_committed(
    windows: OrderedWindows, orders: str, how: str
) -> None:
    """Wherever it stands in the list; the others commit once it is left out."""
    asked = [before(orders, second, Earliest()) for second in (12, 18, 100)]
    plans = windows.plan_many(asked, ids(asked))
    wrong = plans[1]
    if how == "taken up":
        windows.plan(asked[1], "w1")
    elif how == "abandoned":
        windows.abandon("w1")
    elif how == "another group's":
        plans[1] = replace(wrong, group_id="another")
    else:
        plans[1] = replace(wrong, window_id="unknown")
    with pytest.raises((WindowSupersededError, UnknownWindowError, WindowMismatchError)):
        windows.commit_many(plans)
    state = windows.state()
    assert state is not None
    assert [one.done.count for _, one in state] == [0]
    assert {windows.show(name).status.is_done for name in ids(asked)} == {False}
    windows.commit_many([plans[0], plans[2]])
    assert windows.show("w0").status is WindowStatus.COMMITTED


@pytest.mark.slow
def test_commits_together_may_be_repeated(windows: OrderedWindows, orders: str) -> None:
    """In another order, with some that are committed already, and one named twice."""
    asked = [before(orders, second, Earliest()) for second in (12, 18, 100)]
    plans = windows.plan_many(asked, ids(asked))
    windows.commit(plans[1])
    committed = windows.commit_many([plans[2], plans[0], plans[1], plans[0]])
    assert [plan.window_id for plan in committed] == ["w2", "w0", "w1", "w0"]
    assert {plan.status for plan in committed} == {WindowStatus.COMMITTED}
    assert windows.commit_many(plans) == [committed[1], committed[2], committed[0]]
    assert windows.commit_many([]) == []


# --- deliver ----------------------------------------------------------------------------------------


class Shop:
    """A sink for several windows at once: which plans its jobs were given."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.jobs: list[list[str]] = []

    def write(self, plans: Sequence[WindowPlan]) -> list[Output]:
        """One job for all of them."""
        self.jobs.append([plan.window_id for plan in plans])
        return [self.shelf.write(plan) for plan in plans]


@pytest.fixture
def hours(windows: OrderedWindows, topic: MakeTopic, produce: Produce) -> list[Window]:
    """Six intervals with a record in each."""
    name = topic()
    produce(stamped(name, *(number * 10 + 5 for number in range(6))))
    return [interval(name, number * 10, number * 10 + 10) for number in range(6)]


@pytest.mark.slow
def test_windows_are_delivered_from_wherever_they_stand(
    windows: OrderedWindows, hours: list[Window]
) -> None:
    """One job for those that need one, in their order; the others are committed, or only published."""
    shop = Shop()
    names = ["planned", "written", "gone", "committed", "published", "lost-output"]
    plans = dict(zip(names, windows.plan_many(hours, names), strict=True))
    for name in names[1:]:
        windows.mark_written(plans[name], shop.shelf.write(plans[name]).to_json())
    windows.commit_many([plans["committed"], plans["published"], plans["lost-output"]])
    windows.publish(
        plans["published"], Output(shop.shelf, windows.show("published").result["name"])
    )
    for name in ("gone", "lost-output"):
        del shop.shelf.staged[windows.show(name).result["name"]]
    again = windows.plan_many(hours, names)
    assert [plan.status.value for plan in again] == [
        "planned",
        "written",
        "written",
        "committed",
        "published",
        "committed",
    ]
    delivered = windows.deliver_many(again, shop.write, shop.shelf.reopen)
    assert shop.jobs == [["planned", "gone", "lost-output"]]
    assert [one.plan.window_id for one in delivered] == names
    assert [one.ran for one in delivered] == [True, False, True, False, False, True]
    assert {one.record.status for one in delivered} == {WindowStatus.PUBLISHED}
    assert shop.shelf.staged == {}
    assert set(shop.shelf.published) == set(names)
    for one in delivered:
        assert one.record.result == {"name": shop.shelf.published[one.plan.window_id]}
    windows.deliver_many(windows.plan_many(hours, names), shop.write, shop.shelf.reopen)
    assert len(shop.jobs) == 1


@pytest.mark.slow
def test_covered_windows_among_those_delivered_reach_no_sink(
    windows: OrderedWindows, hours: list[Window]
) -> None:
    """They are committed, so that nothing waits for them, and never written."""
    shop = Shop()
    windows.plan(hours[1], "holder")
    plans = windows.plan_many(hours[:2], ["fresh", "covered"])
    delivered = windows.deliver_many(plans, shop.write, shop.shelf.reopen)
    assert shop.jobs == [["fresh"]]
    assert [one.record.status.value for one in delivered] == ["published", "committed"]
    assert [one.ran for one in delivered] == [True, False]


@pytest.mark.slow
def test_a_superseded_window_among_those_delivered_leaves_none_committed(
    windows: OrderedWindows, hours: list[Window]
) -> None:
    """The job was in vain: nothing of it stays behind, and the next attempt delivers all."""
    shop = Shop()
    plans = windows.plan_many(hours[:3], ids(hours[:3]))

    def write(given: Sequence[WindowPlan]) -> list[Output]:
        windows.plan(hours[1], "w1")
        return shop.write(given)

    with pytest.raises(WindowSupersededError):
        windows.deliver_many(plans, write, shop.shelf.reopen)
    assert (shop.shelf.staged, shop.shelf.published) == ({}, {})
    assert {windows.show(name).status for name in ids(hours[:3])} == {WindowStatus.PLANNED}
    again = windows.plan_many(hours[:3], ids(hours[:3]))
    windows.deliver_many(again, shop.write, shop.shelf.reopen)
    assert len(shop.shelf.published) == 3


def test_a_failed_job_leaves_all_windows_planned(
    windows: OrderedWindows, hours: list[Window]
) -> None:
    """Nothing is committed, and the next attempt is given the same plans."""

    def fail(plans: Sequence[WindowPlan]) -> list[Output]:
        raise SinkError("no space")

    shop = Shop()
    plans = windows.plan_many(hours[:2], ["a", "b"])
    with pytest.raises(SinkError):
        windows.deliver_many(plans, fail, shop.shelf.reopen)
    again = windows.plan_many(hours[:2], ["a", "b"])
    assert [plan.taken for plan in again] == [plan.taken for plan in plans]
    assert {plan.status for plan in again} == {WindowStatus.PLANNED}


@pytest.mark.slow
def test_output_that_is_gone_with_its_records_is_an_error_before_any_job(
    bootstrap: str, windows: OrderedWindows, hours: list[Window]
) -> None:
    """A committed window cannot be written again once retention has taken its records."""
    shop = Shop()
    plans = windows.plan_many(hours[:2], ["a", "b"])
    windows.commit(plans[0])
    delete_before(bootstrap, hours[0].topics[0], 1)
    again = windows.plan_many(hours[:2], ["a", "b"])
    with pytest.raises(RecordsLostError, match="replayed"):
        windows.deliver_many(again, shop.write, shop.shelf.reopen)
    assert shop.jobs == []


@pytest.mark.slow
def test_a_pruned_window_among_several_is_told(
    windows: OrderedWindows, hours: list[Window]
) -> None:
    """It is done: the list without it can be planned."""
    windows.commit(windows.plan(hours[0], "old"))
    windows.prune(timedelta(0))
    with pytest.raises(WindowPrunedError, match="old"):
        windows.plan_many(hours[:2], ["old", "new"])
    assert windows.plan(hours[1], "new").offsets == 1
