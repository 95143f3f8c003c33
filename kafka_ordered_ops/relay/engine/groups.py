"""The client groups that read at this server: their start offsets, the records read for them, and their waiting reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Final

from kafka_ordered_ops.core.cluster.reading import unreadable_in
from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    NotReadyError,
    RecordsLostError,
    RelayLimitError,
    RelayUnavailableError,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.relay.log_records import Opened
from kafka_ordered_ops.core.relay.serving import Serving
from kafka_ordered_ops.core.types import OnDataLoss, TopicPartition
from kafka_ordered_ops.relay.engine.burying import Burying
from kafka_ordered_ops.relay.engine.group_limits import GroupLimits
from kafka_ordered_ops.relay.engine.requests import Start
from kafka_ordered_ops.relay.engine.server import Server, now_ms
from kafka_ordered_ops.relay.leases.feed import Fed, Feed
from kafka_ordered_ops.relay.leases.handout import BYTES_LEAST, BYTES_MAX, Handout
from kafka_ordered_ops.relay.leases.partition import Partition
from kafka_ordered_ops.relay.leases.reads import Read, not_stored
from kafka_ordered_ops.relay.log import acknowledged

#: How often gaps are acknowledged and dead letters are written.
_TEND_EVERY_S: Final = 0.2
#: After this time without a read, no records are read for a group; its next read resumes where it was.
_IDLE_S: Final = 300.0
#: The interval between two attempts to read a partition that cannot be read.
_AGAIN_S: Final = 10.0
#: How long a window that has begun in only some partitions of a topic counts as being opened.
COMPLETE_AFTER_S: Final = 60.0

_log = logging.getLogger(__name__)


class Groups:
    """Hand out records to the groups that read them."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        self._server = server
        self._feeds: dict[str, Feed] = {}
        #: Times of `time.monotonic`.
        self._read_at: dict[str, float] = {}
        self._recheck_at: dict[str, float] = {}
        #: Windows that have not begun in a partition, and since when this is known.
        self._incomplete: dict[tuple[str, TopicPartition], float] = {}
        #: Errors that delay the beginning of groups in a partition: retried while a client reads.
        self._delays: dict[tuple[str, TopicPartition], KafkaOrderedOpsError] = {}
        self._tend_at = 0.0
        #: The partitions that existed when this server started: later ones are read from their start.
        self.at_start: frozenset[TopicPartition] = frozenset()
        topic = server.options.dead_letter_topic
        self._burying = None if topic is None else Burying(server, topic, stack)
        self._limits = GroupLimits(server, _IDLE_S)

    def close(self) -> None:
        """Stop reading for all groups."""
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()

    # --- reads ---------------------------------------------------------------------------------------

    def read(self, read: Read) -> None:
        """Let a read wait for records of its group; raise `RelayLimitError` if that is one group too many."""
        server = self._server
        if server.leasing.signer is None:
            server.answers.fail(
                read.future, NotReadyError("this server has just started. Call again")
            )
            return
        # No records are read for a window that is done.
        if read.group not in self._feeds and not self.is_done(read.group):
            self._limits.check(read.group, read.reader, self._feeds)
        self._read_at[read.group] = time.monotonic()
        server.waiting.add(read)
        server.dirty.add(read.group)
        self._begin(read.group, read.topics)

    def serve(self) -> None:
        """Answer the reads that have records, and those of windows that are done."""
        server = self._server
        if not server.dirty:
            return
        dirty, now = server.dirty, now_ms()
        server.dirty = set()
        for group in dirty:
            if not server.waiting.of(group):
                continue
            server.leasing.serve(group, now)
            queue = server.waiting.of(group)
            if not queue:
                continue
            if self.is_done(group):
                while queue:
                    self._answer_empty(queue.popleft(), is_done=True)
                continue
            change_ms = server.leasing.next_change_ms(group, now)
            if change_ms is None:
                self._recheck_at.pop(group, None)
            else:
                self._recheck_at[group] = change_ms

    def look(self) -> None:
        """Do time-driven work: answer reads that have waited long enough, process ended leases, retry failed reading."""
        server = self._server
        for read in server.waiting.overdue(self._is_known):
            self._answer_empty(read, is_done=self.is_done(read.group))
        server.waiting.give_up()
        now = now_ms()
        server.dirty |= server.leasing.limited
        server.leasing.limited.clear()
        for group in server.waiting.groups():
            self._read_at[group] = time.monotonic()
            self._begin(group, _topics_of(server.waiting.of(group)))
            if self._recheck_at.get(group, now + 1) <= now:
                server.dirty.add(group)
        if self._burying is not None:
            self._burying.turn()
        if time.monotonic() >= self._tend_at:
            self._tend_at = time.monotonic() + _TEND_EVERY_S
            self._tend()

    def due_at(self) -> float:
        """Return the `time.monotonic` time when `look` is due if nothing happens before."""
        server, now = self._server, time.monotonic()
        times = [server.waiting.due_at()]
        if server.leasing.limited or (self._burying is not None and self._burying.is_writing):
            times.append(now)
        if self._feeds:
            times.append(self._tend_at)
        ends_ms = [self._recheck_at.get(group) for group in server.waiting.groups()]
        if (
            first_ms := min((end_ms for end_ms in ends_ms if end_ms is not None), default=None)
        ) is not None:
            times.append(now + (first_ms - now_ms()) / 1_000)
        return min(times)

    def is_done(self, group: str) -> bool:
        """Return whether every offset of a window is acknowledged; False for a group without an end."""
        partitions = self._server.partitions.values()
        own = [partition for partition in partitions if _is_window(partition, group)]
        if not own:
            return False
        topics = {partition.tp.topic for partition in own}
        # A window is opened in all partitions of its topics, even where it has no records.
        if len(own) < sum(partition.tp.topic in topics for partition in partitions):
            return False
        return all(partition.state.groups[group].is_done for partition in own)

    def _is_known(self, read: Read) -> bool:
        """Return whether an empty answer to a read is reliable: a partition not read yet may be full of records."""
        return read.is_limited or self._unknown(read) is None

    def _unknown(self, read: Read) -> TopicPartition | None:
        """Return a partition of this server whose records for a read are not known yet."""
        group = read.group
        for partition in self._server.partitions.values():
            if not partition.is_mine or not read.wants(partition.tp.topic):
                continue
            handout = partition.handouts.get(group)
            if handout is not None:
                is_known = handout.is_known
            else:
                progress = partition.state.groups.get(group)
                # A window that has not begun here has no records here, or is being opened.
                is_known = (
                    self._has_window(group)
                    if progress is None or not progress.is_opened
                    else progress.is_done
                )
            if not is_known:
                return partition.tp
        return None

    def _answer_empty(self, read: Read, *, is_done: bool) -> None:
        read.is_over = True
        problem = None if is_done else self._problem(read)
        if problem is None:
            self._server.answers.give(read.future, ([], is_done))
        else:
            self._server.answers.fail(read.future, problem)

    def _problem(self, read: Read) -> KafkaOrderedOpsError | None:
        """Return the error that keeps this server from handing out records of one of its partitions."""
        for partition in self._server.partitions.values():
            if partition.is_assigned and read.wants(partition.tp.topic):
                if partition.problem is not None:
                    return partition.problem
                handout = partition.handouts.get(read.group)
                if handout is not None and handout.problem is not None:
                    return handout.problem
        if read.is_limited and read.reader is not None:
            return RelayLimitError(
                f"the token {read.reader.name!r} has {read.reader.pending_max:,} records of this server under leases, which is its "
                "limit 'pending': acknowledge or cancel some, or raise the limit"
            )
        if read.is_unstored:
            return not_stored()
        if (tp := self._unknown(read)) is not None:
            delay = self._delays.get((read.group, tp))
            why = "the group has just begun, or the brokers are away" if delay is None else delay
            return RelayUnavailableError(
                f"{tp} was not checked in time for group {read.group}: {why}. Read again"
            )
        return None

    # --- beginnings ----------------------------------------------------------------------------------

    def opened(self, partition: Partition, group: str) -> None:
        """Process a group's beginning in a partition, once it was read from the log."""
        partition.opening.discard(group)
        if group in self._feeds:
            self._ensure(partition, group)

    def _begin(self, group: str, topics: frozenset[str] | None) -> None:
        """Start to read for a group, in the requested topics only: its reader may have no rights to others."""
        for partition in self._server.partitions.values():
            if topics is None or partition.tp.topic in topics:
                self._ensure(partition, group)

    def _ensure(self, partition: Partition, group: str) -> None:
        """Read a partition for a group from its progress, or look up where the group begins."""
        if not partition.is_mine or group in partition.handouts or group in partition.opening:
            return
        server = self._server
        progress = partition.state.groups.get(group)
        if progress is not None and progress.is_opened:
            if progress.is_done:
                return
            options = server.options
            partition.handouts[group] = Handout(
                partition.tp,
                group,
                progress,
                Serving(
                    partition.state,
                    group,
                    attempts_max=None if self._burying is None else options.attempts_max,
                ),
                self._feed(group),
                records_max=options.records_max,
                bytes_max=self._bytes_each(),
            )
            server.dirty.add(group)
        elif server.is_replayed and not self._has_window(group):
            self._feed(group)
            partition.opening.add(group)
            self._look_up_start(partition, group)
        elif server.is_replayed:
            self._complete(partition, group)

    def _look_up_start(self, partition: Partition, group: str) -> None:
        server, options = self._server, self._server.options

        def failed(error: KafkaOrderedOpsError) -> None:
            partition.opening.discard(group)
            _log.warning("group %s cannot begin in %s: %s", group, partition.tp, error)
            if error.retriable:
                self._delays[group, partition.tp] = error
            else:
                for read in list(server.waiting.of(group)):
                    if read.wants(partition.tp.topic):
                        read.is_over = True
                        server.answers.fail(read.future, error)

        server.requests.ask(
            lambda: server.requests.start_of(
                group,
                partition.tp,
                options.starting_offsets,
                options.isolation,
                is_new=partition.tp not in self.at_start,
            ),
            lambda start: self._open(partition, group, start),
            failed,
        )

    def _open(self, partition: Partition, group: str, start: Start) -> None:
        self._delays.pop((group, partition.tp), None)
        if not partition.is_mine:
            partition.opening.discard(group)
            return
        # Before the beginning: once that is read back, these are too.
        for done in acknowledged(group, start.done):
            self._server.log.append(partition.tp, done, lambda _: None)
        self._write_opened(
            partition, Opened(group, start.offset, None, self._limits.reader_of(group))
        )

    def _write_opened(self, partition: Partition, record: Opened) -> None:
        def report(error: KafkaOrderedOpsError | None) -> None:
            if error is not None:
                _log.warning("group %s in %s is begun later: %s", record.group, partition.tp, error)
                partition.opening.discard(record.group)

        self._server.log.append(partition.tp, record, report)

    def _complete(self, partition: Partition, group: str) -> None:
        """Open a window in a partition that was added later, where it has no records."""
        now = time.monotonic()
        since = self._incomplete.setdefault((group, partition.tp), now)
        # Until then, another call may still be opening it.
        if now - since >= COMPLETE_AFTER_S:
            partition.opening.add(group)
            del self._incomplete[group, partition.tp]
            self._write_opened(partition, Opened(group, 0, EMPTY_SET))

    def _has_window(self, group: str) -> bool:
        return any(_is_window(partition, group) for partition in self._server.partitions.values())

    # --- what is read --------------------------------------------------------------------------------

    def _feed(self, group: str) -> Feed:
        if group not in self._feeds:
            server = self._server
            readers = (read.reader for read in server.waiting.of(group))
            self._limits.add(group, next(readers, None))

            def on_turn(fed: list[Fed], noted: Callable[[], None]) -> None:
                server.post(lambda: self._arrived(group, fed, noted))

            self._feeds[group] = Feed(
                server.settings,
                group,
                server.options.isolation,
                finds_ends=True,
                on_turn=on_turn,
                on_failure=lambda tp, number, error: server.post(
                    lambda: self._failed(group, tp, number, error)
                ),
            )
        return self._feeds[group]

    def _arrived(self, group: str, fed: list[Fed], noted: Callable[[], None]) -> None:
        noted()
        for part in fed:
            handout = self._server.partitions[part.tp].handouts.get(group)
            if handout is not None:
                handout.arrived(part)
        self._server.dirty.add(group)

    def _failed(
        self, group: str, tp: TopicPartition, number: int, error: KafkaOrderedOpsError
    ) -> None:
        handout = self._server.partitions[tp].handouts.get(group)
        if handout is None or not handout.is_current(number):
            return
        is_passed = self._server.options.on_data_loss is OnDataLoss.WARN
        if is_passed and (gone := handout.lose(_lost(error, tp))):
            _log.warning("group %s: %d offsets are lost: %s", group, gone.count, error)
            return
        _log.error("group %s cannot read %s: %s", group, tp, error)
        handout.failed(error, time.monotonic() + _AGAIN_S)

    # --- now and then --------------------------------------------------------------------------------

    def _bytes_each(self) -> int:
        """Return how many bytes each group may hold in each partition, so that every group has its share."""
        count = sum(len(partition.handouts) for partition in self._server.partitions.values())
        each = self._server.options.held_bytes_max // max(count, 1)
        return min(max(each, BYTES_LEAST), BYTES_MAX)

    def _tend(self) -> None:
        now, bytes_each = time.monotonic(), self._bytes_each()
        for partition in self._server.partitions.values():
            for group, handout in list(partition.handouts.items()):
                if not partition.is_mine:
                    continue
                handout.bytes_max = bytes_each
                self._acknowledge_gaps(partition, handout)
                if self._burying is not None:
                    self._burying.bury(partition, handout)
                if handout.problem is not None and now >= handout.again_at:
                    handout.again()
                if handout.progress.is_done:
                    handout.close()
                    del partition.handouts[group]
        for group, feed in list(self._feeds.items()):
            if now - self._read_at.get(group, 0.0) >= _IDLE_S or self.is_done(group):
                for partition in self._server.partitions.values():
                    if group in partition.handouts:
                        partition.handouts.pop(group).close()
                    self._delays.pop((group, partition.tp), None)
                feed.close()
                del self._feeds[group]
                self._read_at.pop(group, None)
                self._recheck_at.pop(group, None)
                self._limits.remove(group)

    def _acknowledge_gaps(self, partition: Partition, handout: Handout) -> None:
        gaps = handout.take_gaps()
        if not gaps:
            return

        def report(error: KafkaOrderedOpsError | None) -> None:
            if error is not None:
                handout.put_back_gaps(gaps)

        for record in acknowledged(handout.group, gaps):
            self._server.log.append(partition.tp, record, report)


def _lost(error: KafkaOrderedOpsError, tp: TopicPartition) -> OffsetSet:
    """Return the offsets of a partition that are permanently unreadable."""
    if isinstance(error, RecordsLostError):
        return OffsetSet.from_ranges((start, end) for start, end in error.lost[str(tp)])
    return unreadable_in(error, [tp]).get(tp, EMPTY_SET)


def _is_window(partition: Partition, group: str) -> bool:
    progress = partition.state.groups.get(group)
    return progress is not None and progress.is_window


def _topics_of(reads: Iterable[Read]) -> frozenset[str] | None:
    """Return the topics that the reads request; None for all topics."""
    topics: set[str] = set()
    for read in reads:
        if read.topics is None:
            return None
        topics |= read.topics
    return frozenset(topics)
