"""The reader door of the model: the batches of `kafka.read.reader.RangeReader`, from memory."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.cluster_facts import ScanBatch
from kafka_ordered_ops.core.errors import ConfigError, ReadTimeoutError, RecordsLostError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.testing.log import Entry, PartitionLog
from kafka_ordered_ops.testing.registry import reach

#: Changes outside a wait are noticed this late.
WAIT_SLICE_S: Final = 0.05


@dataclass
class _Progress:
    """How far one partition has been read."""

    tp: TopicPartition
    wanted: OffsetSet
    position: int


class MemoryReader:
    """Reads the visible records whose offsets are wanted, each once. A context manager, for one thread.

    See `kafka.read.reader.RangeReader` for arguments and errors.
    """

    def __init__(
        self,
        name: str,
        isolation: Isolation,
        wanted: Mapping[TopicPartition, OffsetSet],
        *,
        columns: Collection[str] | None,
        batch_records: int,
        stall_timeout_s: float,
    ) -> None:
        names = RECORD_SCHEMA.names if columns is None else list(columns)
        if unknown := set(names) - set(RECORD_SCHEMA.names):
            raise ConfigError(
                f"no such columns: {sorted(unknown)}; there are {RECORD_SCHEMA.names}"
            )
        #: The schema of `batches`.
        self.schema = pa.schema([RECORD_SCHEMA.field(name) for name in names])
        self._name = name
        self._isolation = isolation
        self._batch_records = batch_records
        self._stall_timeout_s = stall_timeout_s
        self._all = {
            tp: _Progress(tp, offsets, offsets.first) for tp, offsets in wanted.items() if offsets
        }
        self._unfinished = dict(self._all)

    def __enter__(self) -> MemoryReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End reading; may be called twice."""
        self._unfinished.clear()

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset of each partition below which everything wanted has been returned."""
        return {tp: one.position for tp, one in self._all.items()}

    def stop(self, tp: TopicPartition) -> None:
        """End one partition early."""
        self._unfinished.pop(tp, None)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the wanted records: each batch holds records of one partition, in offset order."""
        for one, entries in self._runs():
            if entries:
                yield _to_arrow(self.schema, one.tp, entries)

    def timestamps(self) -> Iterator[ScanBatch]:
        """Yield offsets and timestamps of the wanted records, keys and values untouched."""
        for one, entries in self._runs():
            offsets = np.array([entry.offset for entry in entries], dtype=np.int64)
            times = np.array([entry.message.timestamp_ms for entry in entries], dtype=np.int64)
            yield ScanBatch(one.tp, offsets, times, one.position)

    def _runs(self) -> Iterator[tuple[_Progress, list[Entry]]]:
        """Yield records of one partition at a time, each run after its partition's position has moved."""
        moved_at = time.monotonic()
        while self._unfinished:
            moved = False
            for one in list(self._unfinished.values()):
                # Stopped meanwhile, by the consumer of the records.
                if one.tp in self._unfinished and (run := self._read(one)) is not None:
                    moved = True
                    yield one, run
            if moved:
                moved_at = time.monotonic()
            elif not self._wait(moved_at + self._stall_timeout_s):
                raise self._stalled()

    def _read(self, one: _Progress) -> list[Entry] | None:
        """Return the next wanted records of a partition; None when its position cannot move now."""
        cluster = reach(self._name)
        with cluster.changed:
            log = cluster.log(one.tp)
            _check_in_range(one, log)
            reached = min(log.end_offset(self._isolation), one.wanted.end)
            if reached <= one.position:
                return None
            visible = (
                entry
                for entry in log.entries(one.position, reached)
                if entry.is_visible(self._isolation)
            )
            run = list(islice(visible, self._batch_records))
        one.position = run[-1].offset + 1 if len(run) == self._batch_records else reached
        if one.position >= one.wanted.end:
            self.stop(one.tp)
        mask = one.wanted.mask(np.array([entry.offset for entry in run], dtype=np.int64))
        return list(compress(run, mask.tolist()))

    def _wait(self, deadline: float) -> bool:
        """Wait a moment for a change of the cluster; return whether there is time left."""
        cluster = reach(self._name)
        with cluster.changed:
            # In slices: the change may precede this wait, and is signalled only once.
            cluster.changed.wait(max(min(deadline - time.monotonic(), WAIT_SLICE_S), 0))
        return time.monotonic() < deadline

    def _stalled(self) -> ReadTimeoutError:
        cluster = reach(self._name)
        with cluster.changed:
            shown = ", ".join(
                f"{one.tp} at {one.position} of {one.wanted.end} "
                f"(the log ends at {cluster.log(one.tp).end_offset(self._isolation)})"
                for one in list(self._unfinished.values())[:8]
            )
        return ReadTimeoutError(
            f"no position moved for {self._stall_timeout_s:g} s: {shown}. A log that ends below what is "
            "wanted has an open transaction: end it, or run this window again",
            positions={
                str(one.tp): (one.position, one.wanted.end) for one in self._unfinished.values()
            },
        )


def _check_in_range(one: _Progress, log: PartitionLog) -> None:
    """Handle a position outside the log: continue after the gap if nothing wanted was in it."""
    start, end = log.log_start, log.high_watermark
    if start <= one.position <= end:
        return
    left = one.wanted.within(one.position, one.wanted.end)
    lost = left - OffsetSet.of((start, end))
    if lost:
        shown = ", ".join(f"[{a}, {b})" for a, b in lost.ranges[:8])
        raise RecordsLostError(
            f"{one.tp} holds offsets [{start}, {end}) now; of the wanted ones {shown} are gone: "
            "retention or deletion took them, or the topic was recreated. Plan the window again, or "
            "accept the loss by its policy",
            lost={str(one.tp): lost.ranges},
        )
    one.position = left.first


def _to_arrow(schema: pa.Schema, tp: TopicPartition, entries: list[Entry]) -> pa.RecordBatch:
    messages = [entry.message for entry in entries]
    values: dict[str, list[Any]] = {
        "topic": [tp.topic] * len(entries),
        "partition": [tp.partition] * len(entries),
        "offset": [entry.offset for entry in entries],
        "timestamp": [one.timestamp_ms for one in messages],
        "timestamp_type": [one.timestamp_type for one in messages],
        "key": [one.key for one in messages],
        "value": [one.value for one in messages],
        "headers": [
            [{"key": key, "value": value} for key, value in one.headers] or None for one in messages
        ],
    }
    columns = [pa.array(values[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
