"""Hold records until no earlier record can arrive, and release them in order.

A record may be released once every partition that is waited for has passed its place in the order. A partition without
records so far holds all others back. Records beyond a limit wait on disk as sorted runs, which are merged while they
are released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError, HeldLimitError
from kafka_ordered_ops.core.offset_set import BoolArray, Int64Array, OffsetSet
from kafka_ordered_ops.core.release.columns import Columns
from kafka_ordered_ops.core.release.frontier import Frontier, Source
from kafka_ordered_ops.core.release.held import Held
from kafka_ordered_ops.core.release.sorting import (
    BATCH_BYTES,
    BATCH_ROWS,
    Batch,
    Piece,
    in_order,
    row_bytes_of,
)
from kafka_ordered_ops.core.release.spilled import Spill
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN, TopicPartition

#: Arrow data of the records in memory. Sorting and writing to disk need more for a moment.
HELD_BYTES_MAX: Final = 64 * 1024**2
HELD_RECORDS_MAX: Final = 5_000_000
#: Files of records on disk.
SPILLED_BYTES_MAX: Final = 256 * 1024**3


class Order(StrEnum):
    """The order over all partitions.

    `TIMESTAMP`: by (timestamp, topic, partition, offset). `PARTITION`: the same, but a record never comes before an
    earlier record of its partition: its place is that of the greatest timestamp of its partition so far.
    """

    TIMESTAMP = "timestamp"
    PARTITION = "partition"


class Limits(NamedTuple):
    """Limits of the held records."""

    records: int = HELD_RECORDS_MAX
    nbytes: int = HELD_BYTES_MAX
    #: Bytes on disk.
    spilled_bytes: int = SPILLED_BYTES_MAX


class Released(NamedTuple):
    """Records in order."""

    batch: Batch
    #: Whether their place in the order had been passed when they arrived.
    is_late: bool


class OrderedRelease:
    """Take records partition by partition, and release them in order over all partitions.

    Call `add` for every partition before the first `feed`, so that no partition is passed over. `feed` records as they
    arrive, by offset; then take all of `ready`, and call `relieve`.

    Args:
        schema: the columns of the records, including ``offset`` and ``timestamp``.
        order: the order over all partitions.
        max_out_of_orderness_ms: how far a timestamp may be below an earlier one of its partition, ms. A record further
            below may be late. None allows any distance: nothing is released before the partitions are finished.
        limits: limits of the held records.
        spill: storage for records beyond the limits; None means that exceeding the limits is an error.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        order: Order = Order.TIMESTAMP,
        max_out_of_orderness_ms: int | None = None,
        limits: Limits | None = None,
        spill: Spill | None = None,
    ) -> None:
        #: The columns of the records that are fed, held and released.
        self.columns = Columns(schema, keys_are_times=order is Order.TIMESTAMP)
        self._order = order
        self._slack_ms = 0 if order is Order.PARTITION else max_out_of_orderness_ms
        self._limits = limits or Limits()
        self._spill = spill
        self._frontier = Frontier()
        self._held = Held()
        #: The partition of each lane.
        self._names: list[TopicPartition] = []
        self._late: list[Piece] = []
        #: Taken from the held records, and not yielded yet.
        self._leaving: deque[Batch] = deque()
        #: The place of the last record that was released in order.
        self._passed: tuple[int, TopicPartition] | None = None
        self._passed_before: tuple[int, TopicPartition] | None = None
        self._is_leaving_late = self._is_ended = False

    # --- input -----------------------------------------------------------------------------------

    def add(self, tp: TopicPartition) -> None:
        """Wait for a partition from now on."""
        source = self._frontier.add(tp)
        if source.lane == len(self._names):
            self._names.append(tp)
            self.columns.add(tp)
            self._held.add_lane()

    def feed(
        self, tp: TopicPartition, rows: pa.RecordBatch, *, newest_ms: int | None = None
    ) -> None:
        """Hold records of a partition.

        Args:
            tp: a partition that was added.
            rows: the partition's next records, by offset; their topic and partition may be left out.
            newest_ms: a later timestamp is a clock error. It does not advance the partition, and with
                `Order.TIMESTAMP` its record is released at once, as a late record.

        Raises:
            ConfigError: the columns differ from the schema.
        """
        if not rows.num_rows:
            return
        columns = self.columns
        if not (rows.schema.equals(columns.fed) or rows.schema.equals(columns.schema)):
            raise ConfigError(
                f"records of {tp} have the columns {rows.schema}; needed: {columns.schema}"
            )
        times, rows = _int64(rows, "timestamp"), columns.to_hold(rows)
        source, row_bytes = self._frontier[tp], row_bytes_of(rows)
        offset_min = int(_int64(rows, "offset")[0])
        sane = times if newest_ms is None else times[times <= newest_ms]
        earlier_ms = source.greatest_ms
        if sane.size:
            greatest_ms = int(sane.max())
            source.greatest_ms = max(greatest_ms, greatest_ms if earlier_ms is None else earlier_ms)
            if self._slack_ms is not None:
                source.raise_floor(source.greatest_ms - self._slack_ms)
        keys = times if self._order is Order.TIMESTAMP else _rising(times, earlier_ms, newest_ms)
        late = self._is_late(tp, keys)
        if newest_ms is not None and sane.size < times.size and self._order is Order.TIMESTAMP:
            late = late | (times > newest_ms)
        if late.any():
            source.late += int(np.count_nonzero(late))
            late_rows, late_keys = rows.filter(pa.array(late)), keys[late]
            places = np.argsort(late_keys, kind="stable")
            self._late.append(Piece(late_keys[places], source.lane, late_rows, row_bytes, places))
            keys, rows = keys[~late], rows.filter(pa.array(~late))
        if keys.size:
            self._held.add(source.lane, keys, rows, offset_min, row_bytes)

    def advance(self, tp: TopicPartition, timestamp_ms: int) -> None:
        """Expect no more records of a partition that are stamped before a time."""
        self._frontier[tp].raise_floor(timestamp_ms)

    def finish(self, tp: TopicPartition) -> None:
        """Expect no more records of a partition; its held records are still released."""
        if tp in self._frontier:
            self._frontier[tp].is_waited_for = False

    def drop(self, tp: TopicPartition) -> None:
        """Forget the held records of a partition, and expect no more; may be called between two batches of `ready`.

        If no partition is waited for any more, the order starts again with the next one.
        """
        if tp not in self._frontier:
            return
        self.finish(tp)
        self._drop(self._frontier[tp].lane)
        if self.holding_back() is None:
            # Without partitions, the order starts again: records returned before are returned again, and are not late.
            self._passed = None

    def take_back(self, tp: TopicPartition, *, holds: bool) -> OffsetSet:
        """Forget the held records of a partition, which are fed again later; return their offsets.

        May be called between two batches of `ready`. With `holds`, the partition keeps its place in the order until
        then: no record passes the first of the returned ones, and `ready` ends.
        """
        source = self._frontier[tp]
        lane = source.lane
        offsets, least_key = OffsetSet(), INT64_MAX
        late = [piece for piece in self._late if piece.lanes == lane]
        for keys, lane_offsets in chain(
            ((piece.keys, _offsets_of(piece)) for piece in late),
            (batch.keys_and_offsets(lane) for batch in self._leaving),
            self._held.keys_and_offsets(lane),
        ):
            if lane_offsets.size:
                offsets |= OffsetSet.from_offsets(np.sort(lane_offsets))
                least_key = min(least_key, int(keys.min()))
        self._drop(lane)
        if offsets:
            if source.floor_ms is not None:
                source.floor_ms = min(source.floor_ms, least_key)
            elif not source.is_waited_for:
                # All of its records had arrived, so the lowest key among them is known.
                source.floor_ms = least_key
            source.is_waited_for = source.is_waited_for or holds
            # Its records are fed again from there on, as if they had not arrived before.
            source.greatest_ms = least_key if self._order is Order.PARTITION else None
        if holds and not self._is_leaving_late:
            self._held.put_front(self._leaving)
            self._leaving.clear()
            self._is_ended = True
        return offsets

    def restart(self, tp: TopicPartition) -> None:
        """Wait for any record of a partition, and start the order again: no record from now on is late.

        Must not be called between two batches of `ready`.
        """
        self.add(tp)
        self._passed = None

    def _drop(self, lane: int) -> None:
        self._held.drop(lane)
        self._late = [piece for piece in self._late if piece.lanes != lane]
        self._leaving = deque(
            rest for rest in (batch.without(lane) for batch in self._leaving) if rest.num_rows
        )

    # --- output --------------------------------------------------------------------------------------

    def ready(
        self, *, rows_max: int = BATCH_ROWS, bytes_max: int = BATCH_BYTES
    ) -> Iterator[Released]:
        """Yield the records that may be released now, in order; take all of them before the next `add` or `feed`.

        Late records come first. Their batches are in order, but after their place in the order. A batch has at most
        `rows_max` records, and about `bytes_max` bytes.

        Raises:
            SpillError: runs on disk cannot be read.
        """
        if self._late:
            late, self._late = self._late, []
            yield from self._leave(self._sorted(late, rows_max, bytes_max), is_late=True)
        bound = self._frontier.bound()
        if bound is None:
            return
        self._is_ended = False
        for pieces in self._held.below(bound, self._frontier.ranks):
            yield from self._leave(self._sorted(pieces, rows_max, bytes_max), is_late=False)
            if self._is_ended:
                return

    def cut(self, released: Released, sizes: Sequence[int]) -> Batch:
        """Cut the last yielded batch into parts of these sizes: return the first part, and yield the others later."""
        batch, parts = released.batch, list[Batch]()
        for size in sizes[:-1]:
            part, batch = batch.split(size)
            parts.append(part)
        first, *others = [*parts, batch]
        self._leaving.extendleft(reversed(others))
        if not released.is_late:
            self._passed = self._passed_before
            self._pass(first)
        return first

    def relieve(self) -> None:
        """Move held records to disk if there are too many in memory.

        Raises:
            HeldLimitError: there is no storage for them, or its limit is reached; the error has the partition that
                holds them back.
            SpillError: writing fails.
        """
        if self.is_full:
            self.to_disk()

    def to_disk(self) -> None:
        """Move the records in memory to disk; raise as `relieve` does."""
        if self._spill is None or self._held.nbytes_on_disk >= self._limits.spilled_bytes:
            raise self._held_limit_error()
        self._held.to_disk(self._spill, self._frontier.ranks)

    def close(self) -> None:
        """Free the disk."""
        self._held.close()

    # --- state ---------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether memory holds more than the limits."""
        held, limits = self._held, self._limits
        return held.records_in_memory > limits.records or held.nbytes_in_memory > limits.nbytes

    @property
    def held(self) -> Held:
        """The held records."""
        return self._held

    def held_of(self, tp: TopicPartition) -> int:
        """Return the number of held records of a partition, without records that `ready` has taken and not yielded."""
        return self._held.records_of(self._frontier[tp].lane)

    def held_from(self, tp: TopicPartition) -> int | None:
        """Return an offset at or below all records of a partition that were not yielded yet; None if there are none."""
        lane = self._frontier[tp].lane
        offsets = [_offset_min(piece.rows) for piece in self._late if piece.lanes == lane]
        offsets += [
            least for batch in self._leaving if (least := batch.offset_min_of(lane)) is not None
        ]
        if (least := self._held.offset_min_of(lane)) is not None:
            offsets.append(least)
        return min(offsets, default=None)

    def offset_min_of(self, tp: TopicPartition, batch: Batch) -> int | None:
        """Return the lowest offset of a partition in a batch; None if the batch has none."""
        return batch.offset_min_of(self._frontier[tp].lane)

    def without(self, tp: TopicPartition, batch: Batch) -> Batch:
        """Return a batch without the records of a partition."""
        return batch.without(self._frontier[tp].lane) if batch.num_rows else batch

    def source(self, tp: TopicPartition) -> Source:
        """Return the state of a partition."""
        return self._frontier[tp]

    def holding_back(self) -> TopicPartition | None:
        """Return the partition that holds the others back; None if no partition is waited for."""
        source = self._frontier.holding_back()
        return None if source is None else source.tp

    # --- internals -------------------------------------------------------------------------------------

    def _is_late(self, tp: TopicPartition, keys: Int64Array) -> BoolArray:
        if self._passed is None:
            return np.zeros(keys.size, dtype=np.bool_)
        key, last = self._passed
        return keys <= key if tp < last else keys < key

    def _sorted(self, pieces: Sequence[Piece], rows_max: int, bytes_max: int) -> Iterator[Batch]:
        ranks = self._frontier.ranks
        return in_order(pieces, ranks, rows_max=rows_max, bytes_max=bytes_max, columns=self.columns)

    def _leave(self, batches: Iterable[Batch], *, is_late: bool) -> Iterator[Released]:
        self._leaving.extend(batches)
        self._is_leaving_late = is_late
        while self._leaving:
            batch = self._leaving.popleft()
            if not is_late:
                self._passed_before = self._passed
                self._pass(batch)
            yield Released(batch, is_late)
        self._is_leaving_late = False

    def _pass(self, batch: Batch) -> None:
        last = int(batch.keys[-1]), self._names[int(batch.lanes[-1])]
        self._passed = last if self._passed is None else max(self._passed, last)

    def _held_limit_error(self) -> HeldLimitError:
        tp, held = self.holding_back(), self._held
        records, nbytes = held.records_in_memory, held.nbytes_in_memory
        disk = (
            "there is no folder for more records"
            if self._spill is None
            else f"{held.nbytes_on_disk:,} bytes on disk, limit {self._limits.spilled_bytes:,}"
        )
        return HeldLimitError(
            f"{records:,} records of {nbytes:,} bytes are held in memory, limits {self._limits.records:,} and "
            f"{self._limits.nbytes:,}; {disk}. {tp or 'Nothing'} holds them back: raise the limits, give a "
            "max_out_of_orderness, or a grace for partitions without new records",
            limit=self._limits.nbytes,
            held_bytes=nbytes,
            records=records,
            partition=None if tp is None else str(tp),
        )


def _rising(times: Int64Array, earlier_ms: int | None, newest_ms: int | None) -> Int64Array:
    """Return, for each record, the greatest timestamp so far; timestamps after `newest_ms` do not count."""
    least = INT64_MIN if earlier_ms is None else earlier_ms
    counted = times if newest_ms is None else np.where(times > newest_ms, least, times)
    return np.maximum.accumulate(np.maximum(counted, least))


def _offset_min(rows: pa.RecordBatch) -> int:
    return int(_int64(rows, "offset").min())


def _offsets_of(piece: Piece) -> Int64Array:
    offsets = _int64(piece.rows, "offset")
    return offsets if piece.places is None else offsets[piece.places]


def _int64(rows: pa.RecordBatch, name: str) -> Int64Array:
    return cast(Int64Array, rows.column(name).view(pa.int64()).to_numpy())
