"""Windows whose records go through a function, one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kafka_ordered_ops import Earliest
from kafka_ordered_ops.processing import Processor, Record, process_window
from tests.support.worlds import World


def filled(world: World, records: int = 20, partitions: int = 2) -> None:
    """A topic `orders` with as many records in each partition."""
    world.create("orders", partitions)
    for number in range(partitions):
        world.write("orders", number, *range(1, records + 1))


def process(world: World, function: Any, before: float = 1_000, **options: Any) -> Any:
    """Process the window before a second of the tests' time."""
    made = options.pop("processor", None) or Processor(
        world.settings, **{"retries": 0, "max_concurrency": 4, **options.pop("how", {})}
    )
    window = world.window(before, starting_offsets=Earliest())
    return process_window(
        world.windows(), window, function, window_id="w", processor=made, **options
    )


def kept(world: World) -> int:
    """How many offsets of the open window are known as processed."""
    service = world.windows()
    return sum(one.count for one in service.processed(service.show("w").plan).values())


class Calls:
    """A function that counts its calls by record, and fails for some."""

    def __init__(self, *poison: int) -> None:
        self.poison = set(poison)
        self.seen: Counter[tuple[int, int]] = Counter()

    def __call__(self, record: Record) -> int:
        self.seen[record.partition, record.offset] += 1
        if record.offset in self.poison:
            raise ValueError(f"cannot charge {record.offset}")
        return record.offset
