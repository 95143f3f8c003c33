"""The loop of an ordered read: take turns of reading, hold, release, commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import pyarrow as pa

from kafka_ordered_ops.core.cluster_facts import TopicFacts
from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    RecordsLostError,
    TopicRecreatedError,
    UnknownTopicError,
    invariant,
    say_how_to_go_on,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.reading import recreated_while_read
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.release.ordered_release import OrderedRelease
from kafka_ordered_ops.core.release.sorting import Batch
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.facts.window_facts import partitions_of
from kafka_ordered_ops.kafka.ports import (
    LookupDoor,
    MembershipDoor,
    ReaderDoor,
    Turn,
    open_lookup,
    open_member,
    open_reader,
)
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.commits import Commits
from kafka_ordered_ops.ordered.folder import temporary_folder
from kafka_ordered_ops.ordered.question import Question
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA, judged, with_late
from kafka_ordered_ops.ordered.records.pieces import Piece, pieces_of
from kafka_ordered_ops.ordered.spill import SpillFiles
from kafka_ordered_ops.ordered.starts import starts_and_ends, starts_of_new
from kafka_ordered_ops.ordered.state import PartitionState
from kafka_ordered_ops.ordered.watch import EVERY_S, EVERY_S_MIN, Seen, Watch

#: Names a read without a group in quotas and logs of brokers; it is never joined.
NO_GROUP: Final = "kafka-ordered-ops-read"
#: Records taken in one turn: fewer cost more a record on their way through the order.
TURN_RECORDS: Final = 4_000
#: While records come without a pause, they are released once so many have come.
RELEASE_RECORDS: Final = 32_768
#: A record stamped so far after now is an error of a clock.
FUTURE_MS: Final = 3_600_000
#: Between two reports of progress.
PROGRESS_EVERY_S: Final = 0.2
#: Until new partitions are begun again that the cluster, being away, gave no answers about.
BEGIN_AGAIN_S: Final = 1.0

_log = logging.getLogger(__name__)


class Engine:
    """One ordered read, from its start; a context manager, for one thread at a time."""

    def __init__(self, settings: ClientSettings, question: Question) -> None:
        self._settings = settings
        self._asked = question
        self._resources = ExitStack()
        self._partitions: dict[TopicPartition, PartitionState] = {}
        #: Found or gained, and not begun yet.
        self._new: set[TopicPartition] = set()
        self._begin_at = 0.0
        #: What existed when the read began.
        self._at_open: frozenset[TopicPartition] = frozenset()
        self._topic_ids: dict[str, str] = {}
        #: Of a plan.
        self._pieces: dict[TopicPartition, Piece] = {}
        self._release: OrderedRelease
        self._reader: ReaderDoor
        self._watch: Watch | None = None
        #: Of a read that ends, to ask now and then whether its topics are still the same.
        self._lookup: LookupDoor | None = None
        self._same_at = time.monotonic()
        #: Once its position is at the offset, a partition expects nothing stamped before the time.
        self._settled: dict[TopicPartition, tuple[int, int]] = {}
        self._member: MembershipDoor | None = None
        self._subscribed: frozenset[str] = frozenset()
        self._commits: Commits | None = None
        #: Returned, and not done with.
        self._returned: Batch | None = None
        #: Of each partition the first offset not done with, when it was asked for last.
        self._done: dict[TopicPartition, int] = {}
        #: Whether positions, held records and `_returned` agree: not after an error in the middle of a step.
        self._is_even = True
        self._told_at = time.monotonic()
        #: For how long reading has brought nothing; the time of whoever takes the records does not count.
        self._quiet_s = 0.0

    def __enter__(self) -> Engine:
        # PyArrow imports pandas, if it is installed, with its first array of numbers: not while records wait.
        pa.scalar(0)
        with ExitStack() as stack:
            self._open(stack)
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._resources:
            if self._commits is None:
                return
            if self._watch is not None and self._watch.is_blind:
                _log.warning("the cluster is away: the last records will be read again")
            else:
                self._commit(partial(self._commits.at_end, quietly=exc_info[:1] != (None,)))

    def _open(self, stack: ExitStack) -> None:
        asked = self._asked
        folders = stack.enter_context(ExitStack())
        spill = SpillFiles(lambda: folders.enter_context(temporary_folder(asked.temporary_folder)))
        self._release = OrderedRelease(
            RECORD_SCHEMA if asked.plan is None else STAGE_SCHEMA,
            order=asked.order,
            max_out_of_orderness_ms=asked.max_out_of_orderness_ms,
            limits=asked.limits,
            spill=spill,
        )
        stack.callback(self._release.close)
        group = asked.group_id or NO_GROUP
        if asked.plan is not None:
            group = asked.plan.group_id
            wanted = self._plan_pieces(asked.plan)
        else:
            self._find_topics()
            wanted = {
                one.tp: OffsetSet.of((one.start, INT64_MAX if asked.follow else one.end))
                for one in self._partitions.values()
                if not one.is_finished
            }
        self._reader = stack.enter_context(
            open_reader(
                self._settings,
                group,
                asked.isolation,
                wanted,
                columns=[
                    name for name in RECORD_SCHEMA.names if name in self._release.columns.fed.names
                ],
                batch_records=TURN_RECORDS,
                stall_timeout_s=asked.stall_timeout_s,
                topic_ids=self._topic_ids,
            )
        )
        if asked.follow:
            self._open_tail(stack)
        else:
            self._lookup = stack.enter_context(
                open_lookup(self._settings, timeout_s=asked.timeout_s)
            )

    def _open_tail(self, stack: ExitStack) -> None:
        asked = self._asked
        if asked.group_id is not None:
            self._subscribed = frozenset(self._topic_ids)
            self._member = stack.enter_context(
                open_member(
                    self._settings,
                    asked.group_id,
                    self._subscribed,
                    on_revoke=self._revoked,
                    session_timeout_s=asked.session_timeout_s,
                )
            )
            self._commits = Commits(self._member, asked.commit_interval_s, self._done_up_to)
        self._watch = stack.enter_context(
            Watch(
                self._settings,
                asked.topics,
                asked.isolation,
                every_s=max(EVERY_S_MIN, min(EVERY_S, asked.grace_ms / 2_000)),
                timeout_s=asked.timeout_s,
                clock=asked.clock,
            )
        )

    def _plan_pieces(self, plan: WindowPlan) -> dict[TopicPartition, OffsetSet]:
        self._topic_ids = plan.topic_ids
        self._pieces = {piece.tp: piece for piece in pieces_of([plan])}
        wanted = {tp: piece.wanted for tp, piece in self._pieces.items()}
        for tp, offsets in wanted.items():
            self._add(tp, offsets.first, offsets.end)
        return wanted

    def _find_topics(self) -> None:
        """Look up the topics; without a group, all of their partitions are read."""
        asked = self._asked
        with open_lookup(self._settings, timeout_s=asked.timeout_s) as lookup:
            topics = lookup.selected(asked.topics)
            self._topic_ids = {name: facts.topic_id for name, facts in topics.items()}
            partitions = partitions_of(topics)
            self._at_open = frozenset(partitions)
            if asked.group_id is not None:
                return
            found = starts_and_ends(
                lookup,
                partitions,
                asked.bound_of,
                asked.isolation,
                now_ms=self._now_ms(),
                committed={},
            )
        for tp, (start, end) in found.items():
            self._add(tp, start, end)

    # --- the loop ----------------------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch | None]:
        """Yield records in order, with None between them whenever nothing can be released now.

        When the next one is asked for, the one before it is done with.
        """
        waiting = 0
        while self._asked.follow or not all(one.is_finished for one in self._partitions.values()):
            self._take_part()
            with self._moving():
                self._look()
                self._begin_new()
                taken = self._read()
            waiting += taken
            if taken >= TURN_RECORDS and waiting < RELEASE_RECORDS and not self._release.is_full:
                continue
            waiting = 0
            self._check_unchanged(at_end=False)
            yield from self._released()
            with self._moving():
                self._release.relieve()
            self._tell()
            if self._commits is not None:
                self._commit(self._commits.if_due)
            yield None
        self._check_unchanged(at_end=True)
        yield from self._released()
        self._tell(at_end=True)

    def _released(self) -> Iterator[pa.RecordBatch]:
        """Yield what can be released now. That may be very much: between two batches, the group sees a live member."""
        ready = self._release.ready()
        while True:
            with self._moving():
                released = next(ready, None)
                if released is None:
                    return
                rows = released.batch.rows()
                self._returned = released.batch
            yield with_late(rows, released.is_late)
            self._returned = None
            if self._commits is not None:
                self._take_part()
                self._commit(self._commits.if_due)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """While records are on their way. An error then leaves them nowhere, and as far as before it is done with."""
        self._is_even = False
        yield
        self._is_even = True

    def _read(self) -> int:
        """Take one turn; return how many records came."""
        began = time.monotonic()
        try:
            turns = self._reader.turn()
        except TopicRecreatedError as error:
            self._forget_topic(error.topic)
            raise
        except (UnknownTopicError, RecordsLostError) as error:
            if isinstance(error, RecordsLostError) and self._asked.group_id is not None:
                say_how_to_go_on(error, self._asked.group_id)
            self._go_on_without_deleted(error)
            return 0
        taken, moved = self._take(turns)
        for tp, (offset, time_ms) in list(self._settled.items()):
            if self._partitions[tp].position >= offset:
                self._release.advance(tp, time_ms)
                del self._settled[tp]
        self._quiet_s = 0.0 if moved else self._quiet_s + time.monotonic() - began
        if not self._asked.follow and self._quiet_s > self._asked.stall_timeout_s:
            self._reader.check_not_stalled()
        return taken

    def _take(self, turns: list[Turn]) -> tuple[int, bool]:
        """Hold what came; return how many records, and whether anything moved."""
        newest_ms = self._now_ms() + FUTURE_MS if self._asked.follow else None
        taken, moved = 0, False
        for turn in turns:
            one = self._partitions.get(turn.tp)
            if one is None:
                continue
            if turn.records is not None and turn.records.num_rows:
                taken += turn.records.num_rows
                piece = self._pieces.get(turn.tp)
                rows = turn.records if piece is None else judged(turn.records, piece)[0]
                self._release.feed(turn.tp, rows, newest_ms=newest_ms)
            moved = moved or turn.position > one.position
            one.position = max(one.position, turn.position)
            if one.position >= one.live_at:
                one.is_live = True
            if not self._asked.follow and one.position >= one.end:
                one.is_finished = True
                self._release.finish(turn.tp)
        return taken, moved

    def _tell(self, *, at_end: bool = False) -> None:
        now = time.monotonic()
        if self._asked.progress is None or not (at_end or now - self._told_at > PROGRESS_EVERY_S):
            return
        self._told_at = now
        done = sum(one.position - one.start for one in self._partitions.values())
        known = sum(max(one.end, one.position) - one.start for one in self._partitions.values())
        self._asked.progress(done, known)

    # --- the logs ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take note of what the watch has seen."""
        seen = None if self._watch is None else self._watch.take()
        if seen is None:
            return
        self._check_same(seen.topics)
        for tp, end in seen.ends.items():
            if (one := self._partitions.get(tp)) is not None:
                one.end = max(one.end, end)
                if tp in seen.settled:
                    self._settled[tp] = end, seen.at_ms - self._asked.wait_ms
        if self._member is None:
            self._leave(self._partitions.keys() - seen.ends.keys())
            self._new |= seen.ends.keys() - self._partitions.keys()
        else:
            self._subscribe(self._member, seen)

    def _subscribe(self, member: MembershipDoor, seen: Seen) -> None:
        """Take part in the topics that patterns select by now."""
        topics = frozenset(seen.topics)
        if not topics or topics == self._subscribed:
            return
        try:
            member.subscribe(topics)
            self._subscribed = topics
        except KafkaOrderedOpsError as error:
            if not (error.retriable or isinstance(error, UnknownTopicError)):
                raise
            _log.info("subscribing to new topics is tried again: %s", error)

    def _check_same(self, topics: Mapping[str, TopicFacts]) -> None:
        for name, facts in topics.items():
            known = self._topic_ids.setdefault(name, facts.topic_id)
            if known == facts.topic_id:
                continue
            self._forget_topic(name)
            raise recreated_while_read(name, expected=known, found=facts.topic_id)

    def _forget_topic(self, name: str) -> None:
        """Begin a topic that was created again at its start next time; nothing of it is committed by the end."""
        partitions = [tp for tp in self._partitions if tp.topic == name]
        if self._commits is not None:
            self._commits.begin_anew(partitions)
        for tp in partitions:
            self._forget(tp)

    def _check_unchanged(self, *, at_end: bool) -> None:
        """Raise `TopicRecreatedError` if a read up to the end has records of two topics: the client goes on in the new one.

        Nothing more is returned then. A deleted topic may be read up to the end.
        """
        if self._lookup is None or not (at_end or time.monotonic() - self._same_at > EVERY_S):
            return
        try:
            self._check_same(self._lookup.existing(self._topic_ids))
        except KafkaOrderedOpsError as error:
            if at_end or not error.retriable:
                raise
            _log.debug("whether the topics are still the same is asked later: %s", error)
        self._same_at = time.monotonic()

    def _go_on_without_deleted(self, error: KafkaOrderedOpsError) -> None:
        """Leave topics that patterns selected and that were deleted; raise the error if it means anything else."""
        asked = self._asked
        names = {tp.topic for tp in (*self._partitions, *self._new)} | self._subscribed
        try:
            with open_lookup(self._settings, timeout_s=asked.timeout_s) as lookup:
                topics = lookup.existing(names)
        except KafkaOrderedOpsError:
            raise error from None
        self._check_same(topics)
        gone = names - topics.keys()
        if not (asked.follow and gone) or not gone.isdisjoint(asked.topics):
            raise error
        _log.info("deleted topics are no longer read: %s", ", ".join(sorted(gone)))
        self._leave([tp for tp in (*self._partitions, *self._new) if tp.topic in gone])

    def _begin_new(self) -> None:
        """Start to read new partitions: from the committed offset if the group has one."""
        new = sorted(self._new)
        for tp in new:
            # Nothing passes it by while its start is looked up.
            self._release.add(tp)
        if not new or time.monotonic() < self._begin_at:
            return
        try:
            committed = {} if self._member is None else self._member.committed(new)
            with open_lookup(self._settings, timeout_s=self._asked.timeout_s) as lookup:
                starts = starts_of_new(
                    lookup,
                    new,
                    self._at_open,
                    self._asked.bound_of,
                    self._asked.isolation,
                    now_ms=self._now_ms(),
                    committed=committed,
                )
        except UnknownTopicError as error:
            self._go_on_without_deleted(error)
            return
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise
            _log.info("new partitions are begun later: %s", error)
            self._begin_at = time.monotonic() + BEGIN_AGAIN_S
            return
        for tp, (start, end) in starts.items():
            self._new.discard(tp)
            self._add(tp, start, end)
            self._reader.add(tp, OffsetSet.of((start, INT64_MAX)))

    def _add(self, tp: TopicPartition, start: int, end: int) -> None:
        one = PartitionState(tp, start=start, position=start, end=end, live_at=end)
        one.is_live = start >= end
        self._release.add(tp)
        if start >= end and not self._asked.follow:
            one.is_finished = True
            self._release.finish(tp)
        self._partitions[tp] = one

    def _leave(self, partitions: Collection[TopicPartition]) -> None:
        """Read partitions no more; what is held of them is still released."""
        for tp in list(partitions):
            self._reader.stop(tp)
            self._release.finish(tp)
            self._forget(tp)

    def _forget(self, tp: TopicPartition) -> None:
        self._new.discard(tp)
        for known in (self._partitions, self._settled, self._done):
            known.pop(tp, None)
        if self._commits is not None:
            self._commits.forget(tp)

    # --- the group -----------------------------------------------------------------------------------

    def _take_part(self) -> None:
        """Give up what the group takes away, at once; what it gives is begun before the next turn."""
        if self._member is None:
            return
        try:
            change = self._member.poll()
        except UnknownTopicError as error:
            self._go_on_without_deleted(error)
            return
        if change is None:
            return
        with self._moving():
            for tp in change.lost:
                if tp in self._partitions or tp in self._new:
                    self._reader.stop(tp)
                    self._release.drop(tp)
                    self._forget(tp)
            self._new |= change.gained

    def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if self._commits is not None:
            self._commits.before_revocation(partitions)

    def _done_up_to(self) -> Mapping[TopicPartition, int]:
        """Return for each partition the first offset that was not returned and done with."""
        if self._is_even:
            self._done = {tp: self._first_left(one) for tp, one in self._partitions.items()}
        return self._done

    def _first_left(self, one: PartitionState) -> int:
        returned = self._returned
        left = (
            self._release.held_from(one.tp),
            None if returned is None else self._release.offset_min_of(one.tp, returned),
        )
        return min([one.position, *(offset for offset in left if offset is not None)])

    def commit(self) -> None:
        """Commit what is done with; raise the `CommitError` family."""
        invariant(self._commits is not None, "a read without a group commits nothing")
        if self._commits is not None:
            self._commit(self._commits.now)

    def _commit(self, commit: Callable[[], None]) -> None:
        """Make a commit; without topics that patterns selected and that were deleted since the last look."""
        while True:
            try:
                return commit()
            except UnknownTopicError as error:
                self._go_on_without_deleted(error)

    # --- what is known ---------------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Whether every partition has been read up to where it ended when it was first seen."""
        partitions = list(self._partitions.values())
        is_known = bool(partitions or self._member is None) and not self._new
        return is_known and all(one.is_live for one in partitions)

    def states(self) -> list[PartitionState]:
        """Return what is known of each partition, by name; any thread may ask."""
        holding_back = self._release.holding_back()
        partitions = [one for _, one in sorted(dict(self._partitions).items())]
        for one in partitions:
            source = self._release.source(one.tp)
            one.timestamp_ms, one.late = source.greatest_ms, source.late
            one.held = self._release.held_of(one.tp)
            one.holds_back = one.tp == holding_back and self._release.held.records > one.held
        return partitions

    def _now_ms(self) -> int:
        return int(self._asked.clock() * 1_000)
