"""A record that nobody can read: never written, and where it is all the same, in the way of one window only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from kafka_ordered_ops import (
    Earliest,
    KafkaOrderedOpsError,
    LedgerCorruptError,
    LedgerRecordError,
    SinkError,
    Window,
)
from kafka_ordered_ops.core.group.decisions import splitting
from kafka_ordered_ops.core.group.ledger import messages as ledger_messages
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC, ledger_partition
from kafka_ordered_ops.core.types import PlanContent, TopicPartition, WindowStatus
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows

GROUP = "g"
PLACE = ledger_partition(LEDGER_TOPIC, GROUP)
TP = TopicPartition("orders", 0)


def seconds(number: float) -> datetime:
    """So many seconds after the epoch."""
    return datetime.fromtimestamp(number, UTC)


def before(number: float) -> Window:
    """Everything before a second."""
    return Window(["orders"], seconds(number), Earliest())


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A topic of forty records, one each second, every fifth of them out of order."""
    with InMemoryKafka() as made:
        made.create_topic("orders", 1)
        for number in range(40):
            stamp = number - 12 if number % 5 == 4 and number > 12 else number
            made.produce("orders", value=b"x", timestamp_ms=1_000 * stamp)
        yield made


def opened(kafka: InMemoryKafka, **arguments: Any) -> OrderedWindows:
    """Another process of the group."""
    return OrderedWindows(kafka.settings, GROUP, **arguments)


def key_of(kind: str, name: str) -> bytes:
    """The key of a record's only part."""
    return json.dumps([GROUP, kind, name, 0], separators=(",", ":")).encode()


def newest(kafka: InMemoryKafka, kind: str, name: str) -> Any:
    """The newest writing of a record."""
    found = kafka.records(LEDGER_TOPIC, PLACE.partition)
    return [one for one in found if one.key == key_of(kind, name)][-1]


def put(kafka: InMemoryKafka, kind: str, name: str, value: bytes | None) -> None:
    """Writes a record as another hand might: with the headers that it has."""
    there = newest(kafka, kind, name)
    kafka.produce(
        LEDGER_TOPIC,
        value=value,
        key=key_of(kind, name),
        partition=PLACE.partition,
        headers=there.headers,
    )


def with_an_invalid_start(value: bytes) -> bytes:
    """A negative offset to start from."""
    fields = json.loads(value)
    fields["plan"]["window"]["starting_offsets"] = "offset:-2"
    return json.dumps(fields).encode()


def with_a_time_that_is_none(value: bytes) -> bytes:
    """A cutoff beyond the calendar, at which a parser of times gives up in its own way."""
    fields = json.loads(value)
    fields["plan"]["window"]["cutoff"] = "@999999999999999"
    return json.dumps(fields).encode()


def with_a_run_id_that_is_none(value: bytes) -> bytes:
    """A number where text should be."""
    return json.dumps({**json.loads(value), "run_id": 5}).encode()


DAMAGES: list[Callable[[bytes], bytes]] = [
    with_an_invalid_start,
    with_a_time_that_is_none,
    with_a_run_id_that_is_none,
    lambda value: value[: len(value) // 2],
    lambda _: b"\xff",
    lambda _: b"[" * 100_000,
    lambda value: value.replace(b'"g"', b'"another"'),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_window_that_cannot_be_read_is_in_nobody_elses_way(
    kafka: InMemoryKafka, damage: Callable[[bytes], bytes]
) -> None:
    """Others are shown, listed, taken up and committed; nothing is planned; abandoning it heals the group."""
    with opened(kafka) as running:
        done = running.commit(running.plan(before(5), "done"))
        wrong = running.plan(before(10), "wrong")
        other = running.plan(before(15), "other")
        put(kafka, "window", "wrong", damage(newest(kafka, "window", "wrong").value))
        with opened(kafka) as cold:
            for one in (running, cold):
                assert one.show("done").plan == done
                assert [found.plan.window_id for found in one.list()] == ["done", "other"]
                summaries = one.summaries()
                assert [found.window_id for found in summaries.windows] == ["done", "other"]
                assert list(summaries.unreadable) == ["wrong"]
                assert one.state() is not None
                assert one.gaps() == []
                one.live(before(15))
                calls: list[Callable[[], object]] = [
                    partial(one.plan, before(20), "next"),
                    partial(one.preview, before(20), "next"),
                    partial(one.plan, before(10), "wrong"),
                    partial(one.commit, wrong),
                    partial(one.show, "wrong"),
                    partial(one.abandon, wrong),
                ]
                for call in calls:
                    with pytest.raises(LedgerCorruptError, match=r"'wrong'.*abandon"):
                        call()
            other = running.plan(before(15), "other")
            assert cold.commit(other).status is WindowStatus.COMMITTED
            assert cold.abandon("wrong").status is WindowStatus.ABANDONED
        check_healed(kafka, running, wrong, {*range(40)} - offsets(done) - offsets(other))


def check_healed(kafka: InMemoryKafka, running: OrderedWindows, wrong: Any, left: set[int]) -> None:
    """What the window held is free, once, and its old plan commits nothing."""
    with opened(kafka) as cold:
        for one in (running, cold):
            assert "wrong" not in [found.plan.window_id for found in one.list()]
            assert not one.summaries().unreadable
        with pytest.raises(KafkaOrderedOpsError, match="wrong"):
            cold.commit(wrong)
        again = running.plan(before(10), "wrong")
        assert offsets(again) == offsets(wrong)
        running.commit(again)
        rest = cold.commit(cold.plan(before(1_000), "rest"))
        assert offsets(again) | offsets(rest) == left
        assert not offsets(again) & offsets(rest)
        assert {tp: found.offset for tp, found in kafka.committed(GROUP).items()} == {TP: 40}


def offsets(plan: Any) -> set[int]:
    """What a plan takes."""
    return {
        offset
        for taken in plan.taken.values()
        for first, end in taken
        for offset in range(first, end)
    }


def test_a_closed_window_that_cannot_be_read_stops_nothing(kafka: InMemoryKafka) -> None:
    """Planning goes on beside it, and its record can be removed; what it delivered never comes again."""
    with opened(kafka) as windows:
        done = windows.commit(windows.plan(before(10), "done"))
        put(kafka, "window", "done", b"?")
        windows.commit(windows.plan(before(15), "next"))
        with pytest.raises(LedgerCorruptError, match="'done'"):
            windows.show("done")
        state = windows.state()
        assert windows.abandon("done").status is WindowStatus.ABANDONED
        after = windows.state()
        assert state is not None
        assert after is not None
        assert after.topics == state.topics
        assert [one.plan.window_id for one in windows.list()] == ["next"]
        again = windows.plan(before(10), "done")
        assert not offsets(again) & offsets(done)


def test_what_others_did_is_not_adopted_while_a_window_cannot_be_read(
    kafka: InMemoryKafka,
) -> None:
    """It may be one that would have to be rewound."""
    with opened(kafka) as windows:
        windows.commit(windows.plan(before(10), "done"))
        put(kafka, "window", "done", b"?")
        kafka.commit(GROUP, {TP: 3})
        calls: list[Callable[[], object]] = [windows.adopt, partial(windows.adopt, dry_run=True)]
        for call in calls:
            with pytest.raises(LedgerCorruptError, match="'done'"):
                call()
        windows.abandon("done")
        assert [one.base_after for one in windows.adopt().moved] == [3]


@pytest.mark.parametrize("value", [b"?", b"{}", b'{"starts":[1],"lengths":[0],"least_ms":[0]}'])
def test_a_time_map_that_cannot_be_read_is_made_again(kafka: InMemoryKafka, value: bytes) -> None:
    """It only saves reading: the windows are those that they would have been."""
    with opened(kafka) as windows:
        first = windows.commit(windows.plan(before(10), "first"))
        put(kafka, "times", "orders[0]", value)
        with opened(kafka) as cold:
            second = cold.commit(cold.plan(before(20), "second"))
            rest = windows.commit(windows.plan(before(1_000), "rest"))
        assert offsets(first) | offsets(second) | offsets(rest) == {*range(40)}
    stamps = {one.offset: one.timestamp_ms for one in kafka.records("orders")}
    assert offsets(second) == {
        offset
        for offset, stamp in stamps.items()
        if stamp < 20_000 and offset not in offsets(first)
    }


def test_a_state_that_cannot_be_read_stops_the_group(kafka: InMemoryKafka) -> None:
    """Progress is in it, and nothing can be guessed."""
    with opened(kafka) as windows:
        windows.plan(before(10), "w")
        put(kafka, "state", "", b"?")
        for one in (windows, opened(kafka)):
            calls: list[Callable[[], object]] = [one.list, one.summaries, one.state]
            calls.append(partial(one.abandon, "w"))
            for call in calls:
                with pytest.raises(LedgerCorruptError, match="state"):
                    call()


# --- what nobody could read is not written ------------------------------------------------------------


def test_a_record_that_is_too_large_is_not_written(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the window and the limit; nothing is open, and the group goes on."""
    with opened(kafka) as windows:
        windows.commit(windows.plan(before(5), "first"))
        state = windows.state()
        end = len(kafka.records(LEDGER_TOPIC, everything=True))
        with monkeypatch.context() as small:
            small.setattr(ledger_messages, "RECORD_BYTES_MAX", 1_000)
            calls: list[Callable[[], object]] = [
                partial(windows.plan, before(10), "w" * 200),
                partial(windows.plan_many, [before(10), before(11)], ["a" * 200, "b" * 200]),
            ]
            for call in calls:
                with pytest.raises(LedgerRecordError, match=r"bytes, and a record at most 1,000"):
                    call()
        assert len(kafka.records(LEDGER_TOPIC, everything=True)) == end
        assert windows.state() == state
        assert windows.plan(before(10), "w" * 200).status is WindowStatus.PLANNED


def test_a_record_that_the_parser_refuses_is_not_written(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever slips through the checks of arguments is found before a transaction begins."""
    with opened(kafka) as windows:
        plan = windows.plan(before(5), "first")
        state = windows.state()
        for run_id in (5, "a\udc80"):
            monkeypatch.setattr(windows._planner, "_run_id", run_id)
            for window, name in ((before(5), "first"), (before(10), "second")):
                with pytest.raises(LedgerRecordError, match=f"window {name} cannot be written"):
                    windows.plan(window, name)
        assert windows.state() == state
        with opened(kafka) as cold:
            assert cold.commit(plan).status is WindowStatus.COMMITTED


def test_reports_that_are_too_much_together_are_refused(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report that would pass the limit, by name; the window can be planned again, and others go on."""
    monkeypatch.setattr(splitting, "REPORTS_BYTES_MAX", 5_000)
    with opened(kafka) as windows:
        plan = windows.plan(before(20), "split")
        shares = windows.split(plan, 8)
        report = {"files": ["x" * 100] * 10}
        for share in shares[:4]:
            windows.report(share, report)
        state = windows.state()
        with pytest.raises(SinkError, match=r"split.*5,000") as caught:
            windows.report(shares[4], report)
        assert not caught.value.retriable
        assert windows.state() == state
        # Smaller ones go on.
        for share in shares[4:]:
            windows.report(share, {})
        assert windows.commit(plan).status is WindowStatus.COMMITTED


def test_the_most_that_parts_may_report_can_be_read_back() -> None:
    """A written window holds the reports twice, beside its plan."""
    largest = 2 * splitting.REPORTS_BYTES_MAX + 16 * 1024 * 1024 + 1024 * 1024
    assert largest <= ledger_messages.RECORD_BYTES_MAX


# --- what was removed while a process was idle --------------------------------------------------------


@pytest.mark.parametrize("planned_again", [False, True])
@pytest.mark.parametrize("as_open", [False, True])
def test_an_idle_process_hears_of_windows_that_were_forgotten(
    kafka: InMemoryKafka, as_open: bool, planned_again: bool
) -> None:
    """Compaction has removed even the tombstones: it lists, plans and commits as a new process does."""
    with opened(kafka) as idle, opened(kafka) as busy:
        kept = idle.plan(before(3), "kept")
        plan = idle.plan(before(5), "gone")
        if not as_open:
            idle.commit(plan)
        names = [one.plan.window_id for one in idle.list()]
        assert names == ["kept", "gone"]
        busy.commit(busy.plan(before(5), "gone"))
        with opened(kafka, clock=lambda: 4e9) as later:
            assert later.prune(timedelta(days=1), forget=True) == ["gone"]
        busy.plan(before(12), "next")
        if planned_again:
            busy.abandon("next")
            busy.plan(before(5), "gone")
        kafka.compact(LEDGER_TOPIC, PLACE.partition)
        busy.plan(before(30), "last")
        kafka.compact(LEDGER_TOPIC, PLACE.partition)
        with opened(kafka) as cold:
            assert idle.list() == cold.list()
            assert idle.summaries() == cold.summaries()
            assert idle.state() == cold.state()
        if not planned_again:
            with pytest.raises(KafkaOrderedOpsError, match="no window gone"):
                idle.show("gone")
        again = idle.plan(before(5), "gone")
        assert (again.offsets, again.attempt, again.content) == (0, 1, PlanContent.COVERED)
        assert idle.commit(idle.plan(before(3), "kept")).offsets == kept.offsets


def test_a_process_that_reads_along_does_not_read_anew(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forgetting is heard of by its tombstones; only what was missed costs another reading."""
    with opened(kafka) as windows, opened(kafka, clock=lambda: 4e9) as later:
        for number in range(1, 9):
            windows.commit(windows.plan(before(number), f"w{number}"))
        fold = windows._ledger._readings[GROUP].fold  # type: ignore[attr-defined]
        assert len(later.prune(timedelta(0), forget=True)) == 8
        windows.plan(before(20), "next")
        assert [one.plan.window_id for one in windows.list()] == ["next"]
        put(kafka, "window", "next", b"?")
        assert windows.list() == []
        assert windows._ledger._readings[GROUP].fold is not fold  # type: ignore[attr-defined]
        # What is wrong for good is looked at anew once, not at every look.
        fold = windows._ledger._readings[GROUP].fold  # type: ignore[attr-defined]
        assert windows.list() == []
        assert windows._ledger._readings[GROUP].fold is fold  # type: ignore[attr-defined]


# --- decided inside the fence --------------------------------------------------------------------------


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_a_window_that_was_planned_again_meanwhile_is_not_pruned(
    kafka: InMemoryKafka, forget: bool, commits: bool
) -> None:
    """Its age is that of what is there when it is pruned, not of what was there when it was looked for."""
    now_s = [1_000.0]
    with opened(kafka, clock=lambda: now_s[0]) as windows, opened(kafka) as busy:
        windows.commit(windows.plan(before(3), "old"))
        windows.plan(before(10), "again")
        windows.abandon("again")
        now_s[0] += 100 * 86_400

        def plan_again() -> None:
            plan = busy.plan(before(10), "again")
            if commits:
                busy.commit(plan)

        kafka.before_commit(plan_again)
        assert windows.prune(timedelta(days=90), forget=forget) == ["old"]
        record = windows.show("again")
        assert record.pruned is None
        assert record.plan.offsets == 8
        assert record.status is (WindowStatus.COMMITTED if commits else WindowStatus.PLANNED)


def test_a_change_that_fails_leaves_no_transaction_open(kafka: InMemoryKafka) -> None:
    """A topic that is deleted in the middle of a commit: the next attempt is without it, as with brokers."""
    kafka.create_topic("gone", 1)
    kafka.produce("gone", value=b"x", timestamp_ms=1_000)
    with opened(kafka, timeout_s=5) as windows:
        plan = windows.plan(Window(["orders", "gone"], seconds(5), Earliest()), "w")
        kafka.before_commit(lambda: kafka.delete_topic("gone"))
        assert windows.commit(plan).status is WindowStatus.COMMITTED
        assert kafka.committed(GROUP)[TP].offset == 5
        with opened(kafka, timeout_s=5) as cold:
            assert cold.show("w").status is WindowStatus.COMMITTED
