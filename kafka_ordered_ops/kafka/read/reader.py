"""Read exact sets of offsets as Arrow batches or as timestamps only; or read without an end, turn by turn.

A partition is done when its *position* has reached the wanted end: by a record at or past it, by an
end-of-partition event at or past it, or by the client's own position, which also passes transaction markers
and aborted records. A poll without records proves nothing. Offsets without a visible record (markers, aborted
records, compacted gaps) do not appear.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import confluent_kafka as ck
import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from kafka_ordered_ops.core.cluster.cluster_facts import ScanBatch as ScanBatch
from kafka_ordered_ops.core.cluster.reading import BATCH_RECORDS, NO_IDS
from kafka_ordered_ops.core.cluster.reading import Turn as Turn
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError, invariant
from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.record_schema import record_schema
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.answers import position as client_position
from kafka_ordered_ops.kafka.client.calls import Uncounted
from kafka_ordered_ops.kafka.client.errors import (
    FaultReasons,
    is_out_of_range,
    open_client,
    translate,
)
from kafka_ordered_ops.kafka.client.interrupts import interruptible
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.read import quiet
from kafka_ordered_ops.kafka.read.arrow import no_collection, stamps, to_arrow
from kafka_ordered_ops.kafka.read.explain import (
    check_not_truncated,
    named,
    where_to_go_on,
)
from kafka_ordered_ops.kafka.read.progress import JUMP_OFFSETS_MIN as JUMP_OFFSETS_MIN
from kafka_ordered_ops.kafka.read.progress import Progress, runs_of_partitions
from kafka_ordered_ops.kafka.read.quiet import Quiet
from kafka_ordered_ops.kafka.read.taking import WAIT_SLICE_S, Taking, fetch_settings
from kafka_ordered_ops.kafka.read.topic_ids import TopicIds
from kafka_ordered_ops.kafka.read.unreadable import (
    is_unreadable,
    unreadable_error,
    without_passed_over,
)
from kafka_ordered_ops.kafka.settings import ClientSettings

#: If no position moves for this long, there is an error that the client does not report.
STALL_TIMEOUT_S: Final = 60.0
#: The interval between two reads of the client's own positions while records arrive.
POSITIONS_EVERY_S: Final = 0.5

_NO_OFFSETS: Final[Int64Array] = np.empty(0, dtype=np.int64)

#: The results from the wanted records of one partition, by offset.
_T = TypeVar("_T")
_Make = Callable[[TopicPartition, Sequence[Message], Int64Array], _T]


class RangeReader:
    """Reads the visible records whose offsets are wanted, each once. A context manager, for one thread.

    It never joins the group, and commits nothing; the group id is for quotas and logs. Offsets below the
    log start raise `RecordsLostError`: nothing is skipped silently. A set that ends at `INT64_MAX` has no end.

    Args:
        settings: how to reach the cluster.
        group_id: the group to read for.
        isolation: under read_committed, aborted and pending records are not visible.
        wanted: the offsets to read, by partition; empty sets are left out.
        columns: names of `RECORD_SCHEMA` that `batches` fills; fewer are faster.
        batch_records: the maximum number of records in a batch.
        stall_timeout_s: raise `ReadTimeoutError` if no position moves for this long; `turn` does not.
        topic_ids: the ids of the topics to read; the owner may add to them. A topic without an id must keep the id that it
            has when it is first read.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        isolation: Isolation,
        wanted: Mapping[TopicPartition, OffsetSet],
        *,
        columns: Collection[str] | None = None,
        batch_records: int | None = None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> None:
        #: The schema of `batches` and `turn`.
        self.schema = record_schema(columns)
        self._settings = settings
        self._reasons = FaultReasons(settings.secret_values())
        self._topic_ids = TopicIds(self._reasons, topic_ids)
        self._config = settings.consumer(
            group_id=group_id, isolation=isolation, defaults=fetch_settings(wanted)
        )
        self._taking = Taking(BATCH_RECORDS if batch_records is None else batch_records)
        self._all = {
            tp: Progress(tp, offsets, has_own_position=True)
            for tp, offsets in wanted.items()
            if offsets
        }
        self._unfinished = {progress.key: progress for progress in self._all.values()}
        topics = sorted({tp.topic for tp in self._all})
        self._topic_numbers: dict[str | None, int] = {name: i for i, name in enumerate(topics)}
        #: Events that were not handled yet, so that an event that raises does not drop the others.
        self._events: deque[tuple[Progress, Message]] = deque()
        self._positions_at = time.monotonic()
        self._quiet = Quiet(settings, isolation, topics, stall_timeout_s=stall_timeout_s)
        self._is_open = False
        self._consumer: ck.Consumer | None = None
        self._home = Home()
        self._uncounted = Uncounted()

    def __enter__(self) -> RangeReader:
        self._home.check("a reader")
        self._is_open = True
        if self._unfinished:
            self._open_consumer().assign([progress.start for progress in self._all.values()])
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
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset of each partition below which all wanted records have been returned."""
        return {tp: progress.position for tp, progress in self._all.items()}

    @property
    def log_ends(self) -> dict[TopicPartition, int]:
        """The log ends of partitions that are being read, as of the last fetches; without those not known yet."""
        ends = {}
        for progress in self._unfinished.values():
            # Not fetched yet, or its topic is gone, which `turn` reports.
            with suppress(ck.KafkaException):
                _, high = self._open_consumer().get_watermark_offsets(progress.start, cached=True)
                if (end := client_position(high)) is not None:
                    ends[progress.tp] = end
        return ends

    def add(self, tp: TopicPartition, wanted: OffsetSet) -> None:
        """Start reading one more partition, or one that was finished or stopped, at its first wanted offset.

        Raises `ConfigError` for a partition that is being read: stop it first.
        """
        if (tp.topic, tp.partition) in self._unfinished:
            raise ConfigError(f"{tp} is being read already: stop it before adding it again")
        if not wanted:
            return
        # For a partition that was read before, the client reports the old position until the old assignment has ended.
        progress = Progress(tp, wanted, has_own_position=tp not in self._all)
        consumer = self._open_consumer()
        self._topic_numbers.setdefault(tp.topic, len(self._topic_numbers))
        self._topic_ids.begin(tp.topic)
        try:
            consumer.incremental_assign([progress.start])
            consumer.resume([progress.start])  # It may be paused at a batch that cannot be read.
        except ck.KafkaException as error:
            raise translate(error, doing="reading", where=str(tp), reasons=self._reasons) from error
        self._all[tp] = self._unfinished[progress.key] = progress
        self._quiet.add(tp.topic)

    def stop(self, tp: TopicPartition) -> None:
        """End one partition early, even in the middle of its fetched records."""
        progress = self._unfinished.get((tp.topic, tp.partition))
        if progress is not None:
            self._finish(progress)

    def turn(self) -> list[Turn]:
        """Return the results of one round of reading, within a moment; the list may be empty.

        A quiet round is not an error: an endless read may be quiet for hours. Records are returned before an error
        of the same round, which the next call raises. After an error of one partition, `stop` it to continue.

        Raises:
            RecordsLostError: wanted offsets are no longer in the log, or the log was truncated; the error has the offsets.
            CorruptRecordError: a checksum or codec fails; the error has the offsets.
            RecordTooLargeError: a batch takes more memory than the client allows; the error has the offsets.
            UnknownTopicError, TopicRecreatedError: a topic was deleted meanwhile, or deleted and created again.
            BrokerError: the cluster refuses the credentials, or a right is missing.
        """
        self._check_open()
        if not self._unfinished:
            time.sleep(WAIT_SLICE_S)
            return []
        # Before any record is taken from the client, because this may raise.
        self._quiet.look(topic for topic, _ in self._unfinished)
        turns: list[Turn] = []
        try:
            for progress, batch in self._round(self._batch_of):
                turns.append(Turn(progress.tp, batch, progress.position))
        except KafkaOrderedOpsError:
            # Otherwise the next turn starts with the event that raised.
            if not turns:
                raise
        return turns

    def check_not_stalled(self) -> None:
        """Raise `ReadTimeoutError`, or the error that explains it, if no position moved for the stall time."""
        self._quiet.check_not_stalled(self._unfinished.values(), self._reasons.throttled())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the wanted records: each batch holds records of one partition, in offset order.

        Raises:
            RecordsLostError: wanted offsets are no longer in the log; the error has the offsets.
            CorruptRecordError: a checksum or codec fails; the error has the offsets.
            RecordTooLargeError: a batch takes more memory than the client allows; the error has the offsets.
            ReadTimeoutError: no position moved for the stall time; the error has positions and ends.
            UnknownTopicError, TopicRecreatedError: the topic was deleted meanwhile, or deleted and created again.
            BrokerError: the cluster refuses the request or cannot be reached.
        """
        for _, batch in self._rounds(self._batch_of):
            if batch is not None:
                yield batch

    def timestamps(self) -> Iterator[ScanBatch]:
        """Yield offsets and timestamps of the wanted records, without keys and values; raises like `batches`."""

        def stamps_of(
            _: TopicPartition, records: Sequence[Message], offsets: Int64Array
        ) -> tuple[Int64Array, Int64Array]:
            return offsets, stamps(records)[:, 1]

        for progress, columns in self._rounds(stamps_of):
            offsets, times = columns or (_NO_OFFSETS, _NO_OFFSETS)
            yield ScanBatch(progress.tp, offsets, times, progress.position)

    def _batch_of(
        self, tp: TopicPartition, records: Sequence[Message], offsets: Int64Array
    ) -> pa.RecordBatch:
        return to_arrow(self.schema, tp, records, offsets)

    def _rounds(self, make: _Make[_T]) -> Iterator[tuple[Progress, _T | None]]:
        """Yield from rounds until all wanted records have been read; raise when no position moves for too long."""
        self._quiet.begin()
        while self._unfinished:
            yield from self._round(make)
            self._quiet.look(topic for topic, _ in self._unfinished)
            self.check_not_stalled()

    def _round(self, make: _Make[_T]) -> Iterator[tuple[Progress, _T | None]]:
        """Yield the results of one partition's records at a time, after its position has moved."""
        moved: set[str] = set()
        for progress in self._handle_events():  # Left over from a round that raised.
            moved.add(progress.tp.topic)
            yield progress, None
        with no_collection():
            count, runs = self._take(make)
        for progress, end, result in runs:
            if self._is_read(progress):
                moved.add(progress.tp.topic)
                progress.advance(end)
                self._settle(progress)
                yield progress, result
        # After the records, because a partition's events follow them.
        for progress in self._handle_events():
            moved.add(progress.tp.topic)
            yield progress, None
        now = time.monotonic()
        if not count or now - self._positions_at > POSITIONS_EVERY_S:
            self._positions_at = now
            for progress in self._ask_positions():
                moved.add(progress.tp.topic)
                yield progress, None
        if moved:
            # By the current time: the consumer of the records may be slow, which is not a stall.
            self._quiet.moved(moved)

    def _take(self, make: _Make[_T]) -> tuple[int, list[tuple[Progress, int, _T | None]]]:
        """Return the number of messages, and the results of each run of one partition, with the offset after it."""
        messages = records = self._consume()
        self._topic_ids.check(self._unfinished)
        if any(map(Message.error, messages)):
            records = without_passed_over(messages)
            self._keep_events(message for message in messages if message.error())
        runs: list[tuple[Progress, int, _T | None]] = []
        for run, offsets in runs_of_partitions(records, self._topic_numbers):
            progress = self._unfinished.get((run[0].topic() or "", run[0].partition() or 0))
            if progress is None:  # Finished or stopped before these records arrived.
                continue
            wanted, at = progress.take(run, offsets)
            runs.append(
                (progress, int(offsets[-1]) + 1, make(progress.tp, wanted, at) if wanted else None)
            )
        return len(messages), runs

    def _consume(self) -> list[Message]:
        """Return fetched messages; wait a moment if there are none."""
        consumer = self._open_consumer()
        try:
            with interruptible():
                messages = self._taking.take(consumer)
        except ck.KafkaException as error:
            raise translate(
                error,
                doing="reading",
                where=named(self._unfinished.values()),
                reasons=self._reasons,
            ) from error
        if not messages:
            self._reasons.raise_if_hopeless(doing="reading", where=named(self._unfinished.values()))
        return messages

    def _keep_events(self, messages: Iterable[Message]) -> None:
        """Queue the events of partitions that are being read, each for its present assignment."""
        for message in messages:
            progress = self._unfinished.get((message.topic() or "", message.partition() or 0))
            if progress is not None:
                self._events.append((progress, message))
            elif (error := message.error()) is not None:
                self._reasons.add(error)

    def _handle_events(self) -> Iterator[Progress]:
        """Handle the queued events; return the partitions that they moved.

        An event that raises stays until its partition is stopped: the client does not repeat it.
        """
        while self._events:
            progress, message = self._events[0]
            try:
                moved = self._is_read(progress) and self._handle(progress, message)
            except KafkaOrderedOpsError as error:
                if not error.retriable:
                    raise
                return  # The cluster is unavailable. The next round tries again.
            if self._events and self._events[0][1] is message:
                self._events.popleft()
            if moved:
                self._settle(progress)
                yield progress

    def _handle(self, progress: Progress, message: Message) -> bool:
        """Handle an event of a partition; return whether it moved the position."""
        error = message.error()
        if error is None:
            return False
        if error.code() == ck.KafkaError._PARTITION_EOF:
            # The end of the log when the event was queued. It may be stale, but the position has reached it.
            progress.has_own_position = True
            return progress.advance(client_position(message.offset()) or 0)
        if is_out_of_range(error.code()):
            check_not_truncated(progress, error)
            return self._restart(progress)
        if is_unreadable(error.code()):
            return self._pass_over(progress, error, client_position(message.offset()))
        fault = translate(
            error, doing="reading", where=f"{progress.tp}@{message.offset()}", reasons=self._reasons
        )
        if not fault.retriable:
            raise fault
        self._reasons.add(error)
        return False

    def _pass_over(self, progress: Progress, error: ck.KafkaError, at: int | None) -> bool:
        """Continue after a batch that cannot be read, if no offset in it is wanted; otherwise raise its error."""
        at = progress.position if at is None else at
        # The client has returned all records below.
        moved = progress.advance(at)
        if progress.is_done:
            return moved
        start = progress.next_wanted()
        if start == at or start <= progress.sought:
            # The client would fetch the batch again and again.
            self._open_consumer().pause([progress.start])
            raise unreadable_error(
                self._config,
                progress.tp,
                at,
                progress.wanted,
                error,
                self._reasons,
                timeout_s=quiet.EXPLAIN_TIMEOUT_S,
            )
        # The start may be in the same batch: then the error repeats. After its first error, the client interprets the rest
        # of the fetched data as batches at arbitrary offsets.
        self._events = deque(event for event in self._events if event[0] is not progress)
        progress.advance(start)
        self._assign_again(progress)
        return True

    def _ask_positions(self) -> Iterator[Progress]:
        """Advance partitions whose client position moved without a record: over markers and aborted records."""
        candidates = [
            progress for progress in self._unfinished.values() if progress.has_own_position
        ]
        try:
            answers = self._open_consumer().position([progress.start for progress in candidates])
        except ck.KafkaException:
            return  # Only a shortcut: the end-of-partition event follows.
        for progress, answer in zip(candidates, answers, strict=True):
            # `None` if the client returned no record since the assignment, or since a jump.
            reached = client_position(answer.offset)
            if reached is not None and self._is_read(progress) and progress.advance(reached):
                self._settle(progress)
                yield progress

    def _restart(self, progress: Progress) -> bool:
        """Continue at the next wanted record in the log; return whether the position moved. Raises `RecordsLostError`."""
        position = where_to_go_on(self._settings, progress, timeout_s=quiet.EXPLAIN_TIMEOUT_S)
        moved = progress.advance(position)
        self._assign_again(progress)
        return moved

    def _assign_again(self, progress: Progress) -> None:
        consumer, progress.sought = self._open_consumer(), progress.position
        consumer.incremental_unassign([progress.start])
        consumer.incremental_assign([progress.start])

    def _settle(self, progress: Progress) -> None:
        """Handle a moved position: the partition may be done, or at a large gap."""
        if progress.is_done:
            self._finish(progress)
        elif (start := progress.jump()) is not None:
            progress.advance(start)
            progress.sought = start
            # Only a shortcut: reading through the gap returns the same records.
            with suppress(ck.KafkaException):
                self._open_consumer().seek(progress.start)

    def _finish(self, progress: Progress) -> None:
        if self._unfinished.pop(progress.key, None) is not None and self._consumer is not None:
            # Otherwise records fetched beyond the end use the buffers of other partitions. The client also drops records in
            # flight of this assignment, so that they cannot appear in a later one.
            self._consumer.incremental_unassign([progress.start])

    def _is_read(self, progress: Progress) -> bool:
        """Return whether this assignment of the partition is neither finished nor stopped."""
        return self._unfinished.get(progress.key) is progress

    def _check_open(self) -> None:
        self._home.check("a reader")
        invariant(self._is_open, "a RangeReader reads inside its `with` block")

    def _open_consumer(self) -> ck.Consumer:
        self._check_open()
        if self._consumer is None:
            config = self._topic_ids.configured(self._config)
            self._consumer = open_client(ck.Consumer, config, self._reasons, lines=self._topic_ids)
        return self._consumer
