"""Consume, transform, produce: outputs and progress in the same transactions, each record's output exactly once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import (
    BrokerError,
    CommitRefusedError,
    CommitUnknownError,
    ConfigError,
    RecordTooLargeError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.offset_map import fitting
from kafka_ordered_ops.core.offset_set import EMPTY_SET
from kafka_ordered_ops.core.processing import outputs
from kafka_ordered_ops.kafka.members.transactions import MemberTransactions
from kafka_ordered_ops.processing import NewRecord, Processor, Record
from kafka_ordered_ops.testing.membership import expire_members
from kafka_ordered_ops.testing.writing import MemoryTransactions
from tests.ordered.test_ordered_kill import forget_members
from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.processing_groups import Worker, committed_places, places, twice, wait_until
from tests.support.produced import Transformer, check_once_in_order, output_of, written
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

#: No commit but the first, of where partitions begin, and the last.
_NEVER_S = 600.0
_DOORS = (MemoryTransactions, MemberTransactions)


def fill(world: World, *counts: int, keys: int = 7) -> None:
    """Writes records with a few keys to the partitions of `orders`."""
    for number, count in enumerate(counts):
        content = [(0.0, b"key-%d" % (one % keys), b"x", ()) for one in range(count)]
        world.write_content("orders", number, content)


def until_committed(worker: Worker, world: World, *partitions: range) -> None:
    """Waits until all of these records are committed as done."""
    worker.until(lambda: committed_places(world) == set(places(*partitions)))


@pytest.fixture
def topics(world: World) -> None:
    """Where records come from, and where they go to."""
    world.create("orders", partitions=2)
    world.create("out", partitions=3, max_message_bytes="2000")


def commits_fail(monkeypatch: pytest.MonkeyPatch, *outcomes: str) -> list[str]:
    """Lets the next transactions with records fail: `refused`, `stored` or `lost`, the last two without an answer."""
    left = list(outcomes)

    def failing(commit: Callable[..., None]) -> Callable[..., None]:
        def instead(self: Any, records: Any, offsets: Any, **options: Any) -> None:
            outcome = left.pop(0) if left and records else ""
            if outcome == "refused":
                raise CommitRefusedError("refused", group_id="live")
            if outcome != "lost":
                commit(self, records, offsets, **options)
            if outcome:
                raise CommitUnknownError("no answer")

        return instead

    for door in _DOORS:
        monkeypatch.setattr(door, "commit", failing(door.commit))
    return left


@pytest.mark.usefixtures("topics")
def test_each_record_is_written_once_and_in_the_order_of_its_key(world: World) -> None:
    """Also when attempts fail; and the next member goes on behind."""
    failed: set[tuple[int, int]] = set()

    def returns(record: Record) -> NewRecord:
        if record.attempt == 1 and record.offset % 5 == 0:
            failed.add((record.partition, record.offset))
            raise ValueError("not yet")
        return output_of(record, world.named("out"))

    fill(world, 40, 20)
    everything = set(places(range(40), range(20)))
    options: dict[str, Any] = {"processor": {"backoff": lambda *_: 0.01}}
    with Transformer(world, returns=returns, **options) as worker:
        worker.until(lambda: committed_places(world) == everything)
    assert len(failed) == 12
    check_once_in_order(written(world), everything)
    fill(world, 5)
    everything |= {(0, offset) for offset in range(40, 45)}
    with Transformer(world) as worker:
        worker.until(lambda: committed_places(world) == everything)
    assert len(worker.begun) == 5
    check_once_in_order(written(world), everything)


@pytest.mark.usefixtures("topics")
def test_nothing_is_visible_before_the_commit(world: World) -> None:
    """Neither outputs nor progress; at the end both are."""
    fill(world, 10)
    with Transformer(world, commit_interval_s=_NEVER_S) as worker:
        worker.until_processed(10)
        assert not worker.done
        assert not written(world)
        assert not committed_places(world)
    check_once_in_order(written(world), places(range(10)))
    assert committed_places(world) == set(places(range(10)))


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize(
    "outcomes",
    [("refused", "refused"), ("stored", "stored"), ("lost",), ("lost", "stored", "refused")],
)
def test_a_commit_that_fails_or_has_no_answer_is_made_once(
    world: World, monkeypatch: pytest.MonkeyPatch, outcomes: tuple[str, ...]
) -> None:
    """Nothing is processed again for it."""
    left, count = commits_fail(monkeypatch, *outcomes), 0
    with Transformer(world) as worker:
        while left:
            fill(world, 10)
            count += 10
            until_committed(worker, world, range(count))
    assert not twice(worker)
    check_once_in_order(written(world), places(range(count)))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    outcomes=st.lists(st.sampled_from(["refused", "stored", "lost", ""]), max_size=8),
    many=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    ordering=st.sampled_from(["key", "partition", "unordered"]),
)
@pytest.mark.slow
def test_whatever_fails_outputs_are_those_of_what_is_committed(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[str], many: list[int], ordering: str
) -> None:
    """Any number of outputs for each record, any outcomes: each once, and all of them in the end."""
    with MemoryWorld() as world, monkeypatch.context() as patched:
        commits_fail(patched, *outcomes)
        world.create("orders")
        world.create("out")
        fill(world, len(many))
        everything = set(places(range(len(many))))

        def returns(record: Record) -> list[NewRecord] | None:
            count = many[record.offset]
            value = f"{record.offset}:".encode()
            return [
                NewRecord(world.named("out"), record.key, value + b"%d" % n) for n in range(count)
            ] or None

        with Transformer(
            world,
            returns=returns,
            function_s=0.0,
            commit_interval_s=0.001,
            processor={"ordering": ordering, "max_concurrency": 4},
        ) as worker:
            worker.until(lambda: committed_places(world) == everything)
        assert not twice(worker)
        found = [place for _, place in written(world)]
        assert sorted(found) == [
            (offset, n) for offset, count in enumerate(many) for n in range(count)
        ]
        if ordering == "partition":
            assert found == sorted(found)


@pytest.mark.usefixtures("topics")
def test_a_dead_letter_is_in_the_transaction(world: World) -> None:
    """Once, and not before the commit; a record that is skipped writes nothing."""
    world.create("dead")

    def returns(record: Record) -> NewRecord:
        if record.offset == 3:
            raise ValueError("poison")
        return output_of(record, world.named("out"))

    fill(world, 6)
    rest = [(0, offset) for offset in range(6) if offset != 3]
    options: dict[str, Any] = {"retries": 0, "dead_letter_topic": world.named("dead")}
    with Transformer(
        world, returns=returns, commit_interval_s=_NEVER_S, processor=options
    ) as worker:
        worker.until_processed(6)
        assert not world.stored("dead")
    assert committed_places(world) == set(places(range(6)))
    check_once_in_order(written(world), rest)
    [dead] = world.stored("dead")
    assert {one["key"]: one["value"] for one in dead["headers"]}["koo.offset"] == b"3"
    skips: dict[str, Any] = {"retries": 0, "when_exhausted": "skip"}
    with Transformer(world, returns=returns, group_id="skips", processor=skips) as worker:
        worker.until(lambda: committed_places(world, group_id="skips") == set(places(range(6))))
    assert len(written(world)) == 2 * len(rest)


@pytest.mark.usefixtures("topics")
def test_outputs_whose_records_do_not_fit_into_the_map_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is what is committed, and the rest follows when there is room."""
    small = {"committed": EMPTY_SET, "limit_bytes": 12}
    monkeypatch.setattr(fitting.fitted_map, "__kwdefaults__", small)
    monkeypatch.setattr(fitting, "FULL_SHARE", 2.0)
    fill(world, 100, keys=100)
    with Transformer(
        world, holds=lambda one: one.offset % 20 == 0, processor={"ordering": "unordered"}
    ) as worker:
        worker.until_processed(95)
        fitting_ones = {(0, offset) for offset in range(1, 40) if offset != 20}
        worker.until(lambda: committed_places(world) == fitting_ones)
        check_once_in_order(written(world), fitting_ones)
        worker.release()
        until_committed(worker, world, range(100))
    assert not twice(worker)
    check_once_in_order(written(world), places(range(100)))


@pytest.mark.usefixtures("topics")
def test_a_map_without_room_keeps_what_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lower records that are done later wait: in its place, they would let the next member write its outputs again."""
    small = {"committed": EMPTY_SET, "limit_bytes": 12}
    monkeypatch.setattr(fitting.fitted_map, "__kwdefaults__", small)
    monkeypatch.setattr(fitting, "FULL_SHARE", 2.0)
    later = threading.Event()

    def returns(record: Record) -> NewRecord:
        if record.offset in (10, 20):
            later.wait(TIMEOUT_S)
        return output_of(record, world.named("out"))

    fill(world, 80, keys=80)
    options: dict[str, Any] = {
        "ordering": "unordered",
        "max_concurrency": 80,
        "stop_timeout_s": 0.3,
    }
    # Two ranges fit, and four do not.
    quick = {10, 20, 40, 70}
    with Transformer(
        world, returns=returns, holds=lambda one: one.offset not in quick, processor=options
    ) as first:
        first.until(lambda: committed_places(world) == {(0, 40), (0, 70)})
        later.set()
        first.until(lambda: "do not fit" in caplog.text)
        first.stop()
    assert committed_places(world) == {(0, 40), (0, 70)}
    check_once_in_order(written(world), [(0, 40), (0, 70)])
    with Transformer(world, processor=options) as second:
        until_committed(second, world, range(80))
    check_once_in_order(written(world), places(range(80)))


@pytest.mark.slow
@pytest.mark.usefixtures("topics")
def test_many_outputs_are_written_at_once_and_no_more_are_made_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interval does not matter; while commits fail, what is held has a bound."""
    monkeypatch.setattr(outputs, "RECORDS_MAX", 10)
    fill(world, 100, keys=100)
    with Transformer(world, commit_interval_s=_NEVER_S) as worker:
        worker.until(lambda: len(committed_places(world)) >= 90)
    commits_fail(monkeypatch, *["refused"] * 1_000)
    world.create("more")
    for _ in range(10):
        world.write("more", 0, *range(10))
    with Transformer(world, "more", group_id="fails", processor={"max_concurrency": 4}) as worker:
        worker.until_processed(20)
        wait_until(lambda: worker.processor.counts[0].in_flight == 0)
        assert len(worker.begun) < 40
        assert worker.processor.counts[0].held > 60


@pytest.mark.usefixtures("topics")
def test_a_member_that_was_thrown_out_writes_nothing_of_what_it_had_done(world: World) -> None:
    """Its records are processed again, and their outputs are there once."""
    fill(world, 10)
    with Transformer(world, commit_interval_s=_NEVER_S) as worker:
        worker.until_processed(10)
        if isinstance(world, MemoryWorld):
            expire_members(world.kafka.name, world.named("live"))
        else:
            assert isinstance(world, BrokerWorld)
            forget_members(world, world.named("live"))
        worker.until_processed(20)
        assert not written(world)
    assert twice(worker) == set(places(range(10)))
    check_once_in_order(written(world), places(range(10)))


@pytest.mark.usefixtures("topics")
def test_partitions_move_with_their_outputs(world: World) -> None:
    """A second member comes and goes while both work, with commits that fail now and then."""
    stop = threading.Event()
    count = 0

    def write() -> None:
        nonlocal count
        while not stop.is_set():
            fill(world, 7, 7)
            count += 7
            stop.wait(0.02)

    writer = threading.Thread(target=write)
    with Transformer(world, commit_interval_s=0.2) as first:
        writer.start()
        try:
            first.until_done((0, 0), (1, 0))
            with Transformer(world, commit_interval_s=0.2) as second:
                second.until(lambda: len(second.done) > 50)
        finally:
            stop.set()
            writer.join()
        everything = set(places(range(count), range(count)))
        first.until(lambda: committed_places(world) == everything)
    check_once_in_order(written(world), everything)


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize(
    ("topic", "size", "error"),
    [("absent", 1, UnknownTopicError), ("out", 3_000, RecordTooLargeError)],
)
def test_a_record_that_kafka_refuses_ends_processing(
    world: World, topic: str, size: int, error: type[Exception]
) -> None:
    """Nothing of its transaction is stored, and nothing is lost."""
    fill(world, 5)

    def returns(record: Record) -> NewRecord:
        if record.offset == 2:
            return NewRecord(world.named(topic), record.key, b"x" * size)
        return output_of(record, world.named("out"))

    with (
        pytest.raises(error, match=world.named(topic)),
        Transformer(world, returns=returns, commit_interval_s=1) as worker,
    ):
        worker.until(lambda: False)
    done = committed_places(world)
    assert (0, 2) not in done
    check_once_in_order(written(world), done)
    with Transformer(world) as worker:
        until_committed(worker, world, range(5))
    check_once_in_order(written(world), places(range(5)))


@pytest.mark.usefixtures("topics")
def test_outputs_that_are_too_large_only_together_are_committed(world: World) -> None:
    """A broker refuses a batch as a whole: the batches become smaller, and no innocent record ends processing."""
    fill(world, 300)

    def returns(record: Record) -> NewRecord:
        return NewRecord(world.named("out"), record.key, b"%d" % record.offset + os.urandom(400))

    with Transformer(world, returns=returns, commit_interval_s=1) as worker:
        until_committed(worker, world, range(300))


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("what", ["large", "dead letter", "no key"])
def test_the_error_of_a_transaction_names_the_record_that_it_is_about(
    world: World, what: str
) -> None:
    """Among many others in its batch: topic, partition and offset, and the function's error of a dead letter."""
    world.create("dead", max_message_bytes="2000")
    world.create("compacted", cleanup_policy="compact")
    fill(world, 50)
    is_dead = what == "dead letter"

    def returns(record: Record) -> NewRecord:
        large = os.urandom(3_000) if record.offset == 20 else b"x"
        if is_dead and record.offset == 20:
            raise ValueError("no such order " + "x" * 3_000)
        if what == "no key":
            key = None if record.offset == 20 else b"k"
            return NewRecord(world.named("compacted"), key, b"x")
        return NewRecord(world.named("out"), record.key, large)

    more = (
        {"processor": {"retries": 0, "dead_letter_topic": world.named("dead")}} if is_dead else {}
    )
    expected = (
        (BrokerError, "takes no record without a key")
        if what == "no key"
        else (RecordTooLargeError, "max.message.bytes")
    )
    with (
        pytest.raises(expected[0], match=expected[1]) as caught,
        Transformer(world, returns=returns, commit_interval_s=1, **more) as worker,
    ):
        worker.until(lambda: False)
    [note] = caught.value.__notes__
    assert note.startswith(f"{world.tp('orders', 0)}@20 is not done")
    assert ("ValueError: no such order" in note) is is_dead


def test_uncommitted_records_are_no_input(memory: MemoryWorld) -> None:
    """Nothing would be exactly once."""
    processor = Processor(memory.settings)
    for options in (
        {"produce": "transactional", "isolation": "read_uncommitted"},
        {"produce": "yes"},
    ):
        given_options: dict[str, Any] = options
        with pytest.raises(ConfigError, match="produce"):
            processor.subscribe("orders", lambda _: None, group_id="g", **given_options)


def test_without_produce_values_are_only_results(memory: MemoryWorld) -> None:
    """A record that is returned is not written."""
    memory.create("orders")
    memory.create("out")
    memory.write("orders", 0, 1)
    with Transformer(memory, produce=None) as worker:
        worker.until(lambda: committed_places(memory) == {(0, 0)})
    assert isinstance(worker, Worker)
    assert not written(memory)
