"""A group's windows one after another, each compared with what a plain consumer sees of the logs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from kafka_ordered_ops import ClientSettings, Earliest, Window, WindowPlan
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets.committed_offsets import read_committed_offsets
from kafka_ordered_ops.kafka.read.reader import RangeReader
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.logs import Records, await_markers, partitions_of, visible_records
from tests.support.out_of_order import checked_out_of_order
from tests.support.windows_support import BASE_MS, TIMEOUT_S


class WindowOracle:
    """Plans, reads and commits windows of some topics, and knows what each of them must hold.

    A window must hold every visible record stamped before its cutoff that no earlier one held. The
    committed offset must be the first record that no window held, or the end offset.
    """

    def __init__(self, windows: OrderedWindows, bootstrap: str, topics: Sequence[str]) -> None:
        self.windows = windows
        self.bootstrap = bootstrap
        self.topics = topics
        self.delivered: Records = {}
        self._count = 0
        #: What a plain consumer saw below the ends of the plan that was read last.
        self._visible: Records = {}

    def plan(self, cutoff: datetime, **options: Any) -> WindowPlan:
        """A new window; what it takes is read back and compared."""
        self._count += 1
        window = Window(
            self.topics, cutoff, starting_offsets=Earliest(), allow_future_cutoff=True, **options
        )
        plan = self.windows.plan(window, f"window-{self._count}")
        self.check_records(plan)
        # Now, and not when the plan is read again: compaction may have taken the first record past the cutoff.
        checked_out_of_order(plan, self._visible)
        return plan

    def check_records(self, plan: WindowPlan) -> Records:
        """Reads a plan: of what a plain consumer sees now below the plan's ends, exactly its records."""
        ends = {part.tp: part.decided_end for part in plan}
        self._visible = visible_records(self.bootstrap, ends)
        expected = {
            key: time_ms
            for key, time_ms in self._visible.items()
            if time_ms < plan.cutoff_ms and key not in self.delivered
        }
        found = read_times(self.windows.settings, plan)
        assert found == expected
        return found

    def commit(self, plan: WindowPlan) -> Records:
        """Commits the plan that was read last, and checks the committed offsets; its records."""
        records = {
            key: time_ms
            for key, time_ms in self._visible.items()
            if time_ms < plan.cutoff_ms and key not in self.delivered
        }
        self.windows.commit(plan)
        self.delivered |= records
        bases = {part.tp: part.decided_end for part in plan}
        for topic, partition, offset in self._visible.keys() - self.delivered.keys():
            tp = TopicPartition(topic, partition)
            bases[tp] = min(bases[tp], offset)
        assert self.committed(list(bases)) == bases
        return records

    def window(self, cutoff: datetime, **options: Any) -> Records:
        """Plans, reads and commits one window; its records."""
        return self.commit(self.plan(cutoff, **options))

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The group's committed offsets in Kafka."""
        found = read_committed_offsets(
            self.windows.settings, self.windows.group_id, partitions, timeout_s=TIMEOUT_S
        )
        return {tp: None if one is None else one.offset for tp, one in found.items()}

    def await_markers(self) -> None:
        """Until no transaction is open: its markers are written after its end was acknowledged."""
        with Lookup(self.windows.settings) as lookup:
            await_markers(lookup, partitions_of(lookup, self.topics))

    def check_complete(self) -> None:
        """Everything a plain consumer sees has been delivered, and progress is at the end offsets."""
        with Lookup(self.windows.settings) as lookup:
            every = partitions_of(lookup, self.topics)
            ends = lookup.end_offsets(every, Isolation.READ_COMMITTED)
        assert self.delivered == visible_records(self.bootstrap, ends)
        assert self.committed(every) == ends


def read_times(settings: ClientSettings, plan: WindowPlan) -> Records:
    """The records of a plan, as its readers get them; of any timestamp, also past what a datetime holds."""
    records: Records = {}
    columns = ["topic", "partition", "offset", "timestamp"]
    with RangeReader(
        settings, plan.group_id, plan.isolation, plan.taken, columns=columns
    ) as reader:
        for batch in reader.batches():
            times_ms = batch.column("timestamp").cast(pa.int64()).to_pylist()
            places = batch.select(columns[:3]).to_pylist()
            for place, time_ms in zip(places, times_ms, strict=True):
                assert time_ms is not None
                key = place["topic"], place["partition"], place["offset"]
                assert key not in records, "read twice"
                records[key] = time_ms
    return records


def stamped(
    topic: str, partition: int, *seconds: float
) -> list[tuple[str, int, None, bytes, int, tuple[()]]]:
    """Plain records for `produce`."""
    return [(topic, partition, None, b"x", BASE_MS + round(s * 1000), ()) for s in seconds]
