"""The loop of an ordered read: read, hold, release and commit records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from kafka_ordered_ops.core.cluster.cluster_facts import partitions_of
from kafka_ordered_ops.core.cluster.out_of_range import OnOutOfRange
from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    RecordsLostError,
    TopicRecreatedError,
    UnknownTopicError,
    say_how_to_go_on,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.release.ordered_release import Order, OrderedRelease, Released
from kafka_ordered_ops.core.release.parts import part_sizes
from kafka_ordered_ops.core.release.sorting import Batch
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.kafka.ports import (
    LookupDoor,
    ReaderDoor,
    open_lookup,
    open_reader,
)
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.folder import temporary_folder
from kafka_ordered_ops.ordered.group_part import GroupPart
from kafka_ordered_ops.ordered.partitions.moves import Moves
from kafka_ordered_ops.ordered.partitions.partitions import Partitions
from kafka_ordered_ops.ordered.partitions.starts import Starts, check_exist
from kafka_ordered_ops.ordered.partitions.state import PartitionState
from kafka_ordered_ops.ordered.partitions.unclaimed import unclaimed
from kafka_ordered_ops.ordered.question import Question
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA, with_late
from kafka_ordered_ops.ordered.same_topics import SameTopics
from kafka_ordered_ops.ordered.spill import SpillFiles
from kafka_ordered_ops.ordered.watch import EVERY_S, EVERY_S_MIN, Watch

#: The group id of a read without a group, for quotas and logs of brokers. Nothing joins this group.
NO_GROUP: Final = "kafka-ordered-ops-read"
#: Records read in one turn: with fewer, sorting costs more for each record.
TURN_RECORDS: Final = 4_000
#: While records arrive without a pause, they are released once this many have arrived.
RELEASE_RECORDS: Final = 32_768
#: A record stamped this far after now comes from a wrong clock.
FUTURE_MS: Final = 3_600_000
#: The interval between two reports of progress.
PROGRESS_EVERY_S: Final = 0.2
#: The pause before new partitions are started again, after the cluster was unavailable.
BEGIN_AGAIN_S: Final = 1.0
#: The interval between two polls of the group while a paused partition holds back all others, and memory is full.
HELD_PAUSE_S: Final = 0.1

_log = logging.getLogger(__name__)


class Engine:
    """One ordered read, from its start; a context manager, for one thread at a time."""

    def __init__(self, settings: ClientSettings, question: Question) -> None:
        self._settings = settings
        self._question = question
        self._resources = ExitStack()
        self._partitions: Partitions
        self._starts = Starts(
            question.starts.bound_of_topic,
            question.isolation,
            question.starts.by_partition,
            question.on_data_loss,
        )
        #: New partitions that are not started yet.
        self._new: set[TopicPartition] = set()
        self._begin_at = 0.0
        #: The partitions that existed when the read started.
        self._at_open: frozenset[TopicPartition] = frozenset()
        self._topics = SameTopics(self._forget_topic)
        self._release: OrderedRelease
        self._reader: ReaderDoor
        self._watch: Watch | None = None
        #: For a read with an end: checks from time to time that its topics are still the same.
        self._lookup: LookupDoor | None = None
        self._group: GroupPart | None = None
        #: The last returned batch, which the caller may still be processing.
        self._returned: Batch | None = None
        #: Whether positions, held records and `_returned` agree. An error in the middle of a step breaks that.
        self._is_even = True
        #: The exact offsets, if the read ends at a time.
        self.plan = question.plan
        self._reported_at = time.monotonic()
        #: For how long reading has returned nothing, without the caller's own time.
        self._quiet_s = 0.0

    def __enter__(self) -> Engine:
        # PyArrow imports pandas, if it is installed, with its first array of numbers. Do that before records wait.
        pa.scalar(0)
        with ExitStack() as stack:
            self._open(stack)
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._resources:
            if self._group is None:
                return
            if self._watch is not None and self._watch.is_blind:
                _log.warning("the cluster is unavailable: the last records will be read again")
            else:
                commits = self._group.commits
                self._commit(partial(commits.at_end, quietly=exc_info[:1] != (None,)))

    def _open(self, stack: ExitStack) -> None:
        question = self._question
        folders = stack.enter_context(ExitStack())
        spill = SpillFiles(lambda: folders.enter_context(temporary_folder(question.limits.folder)))
        if question.window is not None:
            self.plan = unclaimed(self._settings, question.window, NO_GROUP, now_ms=self.now_ms())
        self._release = OrderedRelease(
            RECORD_SCHEMA if self.plan is None else STAGE_SCHEMA,
            order=Order(question.ordering.by),
            max_out_of_orderness_ms=question.slack_ms,
            limits=question.held,
            spill=spill,
        )
        stack.callback(self._release.close)
        self._partitions = Partitions(self._release, follow=question.follow)
        group = NO_GROUP if question.member is None else question.member.group_id
        if self.plan is not None:
            group = self.plan.group_id
            self._topics.ids = dict(self.plan.topic_ids)
            wanted = self._partitions.plan(self.plan)
        else:
            self._find_topics()
            wanted = self._partitions.unread()
        fed = self._release.columns.fed.names
        self._reader = stack.enter_context(
            open_reader(
                self._settings,
                group,
                question.isolation,
                wanted,
                columns=[name for name in RECORD_SCHEMA.names if name in fed],
                batch_records=TURN_RECORDS,
                stall_timeout_s=question.limits.stall_timeout_s,
                topic_ids=self._topics.ids,
            )
        )
        self._partitions.open(self._reader)
        if question.follow:
            self._open_tail(stack)
        else:
            self._lookup = stack.enter_context(
                open_lookup(self._settings, timeout_s=question.limits.timeout_s)
            )

    def _open_tail(self, stack: ExitStack) -> None:
        question = self._question
        if question.member is not None:
            group = GroupPart(question.member, self._done_up_to)
            group.open(stack, self._settings, self._topics.ids)
            self._group = group
        self._watch = stack.enter_context(
            Watch(
                self._settings,
                question.topics,
                question.exclude,
                question.isolation,
                every_s=max(EVERY_S_MIN, min(EVERY_S, question.ordering.grace_ms / 2_000)),
                timeout_s=question.limits.timeout_s,
                clock=question.clock,
            )
        )

    def _find_topics(self) -> None:
        """Look up the topics; without a group, start all of their partitions."""
        question = self._question
        with open_lookup(self._settings, timeout_s=question.limits.timeout_s) as lookup:
            topics = lookup.selected(question.topics, question.exclude)
            self._topics.check(topics)
            partitions = partitions_of(topics)
            self._at_open = frozenset(partitions)
            check_exist(question.starts.by_partition, self._at_open)
            if question.member is not None:
                return
            starts = self._starts.of(lookup, partitions, now_ms=self.now_ms())
        for tp, (start, end) in starts.items():
            self._partitions.add(tp, start, end)

    # --- the loop ----------------------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch | None]:
        """Yield batches in order, and `None` whenever no records can be released now.

        Once the caller requests the next batch, the previous one counts as processed.
        """
        while not self.is_finished:
            yield from self._rounds()
            self._check_same_topics(at_end=True)
            # The caller may still pause a partition here, or seek back.
            yield from self._released()
        self._report_progress(at_end=True)

    @property
    def is_finished(self) -> bool:
        """Whether all wanted records have been read."""
        return not self._question.follow and self._partitions.is_finished

    def _rounds(self) -> Iterator[pa.RecordBatch | None]:
        """Read and release until all wanted records have been read."""
        waiting = 0
        while not self.is_finished:
            self._poll_group()
            self._partitions.moves.apply_seeks()
            with self._moving():
                self._look()
                self._begin_new()
                count = self._read()
            waiting += count
            if count >= TURN_RECORDS and waiting < RELEASE_RECORDS and not self._release.is_full:
                continue
            waiting = 0
            self._check_same_topics(at_end=False)
            yield from self._released()
            if not self._partitions.moves.holds_all:
                with self._moving():
                    self._release.relieve()
            self._report_progress()
            if self._group is not None:
                self._commit(self._group.commits.if_due)
            yield None

    def _released(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches that can be released now. These may be many, so the group is polled between them."""
        question = self._question
        ready = self._release.ready(
            rows_max=question.batch_size, bytes_max=question.limits.batch_bytes_max
        )
        while True:
            with self._moving():
                released = next(ready, None)
                if released is None:
                    return
                rows = self._part_of(released)
            yield with_late(rows, released.is_late)
            self._returned = None
            if self._group is not None:
                self._poll_group()
                self._commit(self._group.commits.if_due)

    def _part_of(self, released: Released) -> pa.RecordBatch:
        """Return the records of the next batch, or only the first of them if they exceed a limit."""
        rows = released.batch.rows()
        question = self._question
        sizes = [*part_sizes(rows, question.batch_size, question.limits.batch_bytes_max)]
        self._returned = released.batch
        if len(sizes) > 1:
            self._returned = self._release.cut(released, sizes)
        return rows.slice(0, sizes[0])

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Mark a step that moves records: after an error in it, progress stays where it was before the step."""
        self._is_even = False
        yield
        self._is_even = True

    def _read(self) -> int:
        """Read one turn; return the number of records."""
        if self._release.is_full and self._partitions.moves.holds_all:
            # Until the paused partition resumes, more records would only be held.
            time.sleep(HELD_PAUSE_S)
            return 0
        began = time.monotonic()
        try:
            turns = self._reader.turn()
        except TopicRecreatedError as error:
            self._forget_topic(error.topic)
            raise
        except (UnknownTopicError, RecordsLostError) as error:
            if isinstance(error, RecordsLostError) and self._continue_in_log(error):
                return 0
            if isinstance(error, RecordsLostError) and self._question.member is not None:
                say_how_to_go_on(error, self._question.member.group_id)
            self._leave_deleted(error)
            return 0
        newest_ms = self.now_ms() + FUTURE_MS if self._question.follow else None
        count, moved = self._partitions.take(turns, newest_ms=newest_ms)
        self._quiet_s = 0.0 if moved else self._quiet_s + time.monotonic() - began
        if not self._question.follow and self._quiet_s > self._question.limits.stall_timeout_s:
            self._reader.check_not_stalled()
        return count

    def _report_progress(self, *, at_end: bool = False) -> None:
        now, progress = time.monotonic(), self._question.progress
        if progress is None or not (at_end or now - self._reported_at > PROGRESS_EVERY_S):
            return
        self._reported_at = now
        progress(*self._partitions.progress)

    # --- the logs ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Apply the last snapshot of the watch."""
        snapshot = None if self._watch is None else self._watch.take()
        if snapshot is None:
            return
        self._topics.check(snapshot.topics)
        settled_ms = snapshot.at_ms - self._question.wait_ms
        for tp, end in snapshot.ends.items():
            self._partitions.saw_end(tp, end, settled_ms if tp in snapshot.settled else None)
        if self._group is None:
            self._leave(self._partitions.names - snapshot.ends.keys())
            self._new |= snapshot.ends.keys() - self._partitions.names
        else:
            self._group.subscribe(snapshot.topics)

    def _check_same_topics(self, *, at_end: bool) -> None:
        if self._lookup is not None:
            self._topics.ask(self._lookup, at_end=at_end)

    def _forget_topic(self, name: str) -> None:
        """Forget a recreated topic, and commit its start, where the next read then begins."""
        partitions = [tp for tp in self._partitions.names if tp.topic == name]
        if self._group is not None:
            self._group.commits.commit_starts(partitions)
        for tp in partitions:
            self._forget(tp)

    def _leave_deleted(self, error: KafkaOrderedOpsError) -> None:
        """Stop reading deleted topics that matched patterns; raise the error if it has another cause."""
        question = self._question
        names = {tp.topic for tp in (*self._partitions.names, *self._new)}
        if self._group is not None:
            names |= self._group.topics
        try:
            with open_lookup(self._settings, timeout_s=question.limits.timeout_s) as lookup:
                topics = lookup.existing(names)
        except KafkaOrderedOpsError:
            raise error from None
        self._topics.check(topics)
        gone = names - topics.keys()
        if not (question.follow and gone) or not gone.isdisjoint(question.topics):
            raise error
        _log.info("deleted topics are no longer read: %s", ", ".join(sorted(gone)))
        self._leave([tp for tp in (*self._partitions.names, *self._new) if tp.topic in gone])

    def _begin_new(self) -> None:
        """Start to read new partitions: from the committed offset if the group has one."""
        new = sorted(self._new)
        for tp in new:
            # Later records wait for this partition while its start is looked up.
            self._release.add(tp)
        if not new or time.monotonic() < self._begin_at:
            return
        try:
            committed = {} if self._group is None else self._group.committed(new)
            with open_lookup(self._settings, timeout_s=self._question.limits.timeout_s) as lookup:
                starts = self._starts.of_new(
                    lookup, new, self._at_open, now_ms=self.now_ms(), committed=committed
                )
        except UnknownTopicError as error:
            self._leave_deleted(error)
            return
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise
            _log.info("new partitions are started later: %s", error)
            self._begin_at = time.monotonic() + BEGIN_AGAIN_S
            return
        for tp, (start, end) in starts.items():
            self._new.discard(tp)
            self._partitions.add(tp, start, end)
            if (offset := committed.get(tp)) is not None:
                self._partitions[tp].committed = offset.offset
            self._reader.add(tp, OffsetSet.of((start, INT64_MAX)))
        if self._group is not None:
            self._group.report_started({tp: start for tp, (start, _) in starts.items()})

    def _leave(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading partitions; their held records are still released."""
        for tp in list(partitions):
            self._partitions.leave(tp)
            self._forget(tp)

    def _forget(self, tp: TopicPartition) -> None:
        self._new.discard(tp)
        self._partitions.forget(tp)
        if self._group is not None:
            self._group.commits.forget(tp)

    # --- pause and seek -------------------------------------------------------------------------------

    @property
    def moves(self) -> Moves:
        """The paused and moved partitions."""
        return self._partitions.moves

    @property
    def in_callback(self) -> bool:
        """Whether a callback of the user is running."""
        return self._group is not None and self._group.in_callback

    def pause(self, partitions: Collection[TopicPartition], *, holds: bool) -> None:
        """Pause reading of partitions until they resume; raise `ConfigError` for partitions that are not read."""
        self._partitions.moves.pause(partitions, holds=holds)
        for tp in partitions:
            self._partitions.unsettle(tp)

    def seek(self, bounds: Mapping[TopicPartition, Bound]) -> dict[TopicPartition, int]:
        """Continue at other offsets; return them. Raises like `Starts.of`, and `ConfigError` for unread partitions."""
        self._partitions.moves.check_read(bounds)
        with open_lookup(self._settings, timeout_s=self._question.limits.timeout_s) as lookup:
            starts = replace(self._starts, exact=bounds)
            places = starts.of(lookup, sorted(bounds), now_ms=self.now_ms())
        positions = {tp: start for tp, (start, _) in places.items()}
        self._partitions.moves.seek(positions)
        for tp, start in positions.items():
            self._partitions.unsettle(tp)
            self._partitions[tp].start = start
            if self._returned is not None:
                # A caller that seeks is done with the partition's records.
                self._returned = self._release.without(tp, self._returned)
        return positions

    def _continue_in_log(self, error: RecordsLostError) -> bool:
        """Continue in partitions whose position is out of range, unless that must fail; return whether any continue."""
        question = self._question
        if question.on_data_loss is OnOutOfRange.FAIL:
            return False
        with open_lookup(self._settings, timeout_s=question.limits.timeout_s) as lookup:
            return self._partitions.continue_in_log(error, question.on_data_loss, lookup)

    # --- the group -----------------------------------------------------------------------------------

    def _poll_group(self) -> None:
        """Poll the group: drop lost partitions at once; gained ones start before the next turn."""
        if self._group is None:
            return
        try:
            change = self._group.poll()
        except UnknownTopicError as error:
            self._leave_deleted(error)
            return
        if change is None:
            return
        with self._moving():
            for tp in change.lost:
                if tp in self._partitions or tp in self._new:
                    self._partitions.lose(tp)
                    self._forget(tp)
            self._new |= change.gained

    def _done_up_to(self) -> Mapping[TopicPartition, int]:
        return self._partitions.done_up_to(self._returned, is_even=self._is_even)

    def commit(self) -> None:
        """Commit the processed records; raise the `CommitError` family."""
        if self._group is None:
            raise AssertionError("a read without a group commits nothing")
        self._commit(self._group.commits.now)

    def _commit(self, commit: Callable[[], None]) -> None:
        """Make a commit; leave out deleted topics that matched patterns."""
        while True:
            try:
                return commit()
            except UnknownTopicError as error:
                self._leave_deleted(error)

    # --- state -----------------------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Whether every partition has been read up to its end at the time when it was found."""
        is_known = bool(self._partitions.names or self._group is None) and not self._new
        return is_known and self._partitions.is_live

    def states(self) -> list[PartitionState]:
        """Return the state of each partition, by name; for any thread."""
        states = self._partitions.states()
        if self._group is not None:
            for state in states:
                if (stored := self._group.commits.stored(state.tp)) is not None:
                    state.committed = stored
        return states

    def now_ms(self) -> int:
        """Return the time of the reader's clock, in ms."""
        return int(self._question.clock() * 1_000)
