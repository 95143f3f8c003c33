"""Read exact sets of offsets to Arrow, or to bare timestamps.

A partition is done when its *position* has reached the wanted end: a record at or past it, an
end-of-partition event at or past it, or the client's own position, which also passes transaction markers
and aborted records. A poll without records proves nothing. Offsets without a visible record (markers, aborted
records, compacted holes) do not appear.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from typing import Final, TypeVar

import confluent_kafka as ck
import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from kafka_ordered_ops.core.cluster_facts import ScanBatch as ScanBatch
from kafka_ordered_ops.core.errors import (
    ConfigError,
    CorruptRecordError,
    KafkaOrderedOpsError,
    ReadTimeoutError,
    RecordsLostError,
)
from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.answers import no_answer
from kafka_ordered_ops.kafka.client.answers import position as client_position
from kafka_ordered_ops.kafka.client.calls import Uncounted
from kafka_ordered_ops.kafka.client.errors import (
    FaultReasons,
    is_corrupt,
    is_out_of_range,
    open_client,
    translate,
)
from kafka_ordered_ops.kafka.client.forks import Home
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.read.arrow import no_collection, stamps, to_arrow
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Records taken from the client at once: 1,000 to 5,000 cost least a record; more only miss the caches.
BATCH_RECORDS: Final = 2_000
#: If no position moves for this long, there is an error that the client does not report.
STALL_TIMEOUT_S: Final = 60.0
#: After so long without a position moving, the cluster is asked whether the topics still exist.
QUIET_S: Final = 5.0
#: The client ignores signals while it waits: a Ctrl-C is felt this late.
WAIT_SLICE_S: Final = 0.1
#: A hole of so many offsets is jumped; through a smaller one it is cheaper to read than to fetch again.
JUMP_OFFSETS_MIN: Final = 10_000
#: The interval of reading the client's own positions while records arrive.
POSITIONS_EVERY_S: Final = 0.5
#: For the questions that explain a failed read.
EXPLAIN_TIMEOUT_S: Final = 10.0

_NO_OFFSETS: Final[Int64Array] = np.empty(0, dtype=np.int64)


class _Progress:
    """How far one partition has been read."""

    __slots__ = ("_taken_to", "position", "tp", "wanted")

    def __init__(self, tp: TopicPartition, wanted: OffsetSet) -> None:
        self.tp = tp
        self.wanted = wanted
        #: Wanted records below it have been returned.
        self.position = self._taken_to = wanted.first

    @property
    def is_done(self) -> bool:
        return self.position >= self.wanted.end

    def advance(self, position: int) -> bool:
        """Move the position forward, at most to the end; return whether it moved."""
        position = min(position, self.wanted.end)
        moved = position > self.position
        self.position = max(position, self.position)
        return moved

    def take(
        self, records: Sequence[Message], offsets: Int64Array
    ) -> tuple[Sequence[Message], Int64Array]:
        """Return the wanted among a run of records, but those that were taken already."""
        mask = self.wanted.mask(offsets)
        taken_to = max(self._taken_to, self.position)
        if offsets[0] < taken_to:
            # Records in flight at a jump arrive a second time after it.
            mask &= offsets >= taken_to
        self._taken_to = max(taken_to, int(offsets[-1]) + 1)
        if mask.all():
            return records, offsets
        return list(compress(records, mask.tolist())), offsets[mask]

    def jump(self) -> int | None:
        """Return the offset to jump to when the position is in a large hole."""
        boundaries = self.wanted.boundaries
        index = int(np.searchsorted(boundaries, self.position, side="right"))
        if index % 2 or index == boundaries.size:
            return None
        start = int(boundaries[index])
        return start if start - self.position >= JUMP_OFFSETS_MIN else None


#: The results from the wanted records of one partition, by offset.
_T = TypeVar("_T")
_Make = Callable[[TopicPartition, Sequence[Message], Int64Array], _T]


class RangeReader:
    """Reads the visible records whose offsets are wanted, each once. A context manager, for one thread.

    Never joins the group and commits nothing; the group is named for quotas and logs. Offsets below the
    log start raise `RecordsLostError`: nothing is skipped in silence.

    Args:
        settings: how to reach the cluster.
        group_id: the group on whose behalf it reads.
        isolation: under read_committed, aborted and pending records are not visible.
        wanted: for each partition the offsets; empty sets are left out.
        columns: names of `RECORD_SCHEMA` that `batches` fills; fewer are faster.
        batch_records: at most so many records in a batch.
        stall_timeout_s: without a position moving for so long, `ReadTimeoutError`.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        isolation: Isolation,
        wanted: Mapping[TopicPartition, OffsetSet],
        *,
        columns: Collection[str] | None = None,
        batch_records: int = BATCH_RECORDS,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        names = RECORD_SCHEMA.names if columns is None else list(columns)
        if unknown := set(names) - set(RECORD_SCHEMA.names):
            raise ConfigError(
                f"no such columns: {sorted(unknown)}; there are {RECORD_SCHEMA.names}"
            )
        #: The schema of `batches`.
        self.schema = pa.schema([RECORD_SCHEMA.field(name) for name in names])
        self._settings = settings
        self._config = settings.consumer(group_id=group_id, isolation=isolation)
        self._batch_records = batch_records
        self._stall_timeout_s = stall_timeout_s
        self._reasons = FaultReasons(settings.secret_values())
        self._all = {tp: _Progress(tp, offsets) for tp, offsets in wanted.items() if offsets}
        self._unfinished = {(tp.topic, tp.partition): one for tp, one in self._all.items()}
        topics = sorted({tp.topic for tp in self._all})
        self._topic_numbers: dict[str | None, int] = {name: i for i, name in enumerate(topics)}
        self._consumer: ck.Consumer | None = None
        self._home = Home()
        self._uncounted = Uncounted()

    def __enter__(self) -> RangeReader:
        self._home.check("a reader")
        if self._unfinished:
            self._consumer = open_client(ck.Consumer, self._config, self._reasons)
            self._consumer.assign([_at(one) for one in self._all.values()])
        self._uncounted.begin()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._uncounted.end(failed=exc_info[0] is not None)
        self.close()

    def close(self) -> None:
        """End reading; may be called twice."""
        if not self._home.is_here:
            return
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset of each partition below which everything wanted has been returned."""
        return {tp: one.position for tp, one in self._all.items()}

    def stop(self, tp: TopicPartition) -> None:
        """End one partition early, even in the middle of its fetched records."""
        one = self._unfinished.get((tp.topic, tp.partition))
        if one is not None:
            self._finish(one)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the wanted records: each batch holds records of one partition, in offset order.

        Raises:
            RecordsLostError: wanted offsets are no longer in the log; which.
            CorruptRecordError: a checksum or codec fails; at which offset.
            ReadTimeoutError: no position moved for the stall time; positions and ends.
            UnknownTopicError: the topic was deleted meanwhile.
            BrokerError: the cluster refuses, or cannot be reached.
        """

        def batch_of(
            tp: TopicPartition, records: Sequence[Message], offsets: Int64Array
        ) -> pa.RecordBatch:
            return to_arrow(self.schema, tp, records, offsets)

        for _, batch in self._runs(batch_of):
            if batch is not None:
                yield batch

    def timestamps(self) -> Iterator[ScanBatch]:
        """Yield offsets and timestamps of the wanted records, keys and values untouched; raises like `batches`."""

        def stamps_of(
            _: TopicPartition, records: Sequence[Message], offsets: Int64Array
        ) -> tuple[Int64Array, Int64Array]:
            return offsets, stamps(records)[:, 1]

        for one, found in self._runs(stamps_of):
            offsets, stamped = found or (_NO_OFFSETS, _NO_OFFSETS)
            yield ScanBatch(one.tp, offsets, stamped, one.position)

    def _runs(self, make: _Make[_T]) -> Iterator[tuple[_Progress, _T | None]]:
        """Yield the results of one partition's records at a time, after its position has moved."""
        moved_at = positions_at = time.monotonic()
        looked_into = False
        while self._unfinished:
            with no_collection():
                count, runs, events = self._take(make)
            moved = False
            for one, end, made in runs:
                if (one.tp.topic, one.tp.partition) in self._unfinished:
                    moved = True
                    one.advance(end)
                    self._settle(one)
                    yield one, made
            # After the records: events of a partition refer to the time after them.
            for one in self._events(events):
                moved = True
                yield one, None
            now = time.monotonic()
            if not count or now - positions_at > POSITIONS_EVERY_S:
                positions_at = now
                for one in self._ask_positions():
                    moved = True
                    yield one, None
            # Read again: the consumer of the records may be slow, which is no stall.
            now = time.monotonic()
            if moved:
                moved_at, looked_into = now, False
            elif now - moved_at > self._stall_timeout_s:
                raise self._stalled()
            elif now - moved_at > QUIET_S and not looked_into:
                looked_into = True
                self._check_topics()

    def _take(
        self, make: _Make[_T]
    ) -> tuple[int, list[tuple[_Progress, int, _T | None]], list[Message]]:
        """Return the number of messages; the results of each run of one partition, with the offset after it; the events."""
        messages = records = self._consume()
        events: list[Message] = []
        if any(map(Message.error, messages)):
            records = [one for one in messages if not one.error()]
            events = [one for one in messages if one.error()]
        runs: list[tuple[_Progress, int, _T | None]] = []
        for one, run, offsets in self._by_partition(records):
            wanted, at = one.take(run, offsets)
            runs.append((one, int(offsets[-1]) + 1, make(one.tp, wanted, at) if wanted else None))
        return len(messages), runs, events

    def _consume(self) -> list[Message]:
        """Return fetched messages; wait a moment if there are none."""
        consumer = self._open_consumer()
        try:
            # Asking for many with a time-out would wait for all of them, at the end of every partition.
            messages = consumer.consume(self._batch_records, 0)
            if not messages:
                messages = consumer.consume(1, WAIT_SLICE_S)
                messages += consumer.consume(self._batch_records - 1, 0) if messages else []
        except ck.KafkaException as error:
            raise translate(
                error, doing="reading", where=self._where(), reasons=self._reasons
            ) from error
        if not messages:
            self._reasons.raise_if_hopeless(doing="reading", where=self._where())
        return messages

    def _by_partition(
        self, messages: list[Message]
    ) -> Iterator[tuple[_Progress, Sequence[Message], Int64Array]]:
        """Divide messages into runs of one partition; the client delivers long runs by itself."""
        count = len(messages)
        if not count:
            return
        keys = np.fromiter(map(Message.partition, messages), np.int64, count)
        if len(self._topic_numbers) > 1:
            names = map(Message.topic, messages)
            numbers = map(self._topic_numbers.__getitem__, names)
            keys += np.fromiter(numbers, np.int64, count) << 32
        offsets = np.fromiter(map(Message.offset, messages), np.int64, count)
        starts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], count], strict=True):
            first = messages[start]
            one = self._unfinished.get((first.topic() or "", first.partition() or 0))
            if one is not None:  # Else finished or stopped while these were under way.
                yield one, messages[start:end], offsets[start:end]

    def _events(self, messages: list[Message]) -> Iterator[_Progress]:
        """Handle an event; return the partitions that it moved."""
        for message in messages:
            error = message.error()
            one = self._unfinished.get((message.topic() or "", message.partition() or 0))
            if error is None or one is None:
                if error is not None:
                    self._reasons.add(error)
            elif error.code() == ck.KafkaError._PARTITION_EOF:
                # Where the log ended when this was queued. Below the end it may be stale, and is still a
                # place that has been reached.
                if one.advance(client_position(message.offset()) or 0):
                    self._settle(one)
                    yield one
            elif is_out_of_range(error.code()):
                self._restart_or_lost(one)
            else:
                fault = self._fault(error, f"{one.tp}@{message.offset()}")
                if not fault.retriable:
                    raise fault
                self._reasons.add(error)

    def _ask_positions(self) -> Iterator[_Progress]:
        """Move partitions whose client position went on without a record: over markers, aborted records."""
        unfinished = list(self._unfinished.values())
        try:
            found = self._open_consumer().position([_at(one) for one in unfinished])
        except ck.KafkaException:
            return  # Only a shortcut: the end-of-partition event follows.
        for one, client in zip(unfinished, found, strict=True):
            # None: nothing was handed out since the assignment, or since a jump.
            reached = client_position(client.offset)
            if reached is not None and one.advance(reached):
                self._settle(one)
                yield one

    def _settle(self, one: _Progress) -> None:
        """Handle a moved position: the partition may be done, or before a large hole."""
        if one.is_done:
            self._finish(one)
        elif (start := one.jump()) is not None:
            one.advance(start)
            # Only a shortcut: reading on through the hole gives the same records.
            with suppress(ck.KafkaException):
                self._open_consumer().seek(_at(one))

    def _finish(self, one: _Progress) -> None:
        stopped = self._unfinished.pop((one.tp.topic, one.tp.partition), None) is None
        if not stopped and self._unfinished and self._consumer is not None:
            # Otherwise records fetched beyond the end take the buffers of other partitions.
            self._consumer.incremental_unassign([ck.TopicPartition(one.tp.topic, one.tp.partition)])

    def _open_consumer(self) -> ck.Consumer:
        self._home.check("a reader")
        consumer = self._consumer
        if consumer is None:
            raise AssertionError("a RangeReader reads inside its `with` block")
        return consumer

    def _where(self) -> str:
        names = [f"{one.tp}@{one.position}" for one in self._unfinished.values()]
        return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")

    def _fault(self, error: ck.KafkaError, where: str) -> KafkaOrderedOpsError:
        fault = translate(error, doing="reading", where=where, reasons=self._reasons)
        if is_corrupt(error.code()):
            return CorruptRecordError(fault.message, at=where)
        return fault

    def _restart_or_lost(self, one: _Progress) -> None:
        """Handle a position outside the log: continue after the gap if nothing wanted was in it."""
        with Lookup(self._settings, timeout_s=EXPLAIN_TIMEOUT_S) as lookup:
            start = lookup.log_starts([one.tp])[one.tp]
            end = lookup.end_offsets([one.tp], Isolation.READ_UNCOMMITTED)[one.tp]
            if end < start:
                raise no_answer(
                    "reading", str(one.tp), f"the log starts at {start} and ends at {end}"
                )
        left = one.wanted.within(one.position, one.wanted.end)
        lost = left - OffsetSet.of((start, end))
        if lost:
            shown = ", ".join(f"[{a}, {b})" for a, b in lost.ranges[:8])
            raise RecordsLostError(
                f"{one.tp} holds offsets [{start}, {end}) now; the wanted offsets {shown} are gone: "
                "retention or deletion removed them, or the topic was recreated. Plan the window again, or "
                "accept the loss with on_data_loss='warn'",
                lost={str(one.tp): lost.ranges},
            )
        one.advance(left.first)
        consumer = self._open_consumer()
        consumer.incremental_unassign([ck.TopicPartition(one.tp.topic, one.tp.partition)])
        consumer.incremental_assign([_at(one)])

    def _check_topics(self) -> None:
        """Raise if the topics are deleted or forbidden, which the client itself does not report."""
        try:
            with Lookup(self._settings, timeout_s=EXPLAIN_TIMEOUT_S) as lookup:
                lookup.topics({topic for topic, _ in self._unfinished})
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise

    def _stalled(self) -> KafkaOrderedOpsError:
        """Raise the cluster's error; return a timeout error if it reports none."""
        partitions = [one.tp for one in self._unfinished.values()]
        with Lookup(self._settings, timeout_s=EXPLAIN_TIMEOUT_S) as lookup:
            lookup.topics({tp.topic for tp in partitions})
            ends = lookup.end_offsets(partitions, Isolation(self._config["isolation.level"]))
        positions = {
            str(one.tp): (one.position, one.wanted.end) for one in self._unfinished.values()
        }
        shown = ", ".join(
            f"{one.tp} at {one.position} of {one.wanted.end} (the log ends at {ends[one.tp]})"
            for one in list(self._unfinished.values())[:8]
        )
        return ReadTimeoutError(
            f"no position moved for {self._stall_timeout_s:g} s: {shown}. A log that ends below what is "
            "wanted has an open transaction, or lost records in a failover; otherwise see the brokers' "
            "health, and run this window again",
            positions=positions,
        )


def read_ranges(
    settings: ClientSettings,
    group_id: str,
    isolation: Isolation,
    wanted: Mapping[TopicPartition, OffsetSet],
    *,
    columns: Collection[str] | None = None,
    batch_records: int = BATCH_RECORDS,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> Iterator[pa.RecordBatch]:
    """Run `RangeReader.batches` in one call; every argument can be pickled, so executors can run it."""
    with RangeReader(
        settings,
        group_id,
        isolation,
        wanted,
        columns=columns,
        batch_records=batch_records,
        stall_timeout_s=stall_timeout_s,
    ) as reader:
        yield from reader.batches()


def _at(one: _Progress) -> ck.TopicPartition:
    return ck.TopicPartition(one.tp.topic, one.tp.partition, one.position)
