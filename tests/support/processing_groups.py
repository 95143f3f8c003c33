"""Processors of a live group in threads of their own, and what they have done so far."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kafka_ordered_ops import OffsetMapDecodeError
from kafka_ordered_ops.core.offset_map.parallel_consumer import decode_parallel_consumer_map
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.kafka.ports import open_lookup, read_committed_offsets
from kafka_ordered_ops.processing import Processor, Record
from kafka_ordered_ops.processing.work_queue import Counts
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

#: (partition, offset)
Place = tuple[int, int]


def wait_until(
    holds: Callable[[], bool],
    what: Callable[[], object] = lambda: "",
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


class Worker:
    """A processor that runs in a thread until the end of its block.

    Records of which `holds` is true wait until `release`. The others take so long that no worker takes several at once:
    those would wait behind a held one.
    """

    def __init__(
        self,
        world: World,
        *topics: str,
        holds: Callable[[Record], bool] = lambda _: False,
        group_id: str = "live",
        function_s: float = 0.003,
        processor: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._holds, self._function_s = holds, function_s
        self._gate = threading.Event()
        self.begun: list[Place] = []
        self.done: list[Place] = []
        self.failure: BaseException | None = None
        self.processor = Processor(world.settings, **(processor or {}))
        names = [world.named(one) for one in topics or ("orders",)]
        self._results = self.processor.subscribe(
            names,
            self._process,
            group_id=world.named(group_id),
            **{"commit_interval_s": 0.05, **options},
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.release()
        self.stop()
        if kind is None and self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """Stop, and wait for the end."""
        while self._thread.is_alive():
            # It may not have begun.
            self.processor.stop()
            self._thread.join(0.05)

    def release(self) -> None:
        """Let held records pass, and hold no more."""
        self._gate.set()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, or raise what the processor failed with."""

        def is_so() -> bool:
            if self.failure is not None:
                raise self.failure
            return holds()

        wait_until(is_so, lambda: (len(self.begun), len(self.done), sorted(self.done)[-5:]))

    def until_done(self, *places: Place) -> None:
        """Wait until these have been processed."""
        self.until(lambda: set(places) <= set(self.done))

    def until_processed(self, count: int) -> None:
        """Wait until the function has ended for so many records; with outputs, their results come when these are stored."""

        def is_so() -> bool:
            [counts] = self.processor.counts or [Counts()]
            return counts.succeeded + counts.failed >= count

        self.until(is_so)

    def _process(self, record: Record) -> None:
        self.begun.append((record.partition, record.offset))
        if self._holds(record):
            self._gate.wait(TIMEOUT_S)
        else:
            time.sleep(self._function_s)

    def _run(self) -> None:
        try:
            for result in self._results:
                self.done.append((result.record.partition, result.record.offset))
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self.failure = error


def places(*partitions: range) -> list[Place]:
    """The records of partitions 0, 1 and so on."""
    return [(number, offset) for number, one in enumerate(partitions) for offset in one]


def committed_places(world: World, topic: str = "orders", group_id: str = "live") -> set[Place]:
    """The offsets that the group's commits report as done."""
    with open_lookup(world.settings) as lookup:
        numbers = lookup.topics([world.named(topic)])[world.named(topic)].partitions
    tps = [world.tp(topic, number) for number in numbers]
    found = read_committed_offsets(world.settings, world.named(group_id), tps)
    done: set[Place] = set()
    for tp, one in found.items():
        if one is not None:
            beyond = EMPTY_SET
            with suppress(OffsetMapDecodeError):
                beyond = decode_parallel_consumer_map(one.metadata, one.offset).done
            for start, end in OffsetSet.of((0, one.offset)) | beyond:
                done |= {(tp.partition, offset) for offset in range(start, end)}
    return done


def twice(*workers: Worker) -> set[Place]:
    """The records that were begun more than once."""
    counts = Counter(place for one in workers for place in one.begun)
    return {place for place, count in counts.items() if count > 1}
