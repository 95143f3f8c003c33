"""Which offsets a group has done, whoever keeps its progress."""

from __future__ import annotations

import pytest

from kafka_ordered_ops import Earliest, UnknownTopicError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import ProgressFormat
from tests.support.both_worlds import world as world
from tests.support.worlds import World


@pytest.mark.slow
def test_a_group_of_windows(world: World) -> None:
    """What is done, with holes, and what open windows hold."""
    world.create("orders", partitions=2)
    world.write("orders", 0, 1, 12, 3, 25)
    world.write("orders", 1, 2, 2, 30)
    world.run("w1", 10.0, starting_offsets=Earliest())
    world.plan("w2", 20.0)
    found = world.windows().offsets()
    first, second = found.partitions
    assert found.format is ProgressFormat.LEDGER
    assert (first.done, first.claimed) == (OffsetSet.of((0, 1), (2, 3)), OffsetSet.of((1, 2)))
    assert (first.committed, first.lag, first.done_beyond) == (1, 2, 1)
    assert (second.done, second.lag, found.lag) == (OffsetSet.of((0, 2)), 1, 3)


def test_a_plain_consumer(world: World) -> None:
    """Its commits say all that is known; partitions without one are left out."""
    world.create("orders", partitions=2)
    world.write("orders", 0, *range(10))
    world.foreign_commit("g", "orders", {0: 4})
    found = world.windows().offsets(world.named("orders"))
    assert found.format is None
    assert [(one.committed, one.lag) for one in found.partitions] == [(4, 6)]


def test_an_unknown_topic(world: World) -> None:
    """Is an error, not an empty answer."""
    with pytest.raises(UnknownTopicError):
        world.windows().offsets("nowhere")
