"""Outputs with and without transactions: when they are stored, where, and what a refused one does."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kafka_ordered_ops import CallbackError, RecordTooLargeError, UnknownTopicError
from kafka_ordered_ops.processing import NewRecord, Processor, Record, RecordMetadata
from kafka_ordered_ops.processing.work_queue import Result
from tests.support.processing_groups import committed_places, places, twice
from tests.support.produced import Transformer, check_once_in_order, output_of, written
from tests.support.worlds import World

MODES = pytest.mark.parametrize("produce", ["idempotent", "transactional"])


def fill(world: World, count: int, keys: int = 7) -> None:
    """Writes records with a few keys to `orders`."""
    content = [(0.0, b"key-%d" % (number % keys), b"x", ()) for number in range(count)]
    world.write_content("orders", 0, content)


@pytest.fixture(autouse=True)
def topics(world: World) -> None:
    """Where records come from, and where they go to."""
    world.create("orders", partitions=2)
    world.create("out", partitions=3, max_message_bytes="2000")


def results_of(world: World, count: int, function: Any, **options: Any) -> list[Result]:
    """The first results of a new member of a group."""
    with Processor(world.settings) as processor:
        results = processor.subscribe(
            world.named("orders"),
            function,
            group_id=world.named("live"),
            commit_interval_s=0.05,
            **options,
        )
        return [next(results) for _ in range(count)]


@MODES
def test_a_result_says_where_its_outputs_are(world: World, produce: str) -> None:
    """Of two, of none and of one, in the order in which the function returned them."""
    out = world.named("out")

    def split(record: Record) -> Any:
        copies = record.offset % 3
        return [NewRecord(out, record.key, b"%d/%d" % (record.offset, n)) for n in range(copies)]

    fill(world, 30)
    said: list[Result] = []
    results = results_of(world, 30, split, produce=produce, on_produced=said.append)
    assert sorted(one.record.offset for one in results) == [*range(30)]
    stored = {
        RecordMetadata(out, row["partition"], row["offset"]): row["value"]
        for partition in range(3)
        for row in world.stored("out", partition)
    }
    for result in results:
        expected = [b"%d/%d" % (result.record.offset, n) for n in range(result.record.offset % 3)]
        assert [stored[place] for place in result.produced] == expected
    assert len(stored) == 30
    assert {one.record.offset for one in said} == {n for n in range(30) if n % 3}


def test_outputs_without_transactions_are_there_before_the_commit(world: World) -> None:
    """In the order of their keys, each once while nothing fails; the next member goes on behind."""
    fill(world, 60)
    with Transformer(world, produce="idempotent") as worker:
        worker.until(lambda: (0, 59) in committed_places(world))
        check_once_in_order(written(world), places(range(60)))
    assert not twice(worker)
    check_once_in_order(written(world), places(range(60)))
    fill(world, 5)
    with Transformer(world, produce="idempotent") as worker:
        worker.until(lambda: (0, 64) in committed_places(world))
    assert len(worker.begun) == 5


def test_failed_records_of_idempotent_functions_have_dead_letters(world: World) -> None:
    """In their own topic, outside of transactions; they are done then."""
    world.create("dead")
    out = world.named("out")

    def returns(record: Record) -> NewRecord:
        if record.offset == 3:
            raise ValueError("poison")
        return output_of(record, out)

    fill(world, 6)
    options: dict[str, Any] = {"retries": 0, "dead_letter_topic": world.named("dead")}
    with Transformer(world, returns=returns, produce="idempotent", processor=options) as worker:
        worker.until(lambda: committed_places(world) == set(places(range(6))))
    check_once_in_order(written(world), [(0, n) for n in range(6) if n != 3])
    [dead] = world.stored("dead")
    assert {one["key"]: one["value"] for one in dead["headers"]}["koo.offset"] == b"3"


@MODES
@pytest.mark.parametrize(
    ("topic", "value", "error"),
    [("out", b"x" * 3_000, RecordTooLargeError), ("nowhere", b"x", UnknownTopicError)],
)
def test_a_refused_output_ends_processing_and_its_record_is_not_done(
    world: World, produce: str, topic: str, value: bytes, error: type[Exception]
) -> None:
    """By name, with the record that it was for; what was stored before is committed."""
    name, out = world.named(topic), world.named("out")

    def returns(record: Record) -> NewRecord:
        return NewRecord(name, None, value) if record.offset == 4 else output_of(record, out)

    fill(world, 6, keys=1)
    worker = Transformer(world, returns=returns, produce=produce)
    with pytest.raises(error) as raised, worker:
        worker.until(lambda: False)
    assert any(f"{world.named('orders')}[0]@4" in note for note in raised.value.__notes__)
    assert (0, 4) not in committed_places(world)


@MODES
def test_a_callback_that_raises_ends_processing(world: World, produce: str) -> None:
    """Its outputs are stored, as the error says."""
    out = world.named("out")

    def fails(_: Result) -> None:
        raise KeyError("no such order")

    fill(world, 3)
    with pytest.raises(CallbackError, match=r"on_produced raised KeyError .*stored"):
        results_of(
            world, 3, lambda record: output_of(record, out), produce=produce, on_produced=fails
        )


def test_a_callback_may_ask_for_the_state(world: World) -> None:
    """It is called without a lock, by a thread of the processor's own."""
    out, threads = world.named("out"), set[str]()
    with Processor(world.settings) as processor:

        def ask(_: Result) -> None:
            assert processor.state()
            threads.add(threading.current_thread().name)

        fill(world, 3)
        results = processor.subscribe(
            world.named("orders"),
            lambda record: output_of(record, out),
            group_id=world.named("live"),
            produce="idempotent",
            on_produced=ask,
        )
        for _ in range(3):
            next(results)
    assert threads
    assert threading.main_thread().name not in threads
