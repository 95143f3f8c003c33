"""Read exact sets of offsets to Arrow with the native reader, a separate extension.

The extension fetches and decodes in its own threads. Lookups answer everything else, as for the other reader: why the
cluster refuses, where a log starts and ends, whether a topic still exists.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.cluster.cluster_facts import ScanBatch
from kafka_ordered_ops.core.cluster.reading import BATCH_RECORDS, Turn, recreated_while_read
from kafka_ordered_ops.core.errors import (
    ConfigError,
    CorruptRecordError,
    KafkaOrderedOpsError,
    invariant,
)
from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.record_schema import record_schema
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.calls import Uncounted
from kafka_ordered_ops.kafka.client.interrupts import interruptible
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.client.reason_kinds import throttled_for
from kafka_ordered_ops.kafka.read import quiet
from kafka_ordered_ops.kafka.read.explain import truncated, where_to_go_on
from kafka_ordered_ops.kafka.read.native_options import NativeOptions, note_librdkafka_reads
from kafka_ordered_ops.kafka.read.progress import Progress
from kafka_ordered_ops.kafka.read.quiet import Quiet
from kafka_ordered_ops.kafka.read.reader import RangeReader
from kafka_ordered_ops.kafka.read.taking import WAIT_SLICE_S
from kafka_ordered_ops.kafka.read.unreadable import UnreadableBatch
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Records in a batch, where the owner does not say.
_BATCH_RECORDS: Final = 16_384
#: What a turn takes at once.
_ITEMS_MAX: Final = 64
_NO_OFFSETS: Final[Int64Array] = np.empty(0, dtype=np.int64)
_SCAN: Final = ("offset", "timestamp")


class _Item(NamedTuple):
    """What the native reader hands out."""

    #: The partition's number; None: it is about the cluster.
    part: int | None
    #: Everything wanted below has been handed out.
    end: int | None
    records: Any
    #: Its kind, a text, and numbers.
    trouble: tuple[str, str, list[int]] | None


class NativeReader:
    """Reads like `RangeReader`, with the same arguments and errors. A context manager, for one thread.

    Brokers that are too old for it are read by a `RangeReader` instead.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        isolation: Isolation,
        wanted: Mapping[TopicPartition, OffsetSet],
        options: NativeOptions,
        *,
        columns: Collection[str] | None,
        batch_records: int | None,
        stall_timeout_s: float,
        topic_ids: Mapping[str, str],
    ) -> None:
        #: The schema of `batches` and `turn`.
        self.schema = record_schema(columns)
        self._settings = settings
        self._group_id = group_id
        self._isolation = isolation
        self._options = options
        self._tokens = options.tokens()
        self._batch_records = _BATCH_RECORDS if batch_records is None else batch_records
        self._stall_timeout_s = stall_timeout_s
        self._topic_ids = topic_ids
        self._all = {
            tp: Progress(tp, offsets, has_own_position=False)
            for tp, offsets in wanted.items()
            if offsets
        }
        self._unfinished = dict(self._all)
        #: None until it is known which columns are wanted, and after the end.
        self._native: Any = None
        #: By the native reader's numbers, which are never given twice.
        self._parts: dict[int, Progress] = {}
        self._numbers: dict[TopicPartition, int] = {}
        self._items: deque[_Item] = deque()
        #: The reader that reads instead.
        self._other: RangeReader | None = None
        self._quiet = Quiet(
            settings, isolation, {tp.topic for tp in self._all}, stall_timeout_s=stall_timeout_s
        )
        self._is_open = False
        self._home = Home()
        self._uncounted = Uncounted()

    def __enter__(self) -> NativeReader:
        self._home.check("a reader")
        self._is_open = True
        self._uncounted.begin()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._uncounted.end(failed=exc_info[0] is not None)
        self.close()

    def close(self) -> None:
        """End reading; may be called twice."""
        if not self._home.is_here:
            return
        self._is_open = False
        native, self._native = self._native, None
        if native is not None:
            native.close()
        if self._other is not None:
            self._other.close()

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset of each partition below which everything wanted has been returned."""
        positions = {tp: progress.position for tp, progress in self._all.items()}
        return positions if self._other is None else positions | self._other.positions

    @property
    def log_ends(self) -> dict[TopicPartition, int]:
        """Where the logs of partitions that are being read end, as the last fetches told; without those not known yet."""
        if self._other is not None:
            return self._other.log_ends
        ends = [] if self._native is None else self._native.log_ends()
        return {self._parts[part].tp: end for part, end in ends if part in self._parts}

    def add(self, tp: TopicPartition, wanted: OffsetSet) -> None:
        """Start reading one more partition, or one that was finished or stopped, at its first wanted offset.

        Raises `ConfigError` for a partition that is being read: stop it first.
        """
        if self._other is not None:
            self._other.add(tp, wanted)
            return
        if tp in self._unfinished:
            raise ConfigError(f"{tp} is being read already: stop it before adding it again")
        if not wanted:
            return
        self._check_open()
        self._all[tp] = self._unfinished[tp] = Progress(tp, wanted, has_own_position=False)
        self._quiet.add(tp.topic)
        if self._native is not None:
            self._begin(self._all[tp])

    def stop(self, tp: TopicPartition) -> None:
        """End one partition early, even in the middle of its fetched records."""
        if self._other is not None:
            self._other.stop(tp)
        elif (progress := self._unfinished.get(tp)) is not None:
            self._finish(progress)

    def turn(self) -> list[Turn]:
        """Return what one round of reading brings: after a moment at most, and then it may be nothing.

        Raises like `RangeReader.turn`.
        """
        self._check_open()
        if self._other is None and not self._unfinished:
            time.sleep(WAIT_SLICE_S)
            return []
        # Before anything is taken, since it may raise.
        self._look_into_quiet_topics()
        turns = list(self._round(self.schema.names))
        return self._other.turn() if self._other is not None else turns

    def check_not_stalled(self) -> None:
        """Raise `ReadTimeoutError`, or what explains it, if no position moved for the stall time."""
        if self._other is not None:
            self._other.check_not_stalled()
            return
        throttled_s = None if self._native is None else self._native.throttled_s()
        throttled = None if throttled_s is None else throttled_for(throttled_s)
        self._quiet.check_not_stalled(self._unfinished.values(), throttled)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the wanted records: each batch holds records of one partition, in offset order.

        Raises like `RangeReader.batches`.
        """
        for turn in self._rounds(self.schema.names):
            if turn.records is not None:
                yield turn.records
        if self._other is not None:
            yield from self._other.batches()

    def timestamps(self) -> Iterator[ScanBatch]:
        """Yield offsets and timestamps of the wanted records: keys, values and headers are not decoded."""
        for turn in self._rounds(_SCAN):
            offsets = timestamps = _NO_OFFSETS
            if turn.records is not None:
                offsets = _numbers(turn.records.column(0))
                timestamps = _numbers(turn.records.column(1).view(pa.int64()))
            yield ScanBatch(turn.tp, offsets, timestamps, turn.position)
        if self._other is not None:
            yield from self._other.timestamps()

    def _rounds(self, columns: Collection[str]) -> Iterator[Turn]:
        """Yield from rounds until everything wanted has been read; raise when nothing moves for too long."""
        self._check_open()
        self._quiet.begin()
        while self._unfinished and self._other is None:
            yield from self._round(columns)
            self._look_into_quiet_topics()
            self.check_not_stalled()

    def _round(self, columns: Collection[str]) -> Iterator[Turn]:
        """Yield what there is, at most the records of a batch; raise if that begins with a trouble.

        A partition's trouble is raised again until the partition is stopped.
        """
        if self._native is None:
            self._open(columns)
        self._renew_token()
        if not self._items:
            with interruptible():
                self._items.extend(map(_Item._make, self._native.take(_ITEMS_MAX, WAIT_SLICE_S)))
        rows, has_any = 0, False
        while self._items:
            item = self._items[0]
            if (
                item.records is not None
                and (rows := rows + len(item.records)) > self._batch_records
            ):
                if has_any:
                    return
            elif item.trouble is not None:
                if has_any or not self._is_handled(item):
                    return
                # Where the handling moved a partition, its new number brings what follows.
                self._items.popleft()
                continue
            self._items.popleft()
            if item.part is None or (progress := self._parts.get(item.part)) is None:
                continue
            progress.advance(item.end or 0)
            if progress.is_done:
                self._finish(progress)
            has_any = True
            self._quiet.moved([progress.tp.topic])
            records = None if item.records is None else pa.record_batch(item.records)
            yield Turn(progress.tp, records, progress.position)
            # The consumer of the records may be slow, which is not a stall.
            self._quiet.begin()

    def _open(self, columns: Collection[str]) -> None:
        self._native = self._options.open(columns, self._batch_records)
        try:
            # Before there is a partition, for which a connection would be made.
            self._renew_token()
        finally:
            for progress in self._unfinished.values():
                self._begin(progress)

    def _renew_token(self) -> None:
        """Replace the token where it is due; raise what librdkafka reports where there is none."""
        if self._tokens is not None and not self._tokens.renew(self._native.put_token):
            self._quiet.check({tp.topic for tp in self._unfinished})

    def _begin(self, progress: Progress) -> None:
        tp, left = progress.tp, progress.wanted.within(progress.position, progress.wanted.end)
        expected = self._topic_ids.get(tp.topic) or None
        part = self._native.add(tp.topic, tp.partition, list(left.ranges), expected)
        self._numbers[tp] = part
        self._parts[part] = progress

    def _finish(self, progress: Progress) -> None:
        tp = progress.tp
        self._unfinished.pop(tp, None)
        if (part := self._numbers.pop(tp, None)) is not None:
            del self._parts[part]
            self._native.stop(part)
            # Its error would be raised for ever.
            self._items = deque(item for item in self._items if item.part != part)

    # --- trouble -------------------------------------------------------------------------------------

    def _is_handled(self, item: _Item) -> bool:
        """Handle a trouble; return whether it is over, and not to be handled again by the next round."""
        kind, text, numbers = item.trouble or ("", "", [])
        if item.part is None:
            self._quiet.check({tp.topic for tp in self._unfinished})
            return True
        if (progress := self._parts.get(item.part)) is None:
            return True
        if kind == "too old":
            self._read_otherwise()
            return False
        if kind == "recreated":
            expected, current = text.split(" ")
            raise recreated_while_read(progress.tp.topic, expected=expected, current=current)
        if kind == "truncated" and progress.wanted.end == INT64_MAX:
            raise truncated(progress, f"the logs differ from offset {numbers[0]} on")
        if kind in ("truncated", "out of range"):
            return self._goes_on(progress)
        raise self._unreadable(progress, kind, text, numbers)

    def _goes_on(self, progress: Progress) -> bool:
        """Read on where the log has wanted records; False: the cluster is away. Raises `RecordsLostError`."""
        try:
            position = where_to_go_on(self._settings, progress, timeout_s=quiet.EXPLAIN_TIMEOUT_S)
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise
            return False
        if progress.advance(position):
            self._quiet.moved([progress.tp.topic])
        del self._parts[self._numbers.pop(progress.tp)]
        if progress.is_done:
            self._finish(progress)
        else:
            self._begin(progress)
        return True

    def _unreadable(
        self, progress: Progress, kind: str, text: str, numbers: list[int]
    ) -> KafkaOrderedOpsError:
        """Return the error of a batch that cannot be read."""
        tp = progress.tp
        if kind == "header name":
            offset = numbers[2]
            return CorruptRecordError(
                f"a header key of {tp}@{offset} is not UTF-8: read without the headers column",
                unreadable={str(tp): [(offset, offset + 1)]},
            )
        if kind == "broker":
            why = f"the broker cannot read it either (error {numbers[0]})"
            return UnreadableBatch(tp, progress.position, None, progress.wanted, why).damaged()
        start, end = numbers[:2]
        batch = UnreadableBatch(tp, start, end if end > start else None, progress.wanted, text)
        if kind == "too large":
            limit = self._options.zstd_bytes
            return batch.beyond(limit, numbers[2] if len(numbers) > 2 else 2 * limit)
        return batch.damaged()

    def _read_otherwise(self) -> None:
        """Leave what is not read yet to the other reader."""
        left = {
            tp: progress.wanted.within(progress.position, progress.wanted.end)
            for tp, progress in self._unfinished.items()
        }
        note_librdkafka_reads("the brokers are older than Kafka 2.8")
        self._other = RangeReader(
            self._settings,
            self._group_id,
            self._isolation,
            left,
            columns=self.schema.names,
            batch_records=min(self._batch_records, BATCH_RECORDS),
            stall_timeout_s=self._stall_timeout_s,
            topic_ids=self._topic_ids,
        ).__enter__()
        self._items.clear()
        self._native.close()

    def _look_into_quiet_topics(self) -> None:
        """Raise if a topic where nothing moves is deleted or forbidden."""
        if self._other is None:
            self._quiet.look(tp.topic for tp in self._unfinished)

    def _check_open(self) -> None:
        self._home.check("a reader")
        invariant(self._is_open, "a reader reads inside its `with` block")


def _numbers(column: Any) -> Int64Array:
    """Return a column without nulls, not copied.

    `to_numpy` would import pandas where it is installed, which takes more memory than a scan.
    """
    return cast(Int64Array, np.from_dlpack(column))
