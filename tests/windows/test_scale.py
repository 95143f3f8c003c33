"""What a long past, many windows at once and many partitions must not change; nor need memory for."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import Earliest, UnknownTopicError, Window, WindowPlan
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.group import transitions
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.group.ledger.records import (
    LedgerFold,
    LedgerMessage,
    RecordName,
    StaleFoldError,
    record_key,
)
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC, ledger_partition
from kafka_ordered_ops.core.group.summaries import WindowSummary
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, PlanContent, TopicPartition, WindowStatus
from kafka_ordered_ops.kafka.client.errors import FaultReasons
from kafka_ordered_ops.kafka.ledger.log import LedgerLog
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.ledger_filler import fill_ledger, old_window_id
from tests.support.model import ModelGroup, ModelLog
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, before

WHERE = TopicPartition("ledger", 0)
GROUP = "group"


# --- several windows in one commit ------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=20), min_size=2, max_size=2
    ),
    st.permutations(range(4)),
    st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=6),
)
def test_windows_committed_together_leave_what_one_by_one_leaves(
    logs: list[list[tuple[int, bool]]], order: Sequence[int], later: list[tuple[int, bool]]
) -> None:
    """Progress, late steps, time maps and records are those of single commits, in whatever order."""
    group = ModelGroup({TopicPartition("orders", n): ModelLog() for n in range(len(logs))})
    for log, records in zip(group.logs.values(), logs, strict=True):
        for stamp, visible in records:
            log.append(stamp, visible=visible)
    first = group.plan_many(("a", _interval(0, 10)), ("b", _interval(15, 25)))
    for stamp, visible in later:
        next(iter(group.logs.values())).append(stamp, visible=visible)
    plans = [*first, *group.plan_many(("c", _interval(5, 20)), ("d", _interval(25, 30)))]
    before_them = group.view
    group.commit(*(plans[n] for n in order))
    together = group.view
    group.view = before_them
    for n in order:
        group.commit(plans[n])
    assert together.windows == group.view.windows
    assert together.time_maps == group.view.time_maps
    assert together.state is not None
    assert group.view.state is not None
    assert together.state.topics == group.view.state.topics
    assert together.state.open == group.view.state.open == ()
    # All are done by now: nothing changes, and nothing is written.
    again = transitions.commit(together, [*plans, plans[0]], now_ms=9, others={}, present={})
    assert isinstance(again, tuple)


def _interval(since: int, before_: int) -> Window:
    return Window(["orders"], at(before_), Earliest(), since=at(since))


# --- windows that were let go -----------------------------------------------------------------------


class Ledger:
    """A ledger partition in memory: what was written where, and folds that read it."""

    def __init__(self) -> None:
        self.log: dict[int, LedgerMessage] = {}
        self.end = 0
        self.fetched: list[int] = []

    def write(self, messages: Sequence[LedgerMessage], *folds: LedgerFold) -> None:
        """Appends, and lets the folds take it."""
        for key, value, headers in messages:
            self.log[self.end] = (key, value, headers)
            for fold in folds:
                fold.take(self.end, key, value, partial(dict, headers))
            self.end += 1

    def compact(self) -> None:
        """Only the newest message of a key stays, and no tombstone."""
        newest = {key: offset for offset, (key, _, _) in self.log.items()}
        self.log = {
            offset: self.log[offset]
            for offset in newest.values()
            if self.log[offset][1] is not None
        }

    def fetch(self, offsets: Sequence[int]) -> Mapping[int, bytes]:
        """The values at these offsets."""
        assert list(offsets) == sorted(set(offsets))
        self.fetched += offsets
        return {
            offset: value
            for offset in offsets
            if offset in self.log and (value := self.log[offset][1]) is not None
        }


def _message(
    name: str, part: int, value: bytes | None, generation: int, parts: int
) -> LedgerMessage:
    headers = {} if value is None else {"koo-generation": str(generation), "koo-parts": str(parts)}
    return record_key(GROUP, RecordName("window", name), part), value, headers


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from([WindowStatus.PUBLISHED, WindowStatus.ABANDONED, None]),
            st.integers(1, 3),
            st.sampled_from([0, 0, 0, 2_000]),
        ),
        max_size=20,
    ),
    st.sampled_from([0, 1_500, 3_000, 10**6]),
    st.booleans(),
)
def test_a_fold_that_lets_windows_go_sees_what_was_written_last(
    steps: list[tuple[str, WindowStatus | None, int, int]], held_bytes_max: int, compacts: bool
) -> None:
    """Windows written, overwritten by longer and shorter ones, and removed: by id, all, and those to keep."""
    ledger = Ledger()
    fold = LedgerFold(WHERE, GROUP, fetch=ledger.fetch, held_bytes_max=held_bytes_max)
    expected: dict[str, WindowRecord] = {}
    parts_of: dict[str, int] = {}
    for generation, (name, status, parts, size) in enumerate(steps):
        expected.pop(name, None)
        messages = []
        if status is not None:
            expected[name] = _record(name, status, generation, {"x": "x" * size})
            messages = _messages(expected[name], generation, parts)
        written = len(messages)
        left_over = range(written, parts_of.get(name, 0))
        messages += [_message(name, n, None, generation, 0) for n in left_over]
        parts_of[name] = written
        ledger.write(messages, fold)
        # What one view looked at the next one need not parse: now this window, now that one, now none.
        looked_at = ["a", "b", ""][generation % 3]
        assert fold.view(looked_at).windows == _only(expected, looked_at)
    if compacts:
        ledger.compact()
    assert fold.view(["a", "b"]).windows == _only(expected, "ab")
    assert fold.view(everything=True).windows == expected
    kept = fold.view(["b"], keep=lambda record: record.status is WindowStatus.ABANDONED).windows
    abandoned = {
        name: one for name, one in expected.items() if one.status is WindowStatus.ABANDONED
    }
    assert kept == abandoned | _only(expected, "b")
    if held_bytes_max == 10**6:
        assert not ledger.fetched


def _only(records: Mapping[str, WindowRecord], names: str) -> dict[str, WindowRecord]:
    return {name: one for name, one in records.items() if name in names}


def _record(
    name: str, status: WindowStatus, generation: int, result: dict[str, str]
) -> WindowRecord:
    plan = WindowPlan(
        group_id=GROUP,
        window_id=name,
        window=Window(["orders"], at(0)),
        claim_id=str(generation),
        attempt=1,
        status=status,
        content=PlanContent.EMPTY,
        planned_at_ms=BASE_MS,
        partitions=(),
    )
    return WindowRecord(plan, result)


def _messages(record: WindowRecord, generation: int, parts: int) -> list[LedgerMessage]:
    """A record cut into parts."""
    data = strict_json.dumps(record.to_json()).encode()
    size = -(-len(data) // parts)
    pieces = [data[at_ : at_ + size] for at_ in range(0, len(data), size)]
    name = record.plan.window_id
    return [_message(name, n, piece, generation, len(pieces)) for n, piece in enumerate(pieces)]


def test_a_fold_notices_that_the_log_was_compacted_behind_it() -> None:
    """What was let go, and overwritten since by what the fold has not read, is no damage and no old answer."""
    ledger = Ledger()
    fold = LedgerFold(WHERE, GROUP, fetch=ledger.fetch, held_bytes_max=0)
    ledger.write([_message("a", 0, b"{}", 1, 1)], fold)
    ledger.write([_message("a", 0, b"{}", 2, 1)])
    ledger.compact()
    with pytest.raises(StaleFoldError):
        fold.view(["a"])


# --- on a broker ------------------------------------------------------------------------------------


@pytest.fixture
def past(bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce) -> str:
    """A topic whose group has two thousand old windows, and a record in each of the next three hours."""
    name = topic(partitions=2)
    produce((name, 0, None, b"x", BASE_MS + hour * 3_600_000, ()) for hour in range(4))
    fill_ledger(windows.settings, windows.group_id, name, 2_000, since=at(0))
    return name


def hour(name: str, number: int) -> Window:
    """One of the hours that follow the past."""
    return Window([name], at((number + 1) * 3_600), since=at(number * 3_600))


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that hold the values of some five windows, where theirs would hold thousands."""
    monkeypatch.setattr(LedgerLog.__init__, "__kwdefaults__", {"held_bytes_max": 5_000})


@pytest.mark.slow
@pytest.mark.usefixtures("forgetful")
def test_a_long_past_is_no_hindrance(windows: OrderedWindows, past: str) -> None:
    """With thousands of old windows: the next is planned and committed, old ones are found, listed and pruned."""
    plan = windows.plan(hour(past, 1), "next")
    assert plan.taken == {TopicPartition(past, 0): OffsetSet.of((1, 2))}
    windows.commit(plan)
    assert windows.plan(hour(past, 1), "next").status is WindowStatus.COMMITTED
    # Planned under its old id, an old window is found done.
    oldest = windows.show(old_window_id(0))
    assert windows.plan(oldest.plan.window, old_window_id(0)) == oldest.plan
    listed = windows.list()
    assert len(listed) == 2_002
    assert [one.plan.window_id for one in listed[:2_000]] == [
        old_window_id(number) for number in range(2_000)
    ]
    pruned = windows.prune(timedelta(days=1))
    assert pruned[:2_000] == [old_window_id(number) for number in range(2_000)]
    assert windows.show(old_window_id(1_999)).pruned is not None


@pytest.mark.slow
def test_listing_a_long_past_reads_no_plans(
    windows: OrderedWindows, past: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process lists thousands of windows and parses those that are open; pages are parts of the list."""
    windows.plan(hour(past, 1), "open")
    expected = [WindowSummary.of(one) for one in windows.list()]
    parsed = list[str]()
    from_json = WindowRecord.from_json

    def counted(fields: Any) -> WindowRecord:
        record = from_json(fields)
        parsed.append(record.plan.window_id)
        return record

    monkeypatch.setattr(WindowRecord, "from_json", counted)
    with OrderedWindows(windows.settings, windows.group_id) as other:
        listed = other.summaries()
        assert list(listed.windows) == expected
        assert len(expected) == 2_002
        last = other.summaries(limit=500)
        assert list(last.windows) == expected[-500:]
        page = other.summaries(limit=500, before=last.windows[0].window_id)
        assert list(page.windows) == expected[-1_000:-500]
    assert set(parsed) == {"open"}


@pytest.mark.slow
def test_what_a_fold_holds_of_a_long_past_is_bounded(windows: OrderedWindows, past: str) -> None:
    """Some hundred bytes for each old window, whatever its plan; and all of them are there when asked for."""
    with OrderedWindows(windows.settings, windows.group_id) as other:
        everything = {one.plan.window_id: one for one in other.list()}
    reasons = FaultReasons(frozenset())
    config = windows.settings.consumer(
        group_id=windows.group_id, isolation=Isolation.READ_COMMITTED
    )
    where = ledger_partition(LEDGER_TOPIC, windows.group_id)
    with Lookup(windows.settings) as lookup:
        end = lookup.end_offsets([where], Isolation.READ_UNCOMMITTED)[where]
    with contextlib.closing(
        LedgerLog(
            where,
            windows.group_id,
            partial(Consumer, config),
            reasons,
            config=config,
            held_bytes_max=5_000,
        )
    ) as log:
        tracemalloc.start()
        try:
            log.read_to(end, log_start=0, deadline=time.monotonic() + TIMEOUT_S)
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        values_bytes = sum(len(strict_json.dumps(one.to_json())) for one in everything.values())
        assert held_bytes < 900 * 2_000 < values_bytes
        assert log.view(everything=True).windows == everything


@pytest.mark.usefixtures("forgetful")
def test_a_ledger_compacted_under_a_process_is_read_anew(
    windows: OrderedWindows, past: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process let go and cannot fetch is looked for from the start of the log."""
    fetch, missed = LedgerLog._values_at, list[int]()

    def miss_once(self: LedgerLog, offsets: Sequence[int]) -> dict[int, bytes]:
        missed.extend(offsets[:1])
        return {} if len(missed) == 1 else fetch(self, offsets)

    monkeypatch.setattr(LedgerLog, "_values_at", miss_once)
    with OrderedWindows(windows.settings, windows.group_id) as cold:
        assert cold.show(old_window_id(7)).plan.window_id == old_window_id(7)
    assert len(missed) > 1


@pytest.mark.slow
def test_many_times_are_looked_up_as_one_by_one(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Thousands of answers at once are those to single questions; an unknown topic is told as such."""
    name = topic(partitions=3)
    produce((name, n % 2, None, b"x", BASE_MS + n * 1_000, ()) for n in range(60))
    tps = [TopicPartition(name, n) for n in range(3)]
    times = [BASE_MS + n * 500 for n in range(-10, 140)]
    with Lookup(windows.settings) as lookup:
        found = lookup.first_at_or_after_each(tps, [*times, *times], Isolation.READ_UNCOMMITTED)
        assert list(found) == times
        for time_ms in times[::10]:
            assert found[time_ms] == lookup.first_at_or_after(
                tps, time_ms, Isolation.READ_UNCOMMITTED
            )
        nowhere = [*tps, TopicPartition(f"{name}-nowhere", 0)]
        with pytest.raises(UnknownTopicError):
            lookup.first_at_or_after_each(nowhere, times[:3], Isolation.READ_UNCOMMITTED)


@pytest.mark.slow
def test_a_month_of_hours_is_planned_and_committed_at_once(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """720 windows over four partitions, in one pass each: every record in the window of its hour, and done."""
    name = topic(partitions=4)
    hours = 720
    produce((name, n % 4, None, b"x", BASE_MS + n * 1_200_000, ()) for n in range(3 * hours))
    asked = [
        Window([name], at((n + 1) * 3_600), Earliest(), since=at(n * 3_600)) for n in range(hours)
    ]
    plans = windows.plan_many(asked, [f"hour-{n}" for n in range(hours)])
    for number, plan in enumerate(plans):
        records = range(3 * number, 3 * number + 3)
        assert plan.taken == {
            TopicPartition(name, n % 4): OffsetSet.of((n // 4, n // 4 + 1)) for n in records
        }
    assert {one.status for one in windows.commit_many(plans)} == {WindowStatus.COMMITTED}
    state = windows.state()
    assert state is not None
    assert [one.done for _, one in state] == [OffsetSet.of((0, 540))] * 4
    assert len({one.late.pieces for _, one in state}) == 1


def test_a_change_larger_than_the_clients_queue_is_written(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """A queue with room for ten records, and a transaction of more: it waits for room."""
    name = topic()
    produce((name, 0, None, b"x", BASE_MS + second * 1_000, ()) for second in range(40))
    small = windows.settings.merged({"queue.buffering.max.messages": 10})
    with OrderedWindows(small, windows.group_id) as service:
        asked = [Window([name], at(n + 1), Earliest(), since=at(n)) for n in range(40)]
        plans = service.plan_many(asked)
        assert [plan.offsets for plan in plans] == [1] * 40
        service.commit_many(plans)
    state = windows.state()
    assert state is not None
    assert [one.base for _, one in state] == [40]


@pytest.mark.long
def test_a_thousand_partitions_are_one_window(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Each of them with two records of the window and one behind it."""
    name = topic(partitions=1_000)
    produce(
        (name, n, None, b"x", BASE_MS + second * 1_000, ())
        for second in (5, 15, 9)
        for n in range(1_000)
    )
    plan = windows.plan(before(name, 10, Earliest()))
    both = OffsetSet.of((0, 1), (2, 3))
    assert plan.taken == {TopicPartition(name, n): both for n in range(1_000)}
    windows.commit(plan)
    state = windows.state()
    assert state is not None
    assert {one.base for _, one in state} == {1}
    rest = windows.plan(before(name, 20))
    assert {str(one) for one in rest.taken.values()} == {str(OffsetSet.of((1, 2)))}
