"""Read exact sets of offsets to Arrow, or to bare timestamps; or read on without an end, turn by turn.

A partition is done when its *position* has reached the wanted end: a record at or past it, an
end-of-partition event at or past it, or the client's own position, which also passes transaction markers
and aborted records. A poll without records proves nothing. Offsets without a visible record (markers, aborted
records, compacted holes) do not appear.
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

from kafka_ordered_ops.core.cluster_facts import ScanBatch as ScanBatch
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError, invariant
from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.reading import NO_IDS
from kafka_ordered_ops.core.reading import Turn as Turn
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.answers import position as client_position
from kafka_ordered_ops.kafka.client.calls import Uncounted
from kafka_ordered_ops.kafka.client.errors import (
    FaultReasons,
    is_out_of_range,
    open_client,
    translate,
)
from kafka_ordered_ops.kafka.client.forks import Home
from kafka_ordered_ops.kafka.client.interrupts import interruptible
from kafka_ordered_ops.kafka.read.arrow import no_collection, stamps, to_arrow
from kafka_ordered_ops.kafka.read.explain import (
    check_not_truncated,
    check_topics,
    named,
    stalled,
    where_to_go_on,
)
from kafka_ordered_ops.kafka.read.progress import JUMP_OFFSETS_MIN as JUMP_OFFSETS_MIN
from kafka_ordered_ops.kafka.read.progress import Progress, runs_of_partitions
from kafka_ordered_ops.kafka.read.taking import WAIT_SLICE_S, Taking, fetch_settings
from kafka_ordered_ops.kafka.read.topic_ids import TopicIds
from kafka_ordered_ops.kafka.read.unreadable import (
    is_unreadable,
    unreadable_error,
    without_passed_over,
)
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Records taken from the client at once: 1,000 to 5,000 cost least a record; more only miss the caches.
BATCH_RECORDS: Final = 2_000
#: If no position moves for this long, there is an error that the client does not report.
STALL_TIMEOUT_S: Final = 60.0
#: After so long without a position of a topic moving, the cluster is asked whether the topic still exists.
QUIET_S: Final = 5.0
#: And asked again after so long: a tail may be quiet for hours, and each question opens a connection.
STILL_QUIET_S: Final = 60.0
#: For that question: a cluster that is away must not hold a turn for long.
LOOK_TIMEOUT_S: Final = 2.0
#: The interval of reading the client's own positions while records arrive.
POSITIONS_EVERY_S: Final = 0.5
#: For the questions that explain a failed read.
EXPLAIN_TIMEOUT_S: Final = 10.0

_NO_OFFSETS: Final[Int64Array] = np.empty(0, dtype=np.int64)

#: The results from the wanted records of one partition, by offset.
_T = TypeVar("_T")
_Make = Callable[[TopicPartition, Sequence[Message], Int64Array], _T]


class RangeReader:
    """Reads the visible records whose offsets are wanted, each once. A context manager, for one thread.

    Never joins the group and commits nothing; the group is named for quotas and logs. Offsets below the
    log start raise `RecordsLostError`: nothing is skipped in silence. A set that ends at `INT64_MAX` has no end.

    Args:
        settings: how to reach the cluster.
        group_id: the group on whose behalf it reads.
        isolation: under read_committed, aborted and pending records are not visible.
        wanted: for each partition the offsets; empty sets are left out.
        columns: names of `RECORD_SCHEMA` that `batches` fills; fewer are faster.
        batch_records: at most so many records in a batch.
        stall_timeout_s: without a position moving for so long, `ReadTimeoutError`; not from `turn`.
        topic_ids: the ids of the topics to read, which the owner may add to; others stay as they are first read.
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
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> None:
        names = RECORD_SCHEMA.names if columns is None else list(columns)
        if unknown := set(names) - set(RECORD_SCHEMA.names):
            raise ConfigError(
                f"no such columns: {sorted(unknown)}; there are {RECORD_SCHEMA.names}"
            )
        #: The schema of `batches` and `turn`.
        self.schema = pa.schema([RECORD_SCHEMA.field(name) for name in names])
        self._settings = settings
        self._isolation = isolation
        self._reasons = FaultReasons(settings.secret_values())
        self._topic_ids = TopicIds(self._reasons, topic_ids)
        self._config = settings.consumer(
            group_id=group_id, isolation=isolation, defaults=fetch_settings(wanted)
        )
        self._taking = Taking(batch_records)
        self._stall_timeout_s = stall_timeout_s
        self._all = {
            tp: Progress(tp, offsets, has_own_position=True)
            for tp, offsets in wanted.items()
            if offsets
        }
        self._unfinished = {one.key: one for one in self._all.values()}
        topics = sorted({tp.topic for tp in self._all})
        self._topic_numbers: dict[str | None, int] = {name: i for i, name in enumerate(topics)}
        #: Events that were not handled yet: one that raises does not take the others with it.
        self._events: deque[tuple[Progress, Message]] = deque()
        self._moved_at = self._positions_at = self._next_look = time.monotonic()
        #: By topic, when to ask whether it still exists.
        self._look_at = dict.fromkeys(topics, self._moved_at + QUIET_S)
        self._is_open = False
        self._consumer: ck.Consumer | None = None
        self._home = Home()
        self._uncounted = Uncounted()

    def __enter__(self) -> RangeReader:
        self._home.check("a reader")
        self._is_open = True
        if self._unfinished:
            self._open_consumer().assign([one.start for one in self._all.values()])
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
        """The offset of each partition below which everything wanted has been returned."""
        return {tp: one.position for tp, one in self._all.items()}

    @property
    def log_ends(self) -> dict[TopicPartition, int]:
        """Where the logs of partitions that are being read end, as the last fetches told; without those not known yet."""
        found = {}
        for one in self._unfinished.values():
            with suppress(
                ck.KafkaException
            ):  # Not fetched yet, or its topic is gone, which `turn` reports.
                _, end = self._open_consumer().get_watermark_offsets(one.start, cached=True)
                if (known := client_position(end)) is not None:
                    found[one.tp] = known
        return found

    def add(self, tp: TopicPartition, wanted: OffsetSet) -> None:
        """Start reading one more partition, or one that was finished or stopped, at its first wanted offset.

        Raises `ConfigError` for a partition that is being read: stop it first.
        """
        if (tp.topic, tp.partition) in self._unfinished:
            raise ConfigError(f"{tp} is being read already: stop it before adding it again")
        if not wanted:
            return
        # Of a partition read before, the client reports the old position until the old assignment has ended.
        one = Progress(tp, wanted, has_own_position=tp not in self._all)
        consumer = self._open_consumer()
        self._topic_numbers.setdefault(tp.topic, len(self._topic_numbers))
        self._topic_ids.begin(tp.topic)
        try:
            consumer.incremental_assign([one.start])
            consumer.resume([one.start])  # It may have ended at a batch that cannot be read.
        except ck.KafkaException as error:
            raise translate(error, doing="reading", where=str(tp), reasons=self._reasons) from error
        self._all[tp] = self._unfinished[one.key] = one
        self._look_at[tp.topic] = time.monotonic() + QUIET_S

    def stop(self, tp: TopicPartition) -> None:
        """End one partition early, even in the middle of its fetched records."""
        one = self._unfinished.get((tp.topic, tp.partition))
        if one is not None:
            self._finish(one)

    def turn(self) -> list[Turn]:
        """Return what one round of reading brings: after a moment at most, and then it may be nothing.

        Quiet is no error: an endless read may be quiet for hours. What was read is returned before an error
        of the same round is raised, by the next call. After an error of one partition, `stop` it to read on.

        Raises:
            RecordsLostError: wanted offsets are no longer in the log, or the log was truncated; which.
            CorruptRecordError: a checksum or codec fails; at which offsets.
            RecordTooLargeError: a batch takes more memory than the client allows; at which offsets.
            UnknownTopicError, TopicRecreatedError: a topic was deleted meanwhile, or deleted and created again.
            BrokerError: the cluster refuses the credentials, or a right is missing.
        """
        self._check_open()
        if not self._unfinished:
            time.sleep(WAIT_SLICE_S)
            return []
        # Before anything is taken from the client, since it may raise.
        self._look_into_quiet_topics()
        turns: list[Turn] = []
        try:
            for one, batch in self._round(self._batch_of):
                turns.append(Turn(one.tp, batch, one.position))
        except KafkaOrderedOpsError:
            # Otherwise the event that raised is the first thing of the next turn.
            if not turns:
                raise
        return turns

    def check_not_stalled(self) -> None:
        """Raise `ReadTimeoutError`, or what explains it, if no position moved for the stall time."""
        quiet_s = time.monotonic() - self._moved_at
        if self._unfinished and quiet_s > self._stall_timeout_s:
            raise stalled(
                self._settings,
                self._unfinished.values(),
                self._isolation,
                quiet_s=self._stall_timeout_s,
                throttled=self._reasons.throttled(),
                timeout_s=EXPLAIN_TIMEOUT_S,
            )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the wanted records: each batch holds records of one partition, in offset order.

        Raises:
            RecordsLostError: wanted offsets are no longer in the log; which.
            CorruptRecordError: a checksum or codec fails; at which offsets.
            RecordTooLargeError: a batch takes more memory than the client allows; at which offsets.
            ReadTimeoutError: no position moved for the stall time; positions and ends.
            UnknownTopicError, TopicRecreatedError: the topic was deleted meanwhile, or deleted and created again.
            BrokerError: the cluster refuses, or cannot be reached.
        """
        for _, batch in self._rounds(self._batch_of):
            if batch is not None:
                yield batch

    def timestamps(self) -> Iterator[ScanBatch]:
        """Yield offsets and timestamps of the wanted records, keys and values untouched; raises like `batches`."""

        def stamps_of(
            _: TopicPartition, records: Sequence[Message], offsets: Int64Array
        ) -> tuple[Int64Array, Int64Array]:
            return offsets, stamps(records)[:, 1]

        for one, found in self._rounds(stamps_of):
            offsets, stamped = found or (_NO_OFFSETS, _NO_OFFSETS)
            yield ScanBatch(one.tp, offsets, stamped, one.position)

    def _batch_of(
        self, tp: TopicPartition, records: Sequence[Message], offsets: Int64Array
    ) -> pa.RecordBatch:
        return to_arrow(self.schema, tp, records, offsets)

    def _rounds(self, make: _Make[_T]) -> Iterator[tuple[Progress, _T | None]]:
        """Yield from rounds until everything wanted has been read; raise when nothing moves for too long."""
        self._moved_at = time.monotonic()
        while self._unfinished:
            yield from self._round(make)
            self._look_into_quiet_topics()
            self.check_not_stalled()

    def _round(self, make: _Make[_T]) -> Iterator[tuple[Progress, _T | None]]:
        """Yield the results of one partition's records at a time, after its position has moved."""
        moved: set[str] = set()
        for one in self._handle_events():  # Left by one that raised.
            moved.add(one.tp.topic)
            yield one, None
        with no_collection():
            count, runs = self._take(make)
        for one, end, made in runs:
            if self._is_read(one):
                moved.add(one.tp.topic)
                one.advance(end)
                self._settle(one)
                yield one, made
        # After the records: events of a partition refer to the time after them.
        for one in self._handle_events():
            moved.add(one.tp.topic)
            yield one, None
        now = time.monotonic()
        if not count or now - self._positions_at > POSITIONS_EVERY_S:
            self._positions_at = now
            for one in self._ask_positions():
                moved.add(one.tp.topic)
                yield one, None
        if moved:
            # Read again: the consumer of the records may be slow, which is no stall.
            self._moved_at = time.monotonic()
            self._look_at.update(dict.fromkeys(moved, self._moved_at + QUIET_S))

    def _take(self, make: _Make[_T]) -> tuple[int, list[tuple[Progress, int, _T | None]]]:
        """Return the number of messages; the results of each run of one partition, with the offset after it."""
        messages = records = self._consume()
        self._topic_ids.check(self._unfinished)
        if any(map(Message.error, messages)):
            records = without_passed_over(messages)
            self._keep_events(one for one in messages if one.error())
        runs: list[tuple[Progress, int, _T | None]] = []
        for run, offsets in runs_of_partitions(records, self._topic_numbers):
            one = self._unfinished.get((run[0].topic() or "", run[0].partition() or 0))
            if one is None:  # Finished or stopped while these were under way.
                continue
            wanted, at = one.take(run, offsets)
            runs.append((one, int(offsets[-1]) + 1, make(one.tp, wanted, at) if wanted else None))
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
            one = self._unfinished.get((message.topic() or "", message.partition() or 0))
            if one is not None:
                self._events.append((one, message))
            elif (error := message.error()) is not None:
                self._reasons.add(error)

    def _handle_events(self) -> Iterator[Progress]:
        """Handle the queued events; return the partitions that they moved.

        An event that raises stays until its partition is stopped: the client does not repeat it.
        """
        while self._events:
            one, message = self._events[0]
            try:
                moved = self._is_read(one) and self._handle(one, message)
            except KafkaOrderedOpsError as error:
                if not error.retriable:
                    raise
                return  # The cluster is away. The next round asks again.
            if self._events and self._events[0][1] is message:
                self._events.popleft()
            if moved:
                self._settle(one)
                yield one

    def _handle(self, one: Progress, message: Message) -> bool:
        """Handle an event of a partition; return whether it moved the position."""
        error = message.error()
        if error is None:
            return False
        if error.code() == ck.KafkaError._PARTITION_EOF:
            # Where the log ended when this was queued. Below the end it may be stale, and is still a
            # place that has been reached.
            one.has_own_position = True
            return one.advance(client_position(message.offset()) or 0)
        if is_out_of_range(error.code()):
            check_not_truncated(one, error)
            return self._restart(one)
        if is_unreadable(error.code()):
            return self._pass_over(one, error, client_position(message.offset()))
        fault = translate(
            error, doing="reading", where=f"{one.tp}@{message.offset()}", reasons=self._reasons
        )
        if not fault.retriable:
            raise fault
        self._reasons.add(error)
        return False

    def _pass_over(self, one: Progress, error: ck.KafkaError, at: int | None) -> bool:
        """Read on after a batch that cannot be read, if nothing in it is wanted; else raise its error."""
        at = one.position if at is None else at
        # What is below was handed out before.
        moved = one.advance(at)
        if one.is_done:
            return moved
        start = one.next_wanted()
        if start == at or start <= one.sought:
            # The client would fetch the batch again and again.
            self._open_consumer().pause([one.start])
            raise unreadable_error(
                self._config,
                one.tp,
                at,
                one.wanted,
                error,
                self._reasons,
                timeout_s=EXPLAIN_TIMEOUT_S,
            )
        # It may be in the batch as well: then the error comes again. After its first error, the client takes the rest
        # of what it fetched for batches at any offsets.
        self._events = deque(kept for kept in self._events if kept[0] is not one)
        one.advance(start)
        self._assign_again(one)
        return True

    def _ask_positions(self) -> Iterator[Progress]:
        """Move partitions whose client position went on without a record: over markers, aborted records."""
        asked = [one for one in self._unfinished.values() if one.has_own_position]
        try:
            found = self._open_consumer().position([one.start for one in asked])
        except ck.KafkaException:
            return  # Only a shortcut: the end-of-partition event follows.
        for one, client in zip(asked, found, strict=True):
            # None: nothing was handed out since the assignment, or since a jump.
            reached = client_position(client.offset)
            if reached is not None and self._is_read(one) and one.advance(reached):
                self._settle(one)
                yield one

    def _restart(self, one: Progress) -> bool:
        """Read on where the log has wanted records; return whether that is a move. Raises `RecordsLostError`."""
        position = where_to_go_on(self._settings, one, timeout_s=EXPLAIN_TIMEOUT_S)
        moved = one.advance(position)
        self._assign_again(one)
        return moved

    def _assign_again(self, one: Progress) -> None:
        consumer, one.sought = self._open_consumer(), one.position
        consumer.incremental_unassign([one.start])
        consumer.incremental_assign([one.start])

    def _settle(self, one: Progress) -> None:
        """Handle a moved position: the partition may be done, or before a large hole."""
        if one.is_done:
            self._finish(one)
        elif (start := one.jump()) is not None:
            one.advance(start)
            one.sought = start
            # Only a shortcut: reading on through the hole gives the same records.
            with suppress(ck.KafkaException):
                self._open_consumer().seek(one.start)

    def _finish(self, one: Progress) -> None:
        if self._unfinished.pop(one.key, None) is not None and self._consumer is not None:
            # Otherwise records fetched beyond the end take the buffers of other partitions. What is under way of
            # this assignment is dropped by the client, so that it cannot be taken for a later one's.
            self._consumer.incremental_unassign([one.start])

    def _is_read(self, one: Progress) -> bool:
        """Return whether this assignment of the partition is neither finished nor stopped."""
        return self._unfinished.get(one.key) is one

    def _look_into_quiet_topics(self) -> None:
        """Raise if a topic where nothing moves is deleted or forbidden."""
        if (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + POSITIONS_EVERY_S
        due = {topic for topic, _ in self._unfinished if self._look_at[topic] <= now}
        if due:
            check_topics(self._settings, due, timeout_s=LOOK_TIMEOUT_S)
            self._look_at.update(dict.fromkeys(due, time.monotonic() + STILL_QUIET_S))

    def _check_open(self) -> None:
        self._home.check("a reader")
        invariant(self._is_open, "a RangeReader reads inside its `with` block")

    def _open_consumer(self) -> ck.Consumer:
        self._check_open()
        if self._consumer is None:
            config = self._topic_ids.configured(self._config)
            self._consumer = open_client(ck.Consumer, config, self._reasons, lines=self._topic_ids)
        return self._consumer
