"""The client groups that read at this server: where they begin, what is read for them, and their waiting reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Final

from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    NotReadyError,
    RecordsLostError,
    RelayLimitError,
    RelayUnavailableError,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.reading import unreadable_in
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

#: Gaps are acknowledged, and dead letters looked for, this often.
_TEND_EVERY_S: Final = 0.2
#: A group without a read for so long is read no more; its next read begins again where it was.
_IDLE_S: Final = 300.0
#: Between two attempts to read what cannot be read.
_AGAIN_S: Final = 10.0
#: A window that has begun in some of the partitions of a topic is being opened, for so long.
COMPLETE_AFTER_S: Final = 60.0

_log = logging.getLogger(__name__)


class Groups:
    """Hands out records to the groups that ask for them."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        self._server = server
        self._feeds: dict[str, Feed] = {}
        #: Of `time.monotonic`.
        self._read_at: dict[str, float] = {}
        self._recheck_at: dict[str, float] = {}
        #: Windows that have not begun in a partition, and since when that is known.
        self._incomplete: dict[tuple[str, TopicPartition], float] = {}
        #: What keeps groups from beginning in a partition: tried again while somebody reads.
        self._delays: dict[tuple[str, TopicPartition], KafkaOrderedOpsError] = {}
        self._tend_at = 0.0
        #: Those that existed when this server began: later ones are read whole.
        self.at_start: frozenset[TopicPartition] = frozenset()
        topic = server.options.dead_letter_topic
        self._burying = None if topic is None else Burying(server, topic, stack)
        self._limits = GroupLimits(server, _IDLE_S)

    def close(self) -> None:
        """Read for nobody any more."""
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()

    # --- reads ---------------------------------------------------------------------------------------

    def read(self, read: Read) -> None:
        """Let a read wait for records of its group; raise `RelayLimitError` where that is one group too many."""
        server = self._server
        if server.leasing.signer is None:
            server.answers.fail(
                read.future, NotReadyError("this server has just started. Call again")
            )
            return
        # Nothing is read for a window that is done.
        if read.group not in self._feeds and not self.is_done(read.group):
            self._limits.check(read.group, read.reader, self._feeds)
        self._read_at[read.group] = time.monotonic()
        server.waiting.add(read)
        server.dirty.add(read.group)
        self._begin(read.group, read.topics)

    def serve(self) -> None:
        """Answer the reads for which there are records, and those of windows that are done."""
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
        """Do what time asks for: reads that have waited long enough, leases that ended, what cannot be read now."""
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

    def is_done(self, group: str) -> bool:
        """Return whether every offset of a window is acknowledged; False for a group without an end."""
        partitions = self._server.partitions.values()
        mine = [one for one in partitions if _is_window(one, group)]
        if not mine:
            return False
        topics = {one.tp.topic for one in mine}
        # A window is opened in all partitions of its topics, also in those where it has nothing.
        if len(mine) < sum(one.tp.topic in topics for one in partitions):
            return False
        return all(one.state.groups[group].is_done for one in mine)

    def _is_known(self, read: Read) -> bool:
        """Return whether nothing is there for a read: what was not looked at may be full of records."""
        return read.is_limited or self._unknown(read) is None

    def _unknown(self, read: Read) -> TopicPartition | None:
        """Return a partition of this server of which it is not known what there is for a read."""
        group = read.group
        for one in self._server.partitions.values():
            if not one.is_mine or not read.wants(one.tp.topic):
                continue
            handout = one.handouts.get(group)
            if handout is not None:
                is_known = handout.is_known
            else:
                progress = one.state.groups.get(group)
                # A window that has not begun here has nothing here, or is being opened.
                is_known = (
                    self._has_window(group)
                    if progress is None or not progress.is_opened
                    else progress.is_done
                )
            if not is_known:
                return one.tp
        return None

    def _answer_empty(self, read: Read, *, is_done: bool) -> None:
        read.is_over = True
        problem = None if is_done else self._problem(read)
        if problem is None:
            self._server.answers.give(read.future, ([], is_done))
        else:
            self._server.answers.fail(read.future, problem)

    def _problem(self, read: Read) -> KafkaOrderedOpsError | None:
        """Return what keeps this server from handing out records of a partition that it has."""
        for one in self._server.partitions.values():
            if one.is_assigned and read.wants(one.tp.topic):
                if one.problem is not None:
                    return one.problem
                handout = one.handouts.get(read.group)
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
                f"{tp} was not looked at in time for group {read.group}: {why}. Read again"
            )
        return None

    # --- beginnings ----------------------------------------------------------------------------------

    def opened(self, partition: Partition, group: str) -> None:
        """A group's beginning in a partition was read in the log."""
        partition.opening.discard(group)
        if group in self._feeds:
            self._ensure(partition, group)

    def _begin(self, group: str, topics: frozenset[str] | None) -> None:
        """Begin to read for a group, in the wanted topics alone: its reader may have no rights to others."""
        for partition in self._server.partitions.values():
            if topics is None or partition.tp.topic in topics:
                self._ensure(partition, group)

    def _ensure(self, partition: Partition, group: str) -> None:
        """Read a partition for a group that asks for it, from where it is; or find out where it begins."""
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
        # Before the beginning: once that is read, this is as well.
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
        """Open a window in a partition that was added after it, where it has nothing."""
        now = time.monotonic()
        since = self._incomplete.setdefault((group, partition.tp), now)
        # Until then, it may still be being opened.
        if now - since >= COMPLETE_AFTER_S:
            partition.opening.add(group)
            del self._incomplete[group, partition.tp]
            self._write_opened(partition, Opened(group, 0, EMPTY_SET))

    def _has_window(self, group: str) -> bool:
        return any(_is_window(one, group) for one in self._server.partitions.values())

    # --- what is read --------------------------------------------------------------------------------

    def _feed(self, group: str) -> Feed:
        if group not in self._feeds:
            server = self._server
            readers = (one.reader for one in server.waiting.of(group))
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
        for one in fed:
            handout = self._server.partitions[one.tp].handouts.get(group)
            if handout is not None:
                handout.arrived(one)
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
        """Return how many bytes each group may hold in each partition: one that holds many leaves the others their share."""
        count = sum(len(one.handouts) for one in self._server.partitions.values())
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
    """Return the offsets of a partition that can never be read."""
    if isinstance(error, RecordsLostError):
        return OffsetSet.from_ranges((start, end) for start, end in error.lost[str(tp)])
    return unreadable_in(error, [tp]).get(tp, EMPTY_SET)


def _is_window(partition: Partition, group: str) -> bool:
    progress = partition.state.groups.get(group)
    return progress is not None and progress.is_window


def _topics_of(reads: Iterable[Read]) -> frozenset[str] | None:
    """Return the topics that any of the reads wants; None: all."""
    found: set[str] = set()
    for one in reads:
        if one.topics is None:
            return None
        found |= one.topics
    return frozenset(found)
