"""The model's reader door: the batches of `kafka.read.reader.RangeReader`, from memory."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.cluster.cluster_facts import ScanBatch
from kafka_ordered_ops.core.cluster.reading import (
    BATCH_RECORDS,
    Turn,
    position_in_log,
    recreated_while_read,
)
from kafka_ordered_ops.core.errors import (
    BrokerUnreachableError,
    ConfigError,
    KafkaOrderedOpsError,
    ReadTimeoutError,
    invariant,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.testing.cluster import Cluster
from kafka_ordered_ops.testing.log import Entry, PartitionLog
from kafka_ordered_ops.testing.registry import reach

#: The longest delay before a change outside of a wait is noticed.
WAIT_SLICE_S: Final = 0.05


@dataclass
class _Progress:
    """The progress of reading one partition."""

    tp: TopicPartition
    wanted: OffsetSet
    position: int


class MemoryReader:
    """Read the visible records at wanted offsets, each once. A context manager, for one thread.

    See `kafka.read.reader.RangeReader` for arguments and errors.
    """

    def __init__(
        self,
        name: str,
        isolation: Isolation,
        wanted: Mapping[TopicPartition, OffsetSet],
        *,
        columns: Collection[str] | None,
        batch_records: int | None,
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
        self._batch_records = BATCH_RECORDS if batch_records is None else batch_records
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
        """For each partition, the offset below which all wanted records have been returned."""
        return {tp: partition.position for tp, partition in self._all.items()}

    @property
    def log_ends(self) -> dict[TopicPartition, int]:
        """The ends of the logs of partitions that are being read."""
        cluster = reach(self._name)
        with cluster.changed:
            return {tp: cluster.log(tp).high_watermark for tp in self._unfinished}

    def add(self, tp: TopicPartition, wanted: OffsetSet) -> None:
        """Start reading another partition, or a finished or stopped one again, at its first wanted offset."""
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
        """Return the results of one round of reading, after a short wait at most; there may be none."""
        self._check_open()
        turns: list[Turn] = []
        try:
            self._check_all()
            for partition, entries in self._round():
                batch = _to_arrow(self.schema, partition.tp, entries) if entries else None
                turns.append(Turn(partition.tp, batch, partition.position))
            if turns:
                self._moved_at = time.monotonic()
            else:
                self._wait(time.monotonic() + WAIT_SLICE_S)
        except BrokerUnreachableError:
            # As with brokers: the client does not report that they are unreachable.
            time.sleep(WAIT_SLICE_S)
        except KafkaOrderedOpsError:
            # With results, return them first: the next turn raises the error before it reads anything.
            if not turns:
                raise
        return turns

    def check_not_stalled(self) -> None:
        """Raise `ReadTimeoutError` if no position moved for the stall time."""
        if self._unfinished and time.monotonic() - self._moved_at > self._stall_timeout_s:
            raise self._stalled()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the wanted records: each batch has records of one partition, in offset order."""
        for partition, entries in self._runs():
            if entries:
                yield _to_arrow(self.schema, partition.tp, entries)

    def timestamps(self) -> Iterator[ScanBatch]:
        """Yield offsets and timestamps of the wanted records, without keys and values."""
        for partition, entries in self._runs():
            offsets = np.array([entry.offset for entry in entries], dtype=np.int64)
            times = np.array([entry.message.timestamp_ms for entry in entries], dtype=np.int64)
            yield ScanBatch(partition.tp, offsets, times, partition.position)

    def _runs(self) -> Iterator[tuple[_Progress, list[Entry]]]:
        """Yield records of one partition at a time, after the partition's position has moved."""
        moved_at = time.monotonic()
        while self._unfinished:
            moved = False
            for run in self._round():
                moved = True
                yield run
            if moved:
                moved_at = time.monotonic()
            elif not self._wait(moved_at + self._stall_timeout_s):
                raise self._stalled()

    def _check_all(self) -> None:
        """Raise the error of any partition."""
        cluster = reach(self._name)
        with cluster.changed:
            for partition in self._unfinished.values():
                self._check(partition, cluster)

    def _check(self, partition: _Progress, cluster: Cluster) -> PartitionLog:
        """Return the log of a partition; raise if the topic was recreated, or the log has lost wanted records."""
        log = cluster.log(partition.tp)
        topic_id = cluster.topic(partition.tp.topic).topic_id
        expected = self._topic_ids.get(partition.tp.topic) or self._first_ids.setdefault(
            partition.tp, topic_id
        )
        if topic_id != expected:
            raise recreated_while_read(partition.tp.topic, expected=expected, current=topic_id)
        _check_in_range(partition, log)
        return log

    def _round(self) -> Iterator[tuple[_Progress, list[Entry]]]:
        """Yield the next records of each partition whose position can move."""
        for partition in list(self._unfinished.values()):
            # The consumer of the records may have stopped a partition meanwhile.
            if (
                self._unfinished.get(partition.tp) is partition
                and (run := self._read(partition)) is not None
            ):
                yield partition, run

    def _read(self, partition: _Progress) -> list[Entry] | None:
        """Return the next wanted records of a partition; None if its position cannot move now."""
        cluster = reach(self._name)
        with cluster.changed:
            log = self._check(partition, cluster)
            reached = min(log.end_offset(self._isolation), partition.wanted.end)
            if reached <= partition.position:
                return None
            visible = (
                entry
                for entry in log.entries(partition.position, reached)
                if entry.is_visible(self._isolation)
            )
            run = list(islice(visible, self._batch_records))
        partition.position = run[-1].offset + 1 if len(run) == self._batch_records else reached
        if partition.position >= partition.wanted.end:
            self.stop(partition.tp)
        mask = partition.wanted.mask(np.array([entry.offset for entry in run], dtype=np.int64))
        return list(compress(run, mask.tolist()))

    def _wait(self, deadline: float) -> bool:
        """Wait a moment for a change of the cluster; return whether there is time left."""
        cluster = reach(self._name)
        with cluster.changed:
            # Wait in slices: a change is signaled only once, and may precede this wait.
            cluster.changed.wait(max(min(deadline - time.monotonic(), WAIT_SLICE_S), 0))
        return time.monotonic() < deadline

    def _check_open(self) -> None:
        invariant(self._is_open, "a reader reads inside its `with` block")

    def _stalled(self) -> ReadTimeoutError:
        cluster = reach(self._name)
        with cluster.changed:
            partitions_text = ", ".join(
                f"{partition.tp} at {partition.position} of {partition.wanted.end} "
                f"(the log ends at {cluster.log(partition.tp).end_offset(self._isolation)})"
                for partition in list(self._unfinished.values())[:8]
            )
        return ReadTimeoutError(
            f"no position moved for {self._stall_timeout_s:g} s: {partitions_text}. A log that ends below the wanted "
            "offsets has an open transaction: end it, or run this window again",
            positions={
                str(partition.tp): (partition.position, partition.wanted.end)
                for partition in self._unfinished.values()
            },
        )


def _check_in_range(partition: _Progress, log: PartitionLog) -> None:
    """Handle a position outside of the log: continue after the gap if no wanted offset is in it."""
    start, end = log.log_start, log.high_watermark
    if not start <= partition.position <= end:
        partition.position = position_in_log(
            partition.tp, partition.wanted, partition.position, log_start=start, log_end=end
        )


def _to_arrow(schema: pa.Schema, tp: TopicPartition, entries: list[Entry]) -> pa.RecordBatch:
    messages = [entry.message for entry in entries]
    values: dict[str, list[Any]] = {
        "topic": [tp.topic] * len(entries),
        "partition": [tp.partition] * len(entries),
        "offset": [entry.offset for entry in entries],
        "timestamp": [message.timestamp_ms for message in messages],
        "timestamp_type": [message.timestamp_type for message in messages],
        "key": [message.key for message in messages],
        "value": [message.value for message in messages],
        "headers": [
            [{"key": key, "value": value} for key, value in message.headers] or None
            for message in messages
        ],
    }
    columns = [pa.array(values[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
