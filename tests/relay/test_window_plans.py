"""Plans of windows that do not fit the topics, or the relay: refused, and nothing is begun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    KafkaOrderedOpsError,
    NotReadyError,
    RelayLogRecordError,
    TopicRecreatedError,
    UnknownTopicError,
    WindowPlan,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.relay.http.answers import answer_of
from tests.support.memory_world import MemoryWorld
from tests.support.relay_servers import places, read_all, run, serving

#: Ranges that no record of the log has room for.
_ONES = np.arange(1_000_001)
TOO_MANY = OffsetSet(np.column_stack((3 * _ONES, 3 * _ONES + 1 + _ONES % 2)).ravel())


def with_first(plan: WindowPlan, **changes: object) -> WindowPlan:
    """The plan, with another first partition."""
    first, *others = plan.partitions
    return replace(plan, partitions=(replace(first, **changes), *others))  # type: ignore[arg-type]


CASES: dict[
    str, tuple[Callable[[WindowPlan, str], WindowPlan], type[KafkaOrderedOpsError], int]
] = {
    "a partition that does not exist": (
        lambda plan, topic: with_first(plan, tp=TopicPartition(topic, 7)),
        ConfigError,
        400,
    ),
    "a topic that is not served": (
        lambda plan, _: with_first(plan, tp=TopicPartition("nothing", 0)),
        UnknownTopicError,
        404,
    ),
    "a topic of before": (
        lambda plan, _: with_first(plan, topic_id="another"),
        TopicRecreatedError,
        409,
    ),
    "no partitions": (lambda plan, _: replace(plan, partitions=()), ConfigError, 400),
    "other records": (
        lambda plan, _: replace(
            plan, window=replace(plan.window, isolation=Isolation.READ_UNCOMMITTED)
        ),
        ConfigError,
        400,
    ),
    "too many ranges": (
        lambda plan, _: with_first(plan, taken=TOO_MANY),
        RelayLogRecordError,
        400,
    ),
    "a name that is too long": (
        lambda plan, _: replace(plan, window_id="x" * 256),
        ConfigError,
        400,
    ),
}


def test_a_plan_that_does_not_fit(memory: MemoryWorld) -> None:
    """The error says what does not fit, is no error of the server, and the window can be opened as it is."""
    memory.create("orders", 2)
    for partition in range(2):
        memory.write("orders", partition, *range(10))
    plan = memory.plan("w", 5, starting_offsets=Earliest())
    assert plan is not None

    async def scenario() -> None:
        async with serving(memory) as one:
            for name, (change, kind, status) in CASES.items():
                changed = change(plan, memory.named("orders"))
                with pytest.raises(kind) as raised:
                    await one.open_window(changed)
                assert answer_of(raised.value).status == status, name
            assert all(status.group is None for status in one.status())
            assert await one.open_window(plan) == "w"
            assert len(set(places(await read_all(one, 10, "w")))) == 10

    run(scenario())


def test_a_partition_that_was_just_added(memory: MemoryWorld) -> None:
    """The server has not seen it yet: the client calls again."""
    memory.create("orders")
    memory.write("orders", 0, *range(10))

    async def scenario() -> None:
        async with serving(memory) as one:
            memory.add_partitions("orders", 2)
            plan = memory.plan("w", 5, starting_offsets=Earliest())
            assert plan is not None
            empty = plan.partitions[0]
            later = replace(empty, tp=memory.tp("orders", 1), taken=OffsetSet.of((0, 1)))
            with pytest.raises(NotReadyError):
                await one.open_window(replace(plan, partitions=(later,)))

    run(scenario())
