"""A topic that is deleted and created again while it is read: nothing of the new one is returned."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_ordered_ops import TopicRecreatedError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, Isolation
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from tests.support.broker_world import BrokerWorld
from tests.support.worlds import World

_COMMITTED = Isolation.READ_COMMITTED


def _recreate(world: World, records: int) -> None:
    world.delete("orders")
    world.create("orders")
    world.write("orders", 0, *range(records))


def _until_error(reader: ReaderDoor) -> Iterator[int]:
    """The positions of an endless read, until it fails."""
    while True:
        for turn in reader.turn():
            yield turn.position


def test_no_record_of_the_new_topic_is_returned(world: World) -> None:
    """Whatever its offsets are: it begins below the position, and ends above it."""
    world.create("orders")
    world.write("orders", 0, *range(20))
    wanted = {world.tp("orders"): OffsetSet.of((0, INT64_MAX))}
    with open_reader(world.settings, "g", _COMMITTED, wanted) as reader:
        positions = _until_error(reader)
        assert next(at for at in positions if at == 20)
        _recreate(world, 50)
        with pytest.raises(TopicRecreatedError) as caught:
            list(positions)
        assert reader.positions == {world.tp("orders"): 20}
        # Until it is stopped.
        with pytest.raises(TopicRecreatedError):
            list(_until_error(reader))
    assert caught.value.topic == world.named("orders")
    assert caught.value.expected_id != caught.value.found_id


def test_a_topic_with_another_id_than_the_expected_one_is_not_read(world: World) -> None:
    """It was created again between the look-up and the first fetch."""
    world.create("orders")
    world.write("orders", 0, *range(20))
    name, tp = world.named("orders"), world.tp("orders")
    plan = world.windows().preview(world.window(100.0, starting_offsets="earliest"), "w")
    ids = {part.tp.topic: part.topic_id for part in plan}
    wanted = {tp: OffsetSet.of((0, 20))}
    with open_reader(world.settings, "g", _COMMITTED, wanted, topic_ids=ids) as reader:
        assert sum(batch.num_rows for batch in reader.batches()) == 20
    _recreate(world, 50)
    with (
        open_reader(world.settings, "g", _COMMITTED, wanted, topic_ids=ids) as reader,
        pytest.raises(TopicRecreatedError, match=name),
    ):
        list(reader.batches())


@pytest.mark.slow
def test_a_topic_that_was_stopped_is_read_anew(broker: BrokerWorld) -> None:
    """Its owner has looked at where to begin; other topics are read on in between."""
    for name in ("orders", "others"):
        broker.create(name)
        broker.write(name, 0, *range(20))
    endless = OffsetSet.of((0, INT64_MAX))
    wanted = {broker.tp("orders"): endless, broker.tp("others"): endless}
    with open_reader(broker.settings, "g", _COMMITTED, wanted) as reader:
        while set(reader.positions.values()) != {20}:
            reader.turn()
        _recreate(broker, 50)
        with pytest.raises(TopicRecreatedError):
            list(_until_error(reader))
        reader.stop(broker.tp("orders"))
        broker.write("others", 0, *range(5))
        while reader.positions[broker.tp("others")] < 25:
            reader.turn()
        reader.add(broker.tp("orders"), endless)
        while reader.positions[broker.tp("orders")] < 50:
            reader.turn()
