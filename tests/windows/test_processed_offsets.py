"""The processed offsets of an open window: kept in the ledger while it is processed, gone when it is done."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from kafka_ordered_ops import (
    CommitUnknownError,
    ConfigError,
    Earliest,
    LedgerRecordError,
    LedgerVersionError,
    RecordsLostError,
    UnknownWindowError,
    WindowMismatchError,
    WindowPlan,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group.ledger import messages as ledger_messages
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import OnDataLoss, TopicPartition, WindowStatus
from kafka_ordered_ops.testing import StoredRecord
from kafka_ordered_ops.windows import OrderedWindows, Policy
from tests.support.both_worlds import broker as broker
from tests.support.both_worlds import memory as memory
from tests.support.both_worlds import world as world
from tests.support.ledger_support import place_of, stored
from tests.support.memory_world import MemoryWorld
from tests.support.worlds import World

_LEDGER = "ledger"


def opened(world: World, run_id: str = "first") -> OrderedWindows:
    """A process's service, in a ledger of this world; another run id is another process."""
    return world.windows(ledger_topic=_LEDGER, run_id=run_id)


def begun(world: World, **options: Any) -> WindowPlan:
    """The plan of ten records in each of two partitions."""
    world.create("orders", 2)
    for partition in (0, 1):
        world.write("orders", partition, *range(10))
    return opened(world).plan(world.window(100, starting_offsets=Earliest(), **options), "w")


def again(world: World, run_id: str = "second", **options: Any) -> WindowPlan:
    """The same window, taken up by another process."""
    return opened(world, run_id).plan(
        world.window(100, starting_offsets=Earliest(), **options), "w"
    )


def some(
    world: World, *ranges: tuple[int, int], partition: int = 0
) -> dict[TopicPartition, OffsetSet]:
    """Offsets of one partition."""
    return {world.tp("orders", partition): OffsetSet.of(*ranges)}


def record_of(memory: MemoryWorld) -> StoredRecord:
    """The record of processed offsets, of which there is one."""
    ledger = memory.named(_LEDGER)
    place = place_of(ledger, memory.named("g"))
    [found] = [
        one
        for one in memory.kafka.records(ledger, place.partition)
        if one.key and one.value and b'"processed"' in one.key
    ]
    return found


def put(
    memory: MemoryWorld,
    over: StoredRecord,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> None:
    """Writes another value to the key of a record."""
    memory.kafka.produce(
        over.topic, value=value, key=over.key, partition=over.partition, headers=headers
    )


def kept(world: World) -> list[str]:
    """The names of the records of processed offsets that the ledger has."""
    ledger, group_id = world.named(_LEDGER), world.named("g")
    place = place_of(ledger, group_id)
    if isinstance(world, MemoryWorld):
        newest = {
            one.key: one.value for one in world.kafka.records(ledger, place.partition) if one.key
        }
        keys = [key for key, value in newest.items() if value is not None]
    else:
        keys = list(stored(world.settings.bootstrap_servers, place))
    return [name for _, kind, name, _ in map(json.loads, keys) if kind == "processed"]


# --- union, and who reads it -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_later_attempt_finds_what_earlier_ones_processed(world: World) -> None:
    """In another process, the union of all that was recorded, whatever the order and however often."""
    plan = begun(world)
    windows = opened(world)
    assert windows.processed(plan) == {}
    windows.mark_processed(plan, some(world, (6, 8)))
    windows.mark_processed(plan, some(world, (0, 2)))
    windows.mark_processed(plan, some(world, (0, 1), (6, 7)))
    first = {world.tp("orders"): OffsetSet.of((0, 2), (6, 8))}
    assert windows.processed(plan) == first
    newest = again(world)
    other = opened(world, "second")
    assert (newest.attempt, other.processed(newest)) == (2, first)
    other.mark_processed(newest, {**some(world, (2, 6)), **some(world, (3, 4), partition=1)})
    both = {**some(world, (0, 8)), **some(world, (3, 4), partition=1)}
    assert other.processed(newest) == windows.processed(plan) == both
    assert kept(world) == ["w"]


@pytest.mark.slow
def test_only_the_newest_attempt_records(world: World) -> None:
    """An older one is refused, and nothing of it is recorded."""
    old = begun(world)
    newest = again(world)
    with pytest.raises(WindowSupersededError, match="Another attempt"):
        opened(world).mark_processed(old, some(world, (0, 5)))
    assert opened(world).processed(newest) == {}
    opened(world, "second").mark_processed(newest, some(world, (0, 5)))
    with pytest.raises(WindowSupersededError):
        opened(world).mark_processed(old, some(world, (5, 6)))
    assert opened(world).processed(newest) == some(world, (0, 5))


def test_what_is_recorded_already_changes_nothing(world: World) -> None:
    """No transaction is written for it: the group's state stays as it is."""
    plan = begun(world)
    windows = opened(world)
    windows.mark_processed(plan, some(world, (0, 5)))
    state = windows.state()
    windows.mark_processed(plan, some(world, (1, 3)))
    windows.mark_processed(plan, {})
    windows.mark_processed(plan, some(world))
    assert windows.state() == state


@pytest.mark.parametrize("offsets", [[(0, 5)], []], ids=["offsets", "none"])
def test_whoever_reports_keeps_its_claim(world: World, offsets: list[tuple[int, int]]) -> None:
    """A window that is being processed is not taken over, with or without news; one that is left alone is."""
    plan = begun(world)
    windows, others = opened(world), opened(world, "other")
    policy = Policy(on_open_claim="take_over", claim_age=timedelta(minutes=5))
    for minute in (4, 8):
        world.now += 240
        windows.mark_processed(plan, some(world, *offsets))
        late = others.plan(world.window(200 + minute), f"late-{minute}", policy)
        assert (late.stepped_around[:1], late.notes) == (("w",), ())
    assert windows.show("w").touched_at_ms > plan.planned_at_ms
    assert windows.processed(plan) == {tp: one for tp, one in some(world, *offsets).items() if one}
    world.now += 301
    [note] = others.plan(world.window(300), "last", policy).notes[:1]
    assert "abandoned window w" in note
    with pytest.raises(WindowSupersededError):
        windows.mark_processed(plan, some(world, (0, 6)))


# --- the end of a window ---------------------------------------------------------------------------------


def _written(windows: OrderedWindows, plan: WindowPlan) -> object:
    return windows.mark_written(plan, {"records": 20})


def _committed(windows: OrderedWindows, plan: WindowPlan) -> object:
    return windows.commit(plan)


def _abandoned(windows: OrderedWindows, plan: WindowPlan) -> object:
    return windows.abandon(plan.window_id)


@pytest.mark.parametrize("end", [_written, _committed, _abandoned])
def test_the_end_of_a_window_removes_the_record(
    world: World, end: Callable[[OrderedWindows, WindowPlan], object]
) -> None:
    """In the same transaction, by a process that has never asked for it."""
    plan = begun(world)
    opened(world).mark_processed(plan, some(world, (0, 9)))
    assert kept(world) == ["w"]
    newest = again(world)
    end(opened(world, "second"), newest)
    assert kept(world) == []
    assert opened(world).processed(newest) == {}


@pytest.mark.parametrize("end", [_written, _committed])
def test_a_window_that_is_done_records_nothing(
    world: World, end: Callable[[OrderedWindows, WindowPlan], object]
) -> None:
    """A late call is no error, and leaves no record behind."""
    plan = begun(world)
    windows = opened(world)
    end(windows, plan)
    state = windows.state()
    windows.mark_processed(plan, some(world, (0, 9)))
    windows.mark_processed(again(world), some(world, (0, 9)))
    assert (windows.processed(plan), kept(world)) == ({}, [])
    after = windows.state()
    assert state is not None
    assert after is not None
    assert after.topics == state.topics


def test_another_claim_begins_with_nothing(world: World) -> None:
    """After an abandonment the window is planned anew, and its records are processed again."""
    old = begun(world)
    windows = opened(world)
    windows.mark_processed(old, some(world, (0, 5)))
    windows.abandon("w")
    anew = again(world)
    assert anew.claim_id != old.claim_id
    assert windows.processed(anew) == {}
    windows.mark_processed(anew, some(world, (7, 8)))
    assert windows.processed(anew) == some(world, (7, 8))
    assert windows.processed(old) == {}


def test_a_record_of_another_claim_counts_for_nothing(memory: MemoryWorld) -> None:
    """A package that did not know these records could leave one behind."""
    plan = begun(memory)
    windows = opened(memory)
    windows.mark_processed(plan, some(memory, (0, 5)))
    left = record_of(memory)
    windows.abandon("w")
    put(memory, left, left.value, left.headers)
    anew = again(memory)
    assert (kept(memory), windows.processed(anew)) == (["w"], {})
    windows.mark_processed(anew, some(memory, (9, 10)))
    assert windows.processed(anew) == some(memory, (9, 10))
    windows.commit(anew)
    assert kept(memory) == []


@pytest.mark.parametrize("forget", [False, True])
def test_a_pruned_or_forgotten_window_has_no_record(memory: MemoryWorld, forget: bool) -> None:
    """Not even one that somebody left behind."""
    plan = begun(memory)
    windows = opened(memory)
    windows.mark_processed(plan, some(memory, (0, 5)))
    left = record_of(memory)
    windows.commit(plan)
    put(memory, left, left.value, left.headers)
    assert kept(memory) == ["w"]
    memory.now += 10_000
    assert windows.prune(timedelta(seconds=1), forget=forget) == ["w"]
    assert kept(memory) == []


def test_a_recreated_topic_removes_the_record_with_its_window(memory: MemoryWorld) -> None:
    """Adopting the topic abandons the open window."""
    plan = begun(memory)
    windows = opened(memory)
    windows.mark_processed(plan, some(memory, (0, 5)))
    memory.delete("orders")
    memory.create("orders", 2)
    assert windows.adopt().abandoned == ("w",)
    assert (kept(memory), windows.processed(plan)) == ([], {})


# --- a plan that was cut, or split -----------------------------------------------------------------------


@pytest.mark.slow
def test_processed_offsets_that_retention_removed_are_not_lost(world: World) -> None:
    """The next attempt does the rest, as if they were still there."""
    plan = begun(world)
    opened(world).mark_processed(plan, some(world, (0, 6)))
    world.delete_before("orders", 0, 4)
    newest = again(world)
    assert (newest.taken, newest.lost) == (plan.taken, {})
    windows = opened(world, "second")
    assert windows.processed(newest) == some(world, (0, 6))
    windows.mark_processed(newest, some(world, (6, 10)))
    windows.commit(newest)
    state = windows.state()
    assert state is not None
    assert {partition.base for _, partition in state} == {10}


@pytest.mark.slow
def test_offsets_that_were_not_processed_in_time_are_lost(world: World) -> None:
    """Only those: an error, or recorded as lost, as the window asks."""
    plan = begun(world)
    opened(world).mark_processed(plan, some(world, (0, 2), (6, 7)))
    world.delete_before("orders", 0, 4)
    with pytest.raises(RecordsLostError, match=r"\[2, 4\)") as caught:
        again(world)
    tp = world.tp("orders")
    assert dict(caught.value.lost) == {str(tp): [(2, 4)]}
    newest = again(world, on_data_loss=OnDataLoss.WARN)
    assert newest.lost == {tp: OffsetSet.of((2, 4))}
    windows = opened(world, "second")
    assert windows.processed(newest) == some(world, (0, 2), (6, 7))
    with pytest.raises(WindowMismatchError, match="does not take 2"):
        windows.mark_processed(newest, some(world, (1, 5)))
    # Nobody gives the lost ones to a later attempt again.
    world.delete_before("orders", 0, 7)
    last = again(world, on_data_loss=OnDataLoss.WARN)
    assert last.lost == {tp: OffsetSet.of((2, 6))}
    assert windows.processed(last) == some(world, (0, 2), (6, 7))


@pytest.mark.slow
def test_parts_record_their_shares(world: World) -> None:
    """Each finds its own; together they are the window's, however the next attempt splits it."""
    plan = begun(world)
    windows = opened(world)
    for part in windows.split(plan, 3):
        tp, taken = next(iter(part.taken.items()))
        windows.mark_processed(part, {tp: OffsetSet.of((taken.first, taken.first + 1))})
        assert windows.processed(part) == {tp: OffsetSet.of((taken.first, taken.first + 1))}
    whole = {**some(world, (0, 1), (6, 7)), **some(world, (3, 4), partition=1)}
    assert windows.processed(plan) == whole
    with pytest.raises(WindowMismatchError, match=r"does not take 1 of the processed offsets"):
        windows.mark_processed(part, some(world, (0, 1)))
    other = opened(world, "second")
    shares = other.split(again(world), 2)
    assert [other.processed(share) for share in shares] == [
        some(world, (0, 1), (6, 7)),
        some(world, (3, 4), partition=1),
    ]


# --- what is refused -------------------------------------------------------------------------------------


def test_offsets_that_the_plan_does_not_take_are_refused(world: World) -> None:
    """With their number and the first of them; nothing is recorded."""
    plan = begun(world)
    windows = opened(world)
    tp = world.tp("orders")
    for wrong in (
        {tp: OffsetSet.of((8, 12))},
        {**some(world, (0, 5)), TopicPartition("payments", 0): OffsetSet.of((0, 2))},
    ):
        with pytest.raises(WindowMismatchError, match="does not take 2 of the processed offsets"):
            windows.mark_processed(plan, wrong)
    for odd in (None, [1], {tp: [0, 5]}, {"orders": OffsetSet.of((0, 1))}, {tp: None}):
        with pytest.raises(ConfigError, match="give a mapping"):
            windows.mark_processed(plan, odd)  # type: ignore[arg-type]
    assert (windows.processed(plan), kept(world)) == ({}, [])


def test_a_plan_of_nowhere_is_refused(memory: MemoryWorld) -> None:
    """A preview claims nothing, another group's plan is another group's, and a forgotten window is unknown."""
    plan = begun(memory)
    windows = opened(memory)
    preview = windows.preview(memory.window(200), "later")
    with pytest.raises(ConfigError, match="preview"):
        windows.mark_processed(preview, {})
    others = memory.windows("h", ledger_topic=_LEDGER)
    calls: list[Callable[[], object]] = [
        functools.partial(others.mark_processed, plan, some(memory, (0, 1))),
        functools.partial(others.processed, plan),
    ]
    for call in calls:
        with pytest.raises(WindowMismatchError, match="belongs to group"):
            call()
    windows.abandon("w")
    memory.now += 10_000
    windows.prune(timedelta(seconds=1), forget=True)
    calls = [
        functools.partial(windows.mark_processed, plan, some(memory, (0, 1))),
        functools.partial(windows.processed, plan),
    ]
    for call in calls:
        with pytest.raises(UnknownWindowError):
            call()


def test_a_record_that_is_too_large_is_not_written(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the window and both numbers; what was recorded before stays."""
    memory.create("orders")
    memory.write("orders", 0, *range(9_000))
    windows = opened(memory)
    plan = windows.plan(memory.window(10_000, starting_offsets=Earliest()), "w")
    windows.mark_processed(plan, some(memory, (0, 1)))
    # More than the group's state has.
    monkeypatch.setattr(ledger_messages, "RECORD_BYTES_MAX", 2_000)
    # Not every other one: what repeats is stored in little.
    scattered = [0, *sorted(random.Random(1).sample(range(1, 9_000), 3_000))]
    many = some(memory, *((n, n + 1) for n in scattered))
    with pytest.raises(
        LedgerRecordError,
        match=r"processed offsets of window w .* \d,\d\d\d bytes, and a record at most 2,000",
    ):
        windows.mark_processed(plan, many)
    assert windows.processed(plan) == some(memory, (0, 1))
    monkeypatch.undo()
    windows.mark_processed(plan, many)
    assert windows.processed(plan) == many


# --- faults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored_at_broker", [True, False])
def test_a_lost_answer_records_once(memory: MemoryWorld, stored_at_broker: bool) -> None:
    """Whether the commit arrived or not: the offsets are there afterwards."""
    plan = begun(memory)
    windows = opened(memory)
    with memory.kafka.lose_answers(stored=stored_at_broker):
        windows.mark_processed(plan, some(memory, (0, 5)))
    assert windows.processed(plan) == some(memory, (0, 5))
    with (
        memory.kafka.lose_answers(stored=stored_at_broker, read_back=False),
        pytest.raises(CommitUnknownError),
    ):
        windows.mark_processed(plan, some(memory, (5, 6)))
    windows.mark_processed(plan, some(memory, (5, 6)))
    assert windows.processed(plan) == some(memory, (0, 6))


def test_an_attempt_taken_over_at_the_last_moment_records_nothing(memory: MemoryWorld) -> None:
    """Another process takes the window up between the read and the write of the ledger."""
    plan = begun(memory)
    windows = opened(memory)
    newest: list[WindowPlan] = []
    memory.kafka.before_commit(lambda: newest.append(again(memory)))
    with pytest.raises(WindowSupersededError):
        windows.mark_processed(plan, some(memory, (0, 5)))
    assert opened(memory, "second").processed(newest[0]) == {}


def test_parts_that_record_at_the_same_moment_are_both_recorded(memory: MemoryWorld) -> None:
    """The second to commit decides again, on what the first has written."""
    plan = begun(memory)
    first, second = opened(memory).split(plan, 2)
    other = opened(memory, "second")
    both = {**some(memory, (0, 5)), **some(memory, (0, 7), partition=1)}
    memory.kafka.before_commit(
        lambda: other.mark_processed(second, some(memory, (0, 7), partition=1))
    )
    opened(memory).mark_processed(first, some(memory, (0, 5)))
    assert other.processed(plan) == both


@pytest.mark.parametrize("damage", [b"?", b"[]", b'{"version":1}', None])
def test_a_damaged_record_is_left_out(
    memory: MemoryWorld, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    """The records are processed again, and a warning tells why; the next call writes it anew."""
    plan = begun(memory)
    windows = opened(memory)
    windows.mark_processed(plan, some(memory, (0, 5)))
    left = record_of(memory)
    put(memory, left, damage or left.value, () if damage is None else left.headers)
    assert windows.processed(plan) == {}
    assert opened(memory, "second").show("w").status is WindowStatus.PLANNED
    windows.mark_processed(plan, some(memory, (5, 6)))
    assert windows.processed(plan) == some(memory, (5, 6))
    windows.commit(plan)
    assert kept(memory) == []


def test_a_record_of_a_newer_package_is_an_error(memory: MemoryWorld) -> None:
    """For those who ask for it; the others pass over it, and the end of the window removes it."""
    plan = begun(memory)
    windows = opened(memory)
    windows.mark_processed(plan, some(memory, (0, 5)))
    left = record_of(memory)
    put(memory, left, b'{"version":2}', left.headers)
    for call in (
        functools.partial(windows.processed, plan),
        functools.partial(windows.mark_processed, plan, some(memory, (5, 6))),
    ):
        with pytest.raises(LedgerVersionError, match="Upgrade"):
            call()
    assert windows.show("w").plan == plan
    windows.commit(plan)
    assert kept(memory) == []
