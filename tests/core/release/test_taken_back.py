"""Records that are taken back in the middle of a release, and fed again, come in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.release.ordered_release import Limits, Order, OrderedRelease
from kafka_ordered_ops.core.types import TopicPartition

TPS = [TopicPartition("t", 0), TopicPartition("t", 1)]


class _Runs:
    """A disk in memory."""

    def __init__(self, batches: Any) -> None:
        self._batches = [*batches]
        self.num_batches, self.nbytes = len(self._batches), 1

    def batch(self, number: int) -> pa.RecordBatch:
        """One batch."""
        batch: pa.RecordBatch = self._batches[number]
        return batch

    def remove(self) -> None:
        """Nothing is kept."""


class _Spill:
    def write(self, batches: Any) -> _Runs:
        """One run."""
        return _Runs(batches)


def _rows(offsets: Any, times: Any) -> pa.RecordBatch:
    values = {"offset": offsets, "timestamp": times}
    fed = [field for field in RECORD_SCHEMA if field.name not in ("topic", "partition")]
    size = len(offsets)
    columns: list[Any] = [
        pa.array(values[field.name], field.type)
        if field.name in values
        else pa.array([0] * size, field.type)
        if field.name == "timestamp_type"
        else pa.nulls(size, field.type)
        for field in fed
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fed))


@given(
    times=st.lists(st.lists(st.integers(0, 12), max_size=25), min_size=2, max_size=2),
    order=st.sampled_from(Order),
    taken=st.integers(0, 1),
    batches=st.integers(0, 8),
    is_on_disk=st.booleans(),
)
def test_a_pause_in_a_release_changes_nothing(
    times: list[list[int]], order: Order, taken: int, batches: int, is_on_disk: bool
) -> None:
    """The order is exact, no record is missing or doubled, and none is late."""
    release = OrderedRelease(RECORD_SCHEMA, order=order, limits=Limits(), spill=_Spill())
    for tp in TPS:
        release.add(tp)
    for tp, mine in zip(TPS, times, strict=True):
        release.feed(tp, _rows(np.arange(len(mine)), mine))
        if is_on_disk:
            release.to_disk()
    for tp in TPS:
        release.finish(tp)

    found: list[tuple[int, int, int]] = []

    def take(ready: Any, limit: int | None = None) -> None:
        for released in ready:
            assert not released.is_late
            columns: list[Any] = [
                released.batch.rows().column(name).cast(pa.int64()).to_pylist()
                for name in ("timestamp", "partition", "offset")
            ]
            found.extend(zip(*columns, strict=True))
            limit = None if limit is None else limit - 1
            if limit == 0:
                return

    ready = release.ready(rows_max=3)
    if batches:
        take(ready, batches)
    tp = TPS[taken]
    returned = {offset for _, partition, offset in found if partition == taken}
    offsets = release.take_back(tp, holds=True)
    before = len(found)
    take(ready)
    take(release.ready())
    mine = times[taken]
    left = [offset for offset in range(len(mine)) if offset not in returned]
    assert [*offsets.ranges] == [*type(offsets).from_offsets(np.array(left, dtype=np.int64)).ranges]
    assert all(partition != taken for _, partition, _ in found[before:])
    if left:
        release.feed(tp, _rows(left, [mine[offset] for offset in left]))
        release.finish(tp)
    take(release.ready(rows_max=3))

    def key(partition: int, offset: int) -> int:
        own = times[partition]
        return own[offset] if order is Order.TIMESTAMP else max(own[: offset + 1])

    expected = sorted(
        (key(partition, offset), partition, offset)
        for partition in (0, 1)
        for offset in range(len(times[partition]))
    )
    assert [
        (key(partition, offset), partition, offset) for _, partition, offset in found
    ] == expected
