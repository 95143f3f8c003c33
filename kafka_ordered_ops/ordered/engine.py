"""The loop of an ordered read: take turns of reading, hold, release, commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.errors import (
    CommitError,
    TopicRecreatedError,
    invariant,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.release.ordered_release import OrderedRelease
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound, Earliest
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.facts.window_facts import partitions_of
from kafka_ordered_ops.kafka.ports import (
    MembershipDoor,
    ReaderDoor,
    Turn,
    open_lookup,
    open_member,
    open_reader,
)
from kafka_ordered_ops.kafka.read.reader import BATCH_RECORDS
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.folder import temporary_folder
from kafka_ordered_ops.ordered.question import Question
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA, judged
from kafka_ordered_ops.ordered.records.pieces import Piece, pieces_of
from kafka_ordered_ops.ordered.spill import SpillFiles
from kafka_ordered_ops.ordered.starts import starts_and_ends
from kafka_ordered_ops.ordered.state import PartitionState
from kafka_ordered_ops.ordered.watch import EVERY_S, EVERY_S_MIN, Seen, Watch

#: Names a read without a group in quotas and logs of brokers; it is never joined.
NO_GROUP: Final = "kafka-ordered-ops-read"
#: While records come without a pause, they are released once so many have come.
RELEASE_RECORDS: Final = 32_768
#: A record stamped so far after now is an error of a clock.
FUTURE_MS: Final = 3_600_000
#: Not longer: during a rebalance a commit waits, and records would too.
COMMIT_TIMEOUT_S: Final = 5.0

_log = logging.getLogger(__name__)


class Engine:
    """One ordered read, from its start; a context manager, for one thread at a time."""

    def __init__(self, settings: ClientSettings, question: Question) -> None:
        self._settings = settings
        self._asked = question
        self._resources = ExitStack()
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._topic_ids: dict[str, str] = {}
        #: Of a plan.
        self._pieces: dict[TopicPartition, Piece] = {}
        self._release: OrderedRelease
        self._reader: ReaderDoor
        self._watch: Watch | None = None
        self._member: MembershipDoor | None = None
        #: Of each partition, where the first record is that was not handed out and done with.
        self._done: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._commit_at = self._told_at = time.monotonic()

    def __enter__(self) -> Engine:
        with ExitStack() as stack:
            self._open(stack)
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._member is not None:
                self._commit_if_any()
        finally:
            self._resources.close()

    def _open(self, stack: ExitStack) -> None:
        asked = self._asked
        spill = stack.enter_context(
            SpillFiles(lambda: stack_of.enter_context(temporary_folder(asked.temporary_folder)))
        )
        # Closed before the folder that it writes to.
        stack_of = self._resources = stack.enter_context(ExitStack())
        self._release = OrderedRelease(
            STAGE_SCHEMA,
            order=asked.order,
            max_out_of_orderness_ms=asked.max_out_of_orderness_ms,
            limits=asked.limits,
            spill=spill,
        )
        stack.callback(self._release.close)
        group = asked.group_id or NO_GROUP
        if asked.plan is not None:
            group, topics = asked.plan.group_id, list[str]()
            wanted = self._plan_pieces(asked.plan)
        else:
            topics = self._find_topics()
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
                stall_timeout_s=asked.stall_timeout_s,
            )
        )
        if not asked.follow:
            return
        if asked.group_id is not None:
            self._member = stack.enter_context(
                open_member(self._settings, asked.group_id, topics, on_revoke=self._revoked)
            )
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
        self._pieces = {piece.tp: piece for piece in pieces_of([plan])}
        wanted = {tp: piece.wanted for tp, piece in self._pieces.items()}
        for tp, offsets in wanted.items():
            self._add(tp, offsets.first, offsets.end)
        return wanted

    def _find_topics(self) -> list[str]:
        """Return the names of the topics; without a group, all of their partitions are read."""
        asked = self._asked
        with open_lookup(self._settings, timeout_s=asked.timeout_s) as lookup:
            topics = lookup.selected(asked.topics)
            self._topic_ids = {name: facts.topic_id for name, facts in topics.items()}
            if asked.group_id is None:
                found = starts_and_ends(
                    lookup,
                    partitions_of(topics),
                    asked.bound_of,
                    asked.isolation,
                    now_ms=self._now_ms(),
                    committed={},
                )
                for tp, (start, end) in found.items():
                    self._add(tp, start, end)
        return list(topics)

    # --- the loop ----------------------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch | None]:
        """Yield records in order, with None between them whenever nothing can be released now.

        When the next one is asked for, the one before it is done with.
        """
        waiting = 0
        while self._asked.follow or not all(one.is_finished for one in self._partitions.values()):
            if self._member is not None:
                self._take_part(self._member)
            taken, moved = self._take(self._reader.turn())
            waiting += taken
            self._look()
            if taken >= BATCH_RECORDS and waiting < RELEASE_RECORDS:
                continue
            waiting = 0
            yield from self._released()
            self._release.relieve()
            self._settle()
            if not self._asked.follow and not moved:
                self._reader.check_not_stalled()
            yield None
        yield from self._released()
        self._settle()

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
                rows = _with_late(turn.records) if piece is None else judged(turn.records, piece)[0]
                self._release.feed(turn.tp, rows, newest_ms=newest_ms)
            moved = moved or turn.position > one.position
            one.position = max(one.position, turn.position)
            if one.position >= one.live_at:
                one.is_live = True
            if not self._asked.follow and one.position >= one.end:
                one.is_finished = True
                self._release.finish(turn.tp)
        return taken, moved

    def _released(self) -> Iterator[pa.RecordBatch]:
        for batch, is_late in self._release.ready():
            rows = batch.rows()
            yield _all_late(rows) if is_late else rows

    def _settle(self) -> None:
        """Everything that was released is done with: note how far, tell, and commit when it is time."""
        now = time.monotonic()
        if self._asked.progress is not None and now - self._told_at > 0.2:
            self._told_at = now
            done = sum(one.position - one.start for one in self._partitions.values())
            known = sum(max(one.end, one.position) - one.start for one in self._partitions.values())
            self._asked.progress(done, known)
        if self._member is None:
            return
        for tp, one in self._partitions.items():
            held_from = self._release.held_from(tp)
            self._done[tp] = one.position if held_from is None else held_from
        if now >= self._commit_at:
            self._commit_if_any()

    # --- the logs ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take note of what the watch has seen."""
        seen = None if self._watch is None else self._watch.take()
        if seen is None:
            return
        self._check_same(seen)
        for tp, end in seen.ends.items():
            if (one := self._partitions.get(tp)) is not None:
                one.end = max(one.end, end)
        if self._member is None:
            for tp in [tp for tp in self._partitions if tp not in seen.ends]:
                self._drop(tp)
            for tp in [tp for tp in seen.ends if tp not in self._partitions]:
                # Whatever starting offsets say: its first records are as new as those of the others.
                self._begin(tp, Earliest())
        for tp in seen.settled:
            one = self._partitions.get(tp)
            if one is not None and one.position >= seen.ends[tp]:
                self._release.advance(tp, seen.at_ms - self._asked.grace_ms)

    def _check_same(self, seen: Seen) -> None:
        for name, facts in seen.topics.items():
            known = self._topic_ids.setdefault(name, facts.topic_id)
            if known != facts.topic_id:
                raise TopicRecreatedError(
                    f"topic {name} was deleted and created again while it was read: its offsets begin anew. Open a new "
                    "reader",
                    topic=name,
                )

    def _begin(self, tp: TopicPartition, bound: Bound | None = None) -> None:
        """Start to read a partition: from its committed offset if the group has one."""
        committed = {} if self._member is None else self._member.committed([tp])
        with open_lookup(self._settings, timeout_s=self._asked.timeout_s) as lookup:
            found = starts_and_ends(
                lookup,
                [tp],
                self._asked.bound_of if bound is None else lambda _: bound,
                self._asked.isolation,
                now_ms=self._now_ms(),
                committed=committed,
            )
        start, end = found[tp]
        self._add(tp, start, end)
        self._reader.add(tp, OffsetSet.of((start, INT64_MAX)))

    def _add(self, tp: TopicPartition, start: int, end: int) -> None:
        self._partitions[tp] = PartitionState(tp, start=start, position=start, end=end, live_at=end)
        self._partitions[tp].is_live = start >= end
        self._release.add(tp)
        if start >= end and not self._asked.follow:
            self._partitions[tp].is_finished = True
            self._release.finish(tp)

    def _drop(self, tp: TopicPartition) -> None:
        self._reader.stop(tp)
        self._release.drop(tp)
        for known in (self._partitions, self._done, self._committed):
            known.pop(tp, None)

    # --- the group -----------------------------------------------------------------------------------

    def _take_part(self, member: MembershipDoor) -> None:
        change = member.poll()
        if change is None:
            return
        for tp in change.lost:
            if tp in self._partitions:
                self._drop(tp)
        for tp in sorted(change.gained):
            self._begin(tp)

    def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        try:
            self._commit({tp: self._done[tp] for tp in partitions if tp in self._done})
        except CommitError as error:
            # Their next owner reads them again from the last commit.
            _log.warning(
                "what was read of partitions that are given up is not committed: %s", error
            )

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit what is done with, or these offsets."""
        invariant(self._member is not None, "a read without a group commits nothing")
        self._commit(dict(self._done if offsets is None else offsets))

    def _commit_if_any(self) -> None:
        self._commit_at = time.monotonic() + self._asked.commit_interval_s
        try:
            self._commit(self._done)
        except CommitError as error:
            if not error.retriable:
                raise
            _log.info("the commit is tried again: %s", error)

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        member = self._member
        moved = {
            tp: offset
            for tp, offset in offsets.items()
            if self._committed.get(tp) != offset and tp in self._partitions
        }
        if member is None or not moved:
            return
        mine = {tp: offset for tp, offset in moved.items() if tp in member.assignment}
        if mine:
            member.commit(mine, timeout_s=COMMIT_TIMEOUT_S)
            self._committed.update(mine)

    # --- what is known ---------------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Whether every partition has been read up to where it ended when it was first seen."""
        partitions = list(self._partitions.values())
        return bool(partitions or self._member is None) and all(one.is_live for one in partitions)

    def states(self) -> list[PartitionState]:
        """Return what is known of each partition, by name."""
        holding_back = self._release.holding_back()
        for tp, one in list(self._partitions.items()):
            source = self._release.source(tp)
            one.timestamp_ms, one.late = source.greatest_ms, source.late
            one.held = self._release.held_of(tp)
            one.holds_back = tp == holding_back and self._release.held.records > one.held
        return [self._partitions[tp] for tp in sorted(self._partitions)]

    def _now_ms(self) -> int:
        return int(self._asked.clock() * 1_000)


def _with_late(rows: pa.RecordBatch) -> pa.RecordBatch:
    late: Any = pa.array(np.zeros(rows.num_rows, dtype=np.bool_))
    return pa.RecordBatch.from_arrays([*rows.columns, late], schema=STAGE_SCHEMA)


def _all_late(rows: pa.RecordBatch) -> pa.RecordBatch:
    late: Any = pa.array(np.ones(rows.num_rows, dtype=np.bool_))
    return pa.RecordBatch.from_arrays([*rows.columns[:-1], late], schema=STAGE_SCHEMA)
