"""A group that processes the topics that patterns select: those that appear, and those that are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kafka_ordered_ops import ConfigError, UnknownTopicError
from kafka_ordered_ops.processing import Processor, Record
from kafka_ordered_ops.processing import topics as processing_topics
from kafka_ordered_ops.processing.work_queue import Result
from tests.support.worlds import World


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks for topics more often than every five seconds."""
    monkeypatch.setattr(processing_topics, "LOOK_EVERY_S", 0.1)


def subscribed(world: World, processor: Processor, **options: Any) -> Iterator[Result]:
    """Results of all topics of the world whose names begin with `orders-`."""
    return processor.subscribe(
        f"^orders-.*{world.named('')}",
        lambda record: record.topic,
        group_id=world.named("live"),
        commit_interval_s=0.05,
        **options,
    )


def taken(results: Iterator[Result], count: int) -> set[tuple[str, int]]:
    """Which records the next results are of."""
    records: list[Record] = [next(results).record for _ in range(count)]
    return {(record.topic, record.offset) for record in records}


def test_topics_that_appear_are_taken_up_whole(world: World) -> None:
    """Without those that are excluded."""
    for name in ("orders-1", "orders-no", "other"):
        world.create(name)
        world.write(name, 0, *range(3))
    with Processor(world.settings) as processor:
        results = subscribed(world, processor, exclude=world.named("orders-no"))
        first = world.named("orders-1")
        assert taken(results, 3) == {(first, offset) for offset in range(3)}
        world.create("orders-2")
        world.write("orders-2", 0, *range(4))
        second = world.named("orders-2")
        assert taken(results, 4) == {(second, offset) for offset in range(4)}


def test_a_deleted_topic_is_left_and_the_others_go_on(world: World) -> None:
    """What a pattern no longer selects is no error; a topic that is asked for by name is one."""
    for name in ("orders-1", "orders-2"):
        world.create(name)
        world.write(name, 0, *range(3))
    with Processor(world.settings) as processor:
        results = subscribed(world, processor)
        taken(results, 6)
        world.delete("orders-1")
        for second in range(3, 30):
            world.write("orders-2", 0, second)
        last = world.named("orders-2")
        assert taken(results, 27) == {(last, offset) for offset in range(3, 30)}
        world.create("orders-3")
        world.write("orders-3", 0, 1)
        assert taken(results, 1) == {(world.named("orders-3"), 0)}


def test_a_pattern_without_a_topic_and_one_with_the_dead_letters_are_refused(world: World) -> None:
    """Before a record is processed."""
    with Processor(world.settings) as processor, pytest.raises(UnknownTopicError):
        next(subscribed(world, processor))
    world.create("orders-dead")
    with (
        Processor(world.settings, dead_letter_topic=world.named("orders-dead")) as processor,
        pytest.raises(ConfigError, match="dead_letter_topic"),
    ):
        next(subscribed(world, processor))
