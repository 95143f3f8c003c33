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
from kafka_ordered_ops.core.errors import (
    BrokerUnreachableError,
    ConfigError,
    KafkaOrderedOpsError,
    ReadTimeoutError,
    invariant,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.reading import Turn, position_in_log, recreated_while_read
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.testing.cluster import Cluster
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
        topic_ids: Mapping[str, str],
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
        self._topic_ids = topic_ids
        self._first_ids: dict[TopicPartition, str] = {}
        self._moved_at = time.monotonic()
        self._all = {
            tp: _Progress(tp, offsets, offsets.first) for tp, offsets in wanted.items() if offsets
        }
        self._unfinished = dict(self._all)
        self._is_open = False

    def __enter__(self) -> MemoryReader:
        self._is_open = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End reading; may be called twice."""
        self._is_open = False
        self._unfinished.clear()

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset of each partition below which everything wanted has been returned."""
        return {tp: one.position for tp, one in self._all.items()}

    @property
    def log_ends(self) -> dict[TopicPartition, int]:
        """Where the logs of partitions that are being read end."""
        cluster = reach(self._name)
        with cluster.changed:
            return {tp: cluster.log(tp).high_watermark for tp in self._unfinished}

    def add(self, tp: TopicPartition, wanted: OffsetSet) -> None:
        """Start reading one more partition, or one that was finished or stopped, at its first wanted offset."""
        self._check_open()
        if tp in self._unfinished:
            raise ConfigError(f"{tp} is being read already: stop it before adding it again")
        if wanted:
            self._all[tp] = self._unfinished[tp] = _Progress(tp, wanted, wanted.first)

    def stop(self, tp: TopicPartition) -> None:
        """End one partition early."""
        self._unfinished.pop(tp, None)
        self._first_ids.pop(tp, None)

    def turn(self) -> list[Turn]:
        """Return what one round of reading brings: after a moment at most, and then it may be nothing."""
        self._check_open()
        turns: list[Turn] = []
        try:
            self._check_all()
            for one, entries in self._round():
                batch = _to_arrow(self.schema, one.tp, entries) if entries else None
                turns.append(Turn(one.tp, batch, one.position))
            if turns:
                self._moved_at = time.monotonic()
            else:
                self._wait(time.monotonic() + WAIT_SLICE_S)
        except BrokerUnreachableError:
            # As with brokers, where a client does not report that they are away.
            time.sleep(WAIT_SLICE_S)
        except KafkaOrderedOpsError:
            # Otherwise the next turn raises it, before it takes anything.
            if not turns:
                raise
        return turns

    def check_not_stalled(self) -> None:
        """Raise `ReadTimeoutError` if no position moved for the stall time."""
        if self._unfinished and time.monotonic() - self._moved_at > self._stall_timeout_s:
            raise self._stalled()

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
            for found in self._round():
                moved = True
                yield found
            if moved:
                moved_at = time.monotonic()
            elif not self._wait(moved_at + self._stall_timeout_s):
                raise self._stalled()

    def _check_all(self) -> None:
        """Raise the error of any partition."""
        cluster = reach(self._name)
        with cluster.changed:
            for one in self._unfinished.values():
                self._check(one, cluster)

    def _check(self, one: _Progress, cluster: Cluster) -> PartitionLog:
        """Return the log of a partition; raise if it is another topic's, or has lost wanted records."""
        log = cluster.log(one.tp)
        found = cluster.topic(one.tp.topic).topic_id
        expected = self._topic_ids.get(one.tp.topic) or self._first_ids.setdefault(one.tp, found)
        if found != expected:
            raise recreated_while_read(one.tp.topic, expected=expected, found=found)
        _check_in_range(one, log)
        return log

    def _round(self) -> Iterator[tuple[_Progress, list[Entry]]]:
        """Yield the next records of each partition whose position can move."""
        for one in list(self._unfinished.values()):
            # Unless stopped meanwhile, by the consumer of the records.
            if self._unfinished.get(one.tp) is one and (run := self._read(one)) is not None:
                yield one, run

    def _read(self, one: _Progress) -> list[Entry] | None:
        """Return the next wanted records of a partition; None when its position cannot move now."""
        cluster = reach(self._name)
        with cluster.changed:
            log = self._check(one, cluster)
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

    def _check_open(self) -> None:
        invariant(self._is_open, "a reader reads inside its `with` block")

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
    if not start <= one.position <= end:
        one.position = position_in_log(
            one.tp, one.wanted, one.position, log_start=start, log_end=end
        )


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
