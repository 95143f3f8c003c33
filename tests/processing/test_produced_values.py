"""What functions may return to be written, and what fails their records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kafka_ordered_ops import (
    ConfigError,
    RecordFailedError,
)
from kafka_ordered_ops.processing import NewRecord, Processor, Record
from kafka_ordered_ops.processing.workers.calls import call_of
from tests.processing.test_exactly_once import fill
from tests.processing.test_exactly_once import topics as topics
from tests.support.memory_world import MemoryWorld
from tests.support.processing_groups import places
from tests.support.produced import Transformer, check_once_in_order, written
from tests.support.work_functions import copied


async def _copied_later(record: Record) -> NewRecord:
    await asyncio.sleep(0.001)
    return copied(record)


def _all_copied(records: list[Record]) -> list[Any]:
    return [[copied(one)] for one in records]


@pytest.mark.parametrize(
    ("function", "options", "workers"),
    [
        (_copied_later, {}, "threads"),
        (_all_copied, {"batch_size": 7}, "threads"),
        (copied, {}, "processes"),
    ],
)
def test_every_kind_of_function_writes(
    memory: MemoryWorld, function: Callable[[Any], Any], options: dict[str, Any], workers: str
) -> None:
    """On an event loop, in batches, and in processes."""
    memory.create("orders")
    memory.create("out")
    fill(memory, 30)
    processor = Processor(memory.settings, workers=workers, max_concurrency=2)
    results = processor.subscribe(
        memory.named("orders"),
        function,
        group_id=memory.named("live"),
        produce="transactional",
        **options,
    )
    for _ in range(30):
        next(results)
    processor.stop()
    assert not list(results)
    check_once_in_order(written(memory), places(range(30)))


@pytest.mark.parametrize("value", ["text", b"bytes", 1, [1], [None], {}, object()])
def test_a_value_that_cannot_be_written_fails_its_record(memory: MemoryWorld, value: Any) -> None:
    """As if the function had raised: it is tried again, and then the policy decides."""
    memory.create("orders")
    memory.write("orders", 0, 1)
    options: dict[str, Any] = {"retries": 1, "backoff": lambda *_: 0.0}
    with (
        pytest.raises(RecordFailedError, match=r"attempt 2.*NewRecord") as caught,
        Transformer(memory, returns=lambda _: value, processor=options) as worker,
    ):
        worker.until(lambda: False)
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_batch_gives_one_value_for_each_record() -> None:
    """A record, several, or None; otherwise all of the batch have failed."""
    records = [Record("orders", 0, offset, 0, None, None) for offset in range(3)]
    one = NewRecord("out", None, b"x")
    values: list[Any] = [one, [one, one], None]
    call = call_of(lambda _: values, in_batches=True, produces=True)
    assert [result.value for result in call(records)] == [one, (one, one), None]
    values[1] = [one, "text"]
    assert all(isinstance(result.error, TypeError) for result in call(records))


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": ""},
        {"topic": "a topic"},
        {"topic": None},
        {"key": "text"},
        {"value": 1},
        {"headers": {"a": b"1"}},
        {"headers": [("a", "text")]},
        {"headers": 5},
        {"timestamp_ms": -1},
        {"timestamp_ms": 2**63},
        {"timestamp_ms": 1.5},
        {"partition": -1},
        {"partition": True},
    ],
)
def test_a_record_that_no_topic_can_take_is_not_made(wrong: dict[str, Any]) -> None:
    """The error is raised where it is made, and fails one record only."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        NewRecord(**{"topic": "out", "key": b"k", "value": b"v", **wrong})
