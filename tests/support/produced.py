"""Processors that write what comes of their records, and what a consumer that reads committed finds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.kafka.ports import open_lookup, open_reader
from kafka_ordered_ops.processing import NewRecord, Record
from tests.support.processing_groups import Place, Worker
from tests.support.worlds import World

#: The key, and which record it is of.
Written = tuple[bytes | None, Place]


def output_of(record: Record, topic: str) -> NewRecord:
    """The record with the same key that names another record."""
    return NewRecord(topic, record.key, f"{record.partition}:{record.offset}".encode())


class Transformer(Worker):
    """A processor of `orders` that writes one record to `out` for each, or what `returns` makes of it."""

    def __init__(
        self,
        world: World,
        *topics: str,
        returns: Callable[[Record], Any] | None = None,
        **options: Any,
    ) -> None:
        out = world.named("out")
        self._returns = returns or (lambda record: output_of(record, out))
        super().__init__(world, *topics, **{"produce": "transactional", **options})

    def _process(self, record: Record) -> Any:
        super()._process(record)
        return self._returns(record)


def written(world: World, topic: str = "out") -> list[Written]:
    """What is visible now, partition by partition."""
    with open_lookup(world.settings) as lookup:
        numbers = lookup.topics([world.named(topic)])[world.named(topic)].partitions
        tps = [world.tp(topic, number) for number in numbers]
        ends = lookup.end_offsets(tps, Isolation.READ_COMMITTED)
    wanted = {tp: OffsetSet.of((0, end)) for tp, end in ends.items() if end}
    if not wanted:
        return []
    found: dict[int, list[Written]] = defaultdict(list)
    with open_reader(world.settings, "reads", Isolation.READ_COMMITTED, wanted) as reader:
        for batch in reader.batches():
            for row in batch.to_pylist():
                partition, _, offset = row["value"].partition(b":")
                found[row["partition"]].append((row["key"], (int(partition), int(offset))))
    return [one for number in sorted(found) for one in found[number]]


def check_once_in_order(found: Iterable[Written], expected: Iterable[Place]) -> None:
    """Each expected record has one output, and those of a key are in the order of its records."""
    found = list(found)
    counts = Counter(place for _, place in found)
    assert not {place: count for place, count in counts.items() if count > 1}
    assert set(counts) == set(expected)
    last: dict[tuple[bytes | None, int], int] = {}
    for key, (partition, offset) in found:
        if key is not None:
            assert last.get((key, partition), -1) < offset, (key, partition, offset)
            last[key, partition] = offset
