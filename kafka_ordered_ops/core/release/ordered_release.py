"""Hold records until nothing earlier can come, and release them in order.

A record may be released once every partition that is waited for has passed its place in the order. A partition that
has delivered nothing yet has passed nothing: it holds all others back. Beyond a limit, held records wait on disk as
sorted runs, and are merged while they are released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError, HeldLimitError
from kafka_ordered_ops.core.offset_set import BoolArray, Int64Array
from kafka_ordered_ops.core.release.columns import Columns
from kafka_ordered_ops.core.release.frontier import Frontier, Source
from kafka_ordered_ops.core.release.held import Held
from kafka_ordered_ops.core.release.sorting import BATCH_BYTES, Batch, Piece, in_order, row_bytes_of
from kafka_ordered_ops.core.release.spilled import Spill
from kafka_ordered_ops.core.types import INT64_MIN, TopicPartition

#: Records in memory: their Arrow data. Sorting adds to it for a moment, and so does what is being written to disk.
HELD_BYTES_MAX: Final = 64 * 1024**2
HELD_RECORDS_MAX: Final = 5_000_000
#: Files of records on disk.
SPILLED_BYTES_MAX: Final = 256 * 1024**3


class Order(StrEnum):
    """The order over all partitions.

    `TIMESTAMP`: by (timestamp, topic, partition, offset). `PARTITION`: the same, but a record never comes before an
    earlier one of its own partition: it counts with the greatest timestamp of its partition so far.
    """

    TIMESTAMP = "timestamp"
    PARTITION = "partition"


class Limits(NamedTuple):
    """How much to hold."""

    records: int = HELD_RECORDS_MAX
    nbytes: int = HELD_BYTES_MAX
    #: On disk.
    spilled_bytes: int = SPILLED_BYTES_MAX


class Released(NamedTuple):
    """Records in order."""

    batch: Batch
    #: Whether their place in the order had been passed when they came.
    is_late: bool


class OrderedRelease:
    """Takes records partition by partition, and releases them in order over all partitions.

    Call `add` for every partition before the first `feed`, so that none is passed by. `feed` records as they come, by
    offset; then take all of `ready`, and call `relieve`.

    Args:
        schema: the columns of the records; ``offset`` and ``timestamp`` are among them.
        order: the order over all partitions.
        max_out_of_orderness_ms: how far a timestamp may be below an earlier one of its partition, ms. A record further
            below may be late. None: any distance; nothing is released before its partitions are finished.
        limits: how much to hold.
        spill: where to put records beyond the limits; None: nowhere, beyond them is an error.
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
        #: Of the records that are fed, held and released.
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
        #: Taken from what is held, and not yielded yet.
        self._leaving: deque[Batch] = deque()
        #: The place of the last record that was released in order.
        self._passed: tuple[int, TopicPartition] | None = None

    # --- what comes ------------------------------------------------------------------------------

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
            newest_ms: a timestamp after it is an error of a clock. It moves nothing on, and in the order of timestamps
                its record is released at once, as a late one.

        Raises:
            ConfigError: the columns are not those of the schema.
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
            found, passed = rows.filter(pa.array(late)), keys[late]
            places = np.argsort(passed, kind="stable")
            self._late.append(Piece(passed[places], source.lane, found, row_bytes, places))
            keys, rows = keys[~late], rows.filter(pa.array(~late))
        if keys.size:
            self._held.add(source.lane, keys, rows, offset_min, row_bytes)

    def advance(self, tp: TopicPartition, timestamp_ms: int) -> None:
        """Expect nothing of a partition that is stamped before a time."""
        self._frontier[tp].raise_floor(timestamp_ms)

    def finish(self, tp: TopicPartition) -> None:
        """Expect nothing more of a partition; what is held of it is still released."""
        if tp in self._frontier:
            self._frontier[tp].is_waited_for = False

    def drop(self, tp: TopicPartition) -> None:
        """Forget what is held of a partition, and expect nothing more of it; also between two batches of `ready`.

        When no partition is left that is waited for, the order begins anew with the next one.
        """
        if tp not in self._frontier:
            return
        self.finish(tp)
        lane = self._frontier[tp].lane
        self._held.drop(lane)
        self._late = [piece for piece in self._late if piece.lanes != lane]
        if self.holding_back() is None:
            # Of nothing, the order begins anew: what was returned before is returned again, and is not late.
            self._passed = None
        self._leaving = deque(
            one for one in (batch.without(lane) for batch in self._leaving) if one.num_rows
        )

    # --- what is released --------------------------------------------------------------------------

    def ready(self, *, bytes_max: int = BATCH_BYTES) -> Iterator[Released]:
        """Yield what may be released now, in order; take all of it before the next `add` or `feed`.

        Late records come first. Their batches are in order, but their place is behind. A batch has at most about
        `bytes_max` bytes.

        Raises:
            SpillError: runs on disk cannot be read.
        """
        if self._late:
            late, self._late = self._late, []
            yield from self._leave(self._sorted(late, bytes_max), is_late=True)
        bound = self._frontier.bound()
        if bound is None:
            return
        for pieces in self._held.below(bound, self._frontier.ranks):
            yield from self._leave(self._sorted(pieces, bytes_max), is_late=False)

    def relieve(self) -> None:
        """Move held records to disk if there are too many in memory.

        Raises:
            HeldLimitError: there is no disk for them, or its limit is reached; which partition holds them back.
            SpillError: writing fails.
        """
        if self.is_full:
            self.to_disk()

    def to_disk(self) -> None:
        """Move what memory holds to disk; raises like `relieve`."""
        if self._spill is None or self._held.nbytes_on_disk >= self._limits.spilled_bytes:
            raise self._held_limit_error()
        self._held.to_disk(self._spill, self._frontier.ranks)

    def close(self) -> None:
        """Free the disk."""
        self._held.close()

    # --- what is known -------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether memory holds more than the limits."""
        held, limits = self._held, self._limits
        return held.records_in_memory > limits.records or held.nbytes_in_memory > limits.nbytes

    @property
    def held(self) -> Held:
        """What is held."""
        return self._held

    def held_of(self, tp: TopicPartition) -> int:
        """Return how many records of a partition are held; not those that `ready` has taken and not yielded."""
        return self._held.records_of(self._frontier[tp].lane)

    def held_from(self, tp: TopicPartition) -> int | None:
        """Return an offset at or below all records of a partition that were not yielded yet; None: there are none."""
        lane = self._frontier[tp].lane
        found = [_offset_min(piece.rows) for piece in self._late if piece.lanes == lane]
        found += [least for one in self._leaving if (least := one.offset_min_of(lane)) is not None]
        if (least := self._held.offset_min_of(lane)) is not None:
            found.append(least)
        return min(found, default=None)

    def offset_min_of(self, tp: TopicPartition, batch: Batch) -> int | None:
        """Return the lowest offset of a partition in a batch; None: it has none there."""
        return batch.offset_min_of(self._frontier[tp].lane)

    def source(self, tp: TopicPartition) -> Source:
        """Return what has come of a partition."""
        return self._frontier[tp]

    def holding_back(self) -> TopicPartition | None:
        """Return the partition that holds the others back; None: nothing is waited for."""
        source = self._frontier.holding_back()
        return None if source is None else source.tp

    # --- inside ----------------------------------------------------------------------------------------

    def _is_late(self, tp: TopicPartition, keys: Int64Array) -> BoolArray:
        if self._passed is None:
            return np.zeros(keys.size, dtype=np.bool_)
        key, last = self._passed
        return keys <= key if tp < last else keys < key

    def _sorted(self, pieces: Sequence[Piece], bytes_max: int) -> Iterator[Batch]:
        ranks = self._frontier.ranks
        return in_order(pieces, ranks, bytes_max=bytes_max, columns=self.columns)

    def _leave(self, batches: Iterable[Batch], *, is_late: bool) -> Iterator[Released]:
        self._leaving.extend(batches)
        while self._leaving:
            batch = self._leaving.popleft()
            if not is_late:
                self._pass(batch)
            yield Released(batch, is_late)

    def _pass(self, batch: Batch) -> None:
        last = int(batch.keys[-1]), self._names[int(batch.lanes[-1])]
        self._passed = last if self._passed is None else max(self._passed, last)

    def _held_limit_error(self) -> HeldLimitError:
        tp, held = self.holding_back(), self._held
        records, nbytes = held.records_in_memory, held.nbytes_in_memory
        disk = (
            "there is no folder for more"
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
    """Return for each record the greatest timestamp so far; those after `newest_ms` do not count."""
    least = INT64_MIN if earlier_ms is None else earlier_ms
    counted = times if newest_ms is None else np.where(times > newest_ms, least, times)
    return np.maximum.accumulate(np.maximum(counted, least))


def _offset_min(rows: pa.RecordBatch) -> int:
    return int(_int64(rows, "offset").min())


def _int64(rows: pa.RecordBatch, name: str) -> Int64Array:
    return cast(Int64Array, rows.column(name).view(pa.int64()).to_numpy())
