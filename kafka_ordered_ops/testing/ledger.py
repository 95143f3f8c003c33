"""The model's ledger door: the behavior of `kafka.ledger.ledger.Ledger`, in memory.

A group's state is in the same records, in a compacted topic of the model. The order of reads, the checks and the
retries are the same. Only the transaction is simpler: it is stored at once, or not at all. There are no tickets in
the ledger, because threads have locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TypeVar

from kafka_ordered_ops.core.cluster.cluster_facts import (
    CommittedOffset,
    CommittedOffsets,
    check_group_empty,
)
from kafka_ordered_ops.core.errors import (
    CommitUnknownError,
    ConfigError,
    KafkaOrderedOpsError,
    LedgerUnavailableError,
    UnknownTopicError,
    WindowFencedError,
)
from kafka_ordered_ops.core.group.group_state import Change, GroupState, GroupView
from kafka_ordered_ops.core.group.ledger.records import (
    Keep,
    LedgerFold,
    LedgerMessage,
    StaleFoldError,
)
from kafka_ordered_ops.core.group.ledger.repair import (
    RecordHistory,
    RestoredRecord,
    damaged_record,
    restoration,
)
from kafka_ordered_ops.core.group.ledger_rules import (
    CALL_TIMEOUT_S,
    LEDGER_CONFIG,
    LEDGER_PARTITIONS,
    Prepare,
    are_of_one_moment,
    check_ledger_policy,
    check_ledger_topic,
    check_not_lost,
    check_same_ledger,
    ledger_partition,
    offsets_to_commit,
    unknown_commits,
    with_written_only,
)
from kafka_ordered_ops.core.group.summaries import Summaries
from kafka_ordered_ops.core.group.turn import GroupTurn
from kafka_ordered_ops.core.processing.new_record import NewRecord
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.testing.appending import append_record
from kafka_ordered_ops.testing.cluster import Cluster, GroupLock
from kafka_ordered_ops.testing.log import TransactionState
from kafka_ordered_ops.testing.lookup import MemoryLookup
from kafka_ordered_ops.testing.registry import reach

_Seen = TypeVar("_Seen")

#: Returns a view of the records that were read; takes the fold, and a flag whether the log was folded again.
_Look = Callable[[LedgerFold, bool], GroupView]


@dataclass
class _Reading:
    """One group's records, and the offset of the ledger's partition up to which they are folded."""

    fold: LedgerFold
    position: int


class _Answer(Enum):
    """The outcome of a commit, as far as its caller knows."""

    STORED = auto()
    #: Another change has begun meanwhile, or a topic was deleted: nothing was stored.
    OVERTAKEN = auto()
    #: It may have been stored or not.
    LOST = auto()


class MemoryLedger:
    """The ledger topic of one model; see `kafka.ledger.ledger.Ledger` for its methods and their errors."""

    def __init__(self, name: str, *, topic: str, timeout_s: float) -> None:
        self._name = name
        self._topic = topic
        self._timeout_s = timeout_s
        self._lookup = MemoryLookup(name)
        self._id: str | None = None
        self._readings: dict[str, _Reading] = {}

    def __enter__(self) -> MemoryLedger:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the records read."""
        self._readings.clear()

    def read(
        self,
        group_id: str,
        wanted: Collection[str] = (),
        *,
        everything: bool = False,
        keep: Keep | None = None,
        processed: Collection[str] = (),
        settle: bool = False,
    ) -> GroupView:
        """Return the current state of the group; an empty view if there is no ledger yet.

        `settle` has no effect: no process of a group leaves a transaction open in a model.
        """
        if not self._open(create=False):
            return GroupView(group_id)

        def look(fold: LedgerFold, certain: bool) -> GroupView:
            return fold.view(
                wanted, everything=everything, keep=keep, processed=processed, certain=certain
            )

        return self._looked_at(group_id, look, time.monotonic() + self._timeout_s)

    def summaries(
        self, group_id: str, *, limit: int | None = None, before: str | None = None
    ) -> Summaries:
        """Return summaries of the group's windows: all, or the last `limit`; with `before`, those before a window."""
        if not self._open(create=False):
            return Summaries()
        deadline = time.monotonic() + self._timeout_s

        def look(fold: LedgerFold, certain: bool) -> Summaries:
            return fold.summaries(limit=limit, before=before, certain=certain)

        return self._looked_at(group_id, look, deadline)

    def update(
        self,
        group_id: str,
        prepare: Prepare,
        *,
        wanted: Collection[str] = (),
        everything: bool = False,
        processed: Collection[str] = (),
        partitions: Iterable[TopicPartition] = (),
        pace: object = None,
        turn: object = None,
        takes_unknown: bool = False,
    ) -> GroupView | None:
        """Change a group's state; return the new view, or None if the decision was None. `pace` and `turn` are unused."""
        deadline = time.monotonic() + self._timeout_s
        if self._id is None:
            self._open(create=True)
        else:
            self._check_same()

        def look(fold: LedgerFold, certain: bool) -> GroupView:
            return fold.view(wanted, everything=everything, processed=processed, certain=certain)

        where = f"group {group_id}, ledger {self._topic}"
        known, lost_once, unknown = set(partitions), False, False
        while True:
            try:
                cluster = reach(self._name)
                decide = prepare()
                with GroupLock(cluster.group(group_id), deadline, where) as turn:
                    view, committed = self._read_all(group_id, look, known, deadline)
                    if not takes_unknown:
                        self.check_not_lost(view, committed)
                    unknown = False
                    outcome = decide(view, committed)
                    if not isinstance(outcome, Change):
                        return None if outcome is None else view
                    offsets = offsets_to_commit(outcome, ledger_id=self._id or "")
                    outcome = with_written_only(outcome, view.state, offsets)
                    may_lose = not lost_once
                    answer = self._write(
                        cluster, turn, group_id, outcome, offsets, may_lose=may_lose
                    )
            except KafkaOrderedOpsError as error:
                if unknown and error.retriable:
                    raise _unknown(where, error) from error
                raise
            if answer is _Answer.STORED:
                return outcome.applied_to(view)
            if answer is _Answer.LOST:
                lost_once = unknown = True
            if time.monotonic() >= deadline:
                if unknown:
                    raise _unknown(where, f"{self._timeout_s:g} s are over")
                raise WindowFencedError(
                    f"{where}: other changes of the group's state came in between again and again for "
                    f"{self._timeout_s:g} s. Run the same window again"
                )

    def turn(self, group_id: str) -> GroupTurn:
        """Return a turn without waiting."""
        return GroupTurn()

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition], *, timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets; see `read_committed_offsets`."""
        return read_committed_offsets(self._name, group_id, partitions, timeout_s=timeout_s)

    def ledger_id(self) -> str | None:
        """Return the id that distinguishes this ledger from others; None if there is no ledger yet."""
        if not self._open(create=False):
            return None
        return f"{reach(self._name).cluster_id}/{self._id}"

    def check_not_lost(self, view: GroupView, committed: CommittedOffsets) -> None:
        """Raise `LedgerLostError` if commits of this package show progress that the ledger does not have."""
        name, ledger_id = self._topic, self._id
        unknown = unknown_commits(view, committed, ledger_id=ledger_id)
        topics = self._lookup.existing({tp.topic for tp in unknown}) if unknown else {}
        check_not_lost(view, committed, unknown, name=name, ledger_id=ledger_id, topics=topics)

    def unknown_commits(
        self, view: GroupView, committed: CommittedOffsets
    ) -> frozenset[TopicPartition]:
        """Return the partitions whose commits `check_not_lost` refuses."""
        return frozenset(unknown_commits(view, committed, ledger_id=self._id))

    def remove(self, group_id: str) -> None:
        """Remove all records of a group."""
        deadline = time.monotonic() + self._timeout_s
        if not self._open(create=False):
            return
        cluster, where = reach(self._name), f"group {group_id}, ledger {self._topic}"
        with GroupLock(cluster.group(group_id), deadline, where):
            messages = list(self._read(group_id, deadline).removal())
            self._append(cluster, group_id, messages, {}, arrives=True)

    def restore(self, group_id: str, offset: int, *, dry_run: bool = False) -> RestoredRecord:
        """Restore one record that cannot be read."""
        deadline = time.monotonic() + self._timeout_s
        if not self._open(create=False):
            raise ConfigError(f"there is no ledger {self._topic}, and no record to restore")
        cluster, where = reach(self._name), f"group {group_id}, ledger {self._topic}"
        with GroupLock(cluster.group(group_id), deadline, where):
            fold = self._read(group_id, deadline)
            record = damaged_record(fold, offset)
            history = RecordHistory(group_id, record)
            with cluster.changed:
                log = cluster.log(fold.where)
                for entry in log.entries(log.log_start, self._readings[group_id].position):
                    if entry.is_visible(Isolation.READ_COMMITTED):
                        message = entry.message
                        history.take(
                            entry.offset,
                            message.key,
                            message.value,
                            partial(tuple, message.headers),
                        )
            restored, messages = restoration(fold, record, offset, history)
            if not dry_run:
                self._append(cluster, group_id, messages, {}, arrives=True)
            return restored

    # --- the topic ------------------------------------------------------------------------------

    def _open(self, *, create: bool) -> bool:
        if self._id is not None:
            return True
        cluster = reach(self._name)
        with cluster.changed:
            if self._topic not in cluster.topics:
                if not create:
                    return False
                cluster.create_topic(self._topic, LEDGER_PARTITIONS, LEDGER_CONFIG)
            topic = cluster.topics[self._topic]
        check_ledger_topic(topic.facts)
        check_ledger_policy(self._topic, topic.config.get("cleanup.policy", "delete"))
        self._id = topic.topic_id
        return True

    def _check_same(self) -> None:
        try:
            current_id = self._lookup.topics([self._topic])[self._topic].topic_id
        except UnknownTopicError:
            current_id = None
        check_same_ledger(self._topic, opened_id=self._id, found_id=current_id)

    # --- reading --------------------------------------------------------------------------------

    def _read_all(
        self,
        group_id: str,
        look: _Look,
        known: set[TopicPartition],
        deadline: float,
    ) -> tuple[GroupView, CommittedOffsets]:
        """Read the committed offsets, then the ledger; repeat if the ledger has more partitions or newer offsets."""
        seen: GroupState | None = None
        while True:
            left_s = min(CALL_TIMEOUT_S, deadline - time.monotonic())
            committed = self.committed_offsets(group_id, sorted(known), timeout_s=left_s)
            view = self._looked_at(group_id, look, deadline)
            held = {tp for tp, _ in view.state} if view.state else set()
            if held <= known:
                if are_of_one_moment(seen, view.state, committed):
                    return view, committed
                seen = view.state
            known |= held

    def _looked_at(
        self, group_id: str, look: Callable[[LedgerFold, bool], _Seen], deadline: float
    ) -> _Seen:
        """Return the result of `look` for the current records; its flag is True if the log was folded again."""
        try:
            return look(self._read(group_id, deadline), False)
        except StaleFoldError:
            del self._readings[group_id]
            return look(self._read(group_id, deadline), True)

    def _read(self, group_id: str, deadline: float) -> LedgerFold:
        """Return the group's records, folded up to the current end of the log."""
        tp = ledger_partition(self._topic, group_id)
        cluster = reach(self._name)
        with cluster.changed:
            try:
                log = cluster.log(tp)
            except UnknownTopicError:
                self._check_same()
                raise
            end = log.high_watermark
            reading = self._readings.get(group_id)
            if reading is None:
                reading = self._readings[group_id] = _Reading(
                    LedgerFold(tp, group_id), log.log_start
                )
            if end < reading.position:
                # Logs do not shrink: this is another log.
                self._check_same()
            left_s = max(deadline - time.monotonic(), 0)
            settled = cluster.changed.wait_for(lambda: log.last_stable_offset >= end, left_s)
            end = min(end, log.last_stable_offset)
            for entry in log.entries(reading.position, end):
                if entry.is_visible(Isolation.READ_COMMITTED):
                    message = entry.message
                    headers = partial(tuple, message.headers)
                    reading.fold.take(entry.offset, message.key, message.value, headers)
            reading.position = max(reading.position, end)
        if not settled:
            raise LedgerUnavailableError(
                f"group {group_id}: the ledger {tp} could be read up to offset {end}: a transaction is open there. "
                "End it"
            )
        reading.fold.has_read_all()
        return reading.fold

    # --- writing --------------------------------------------------------------------------------

    def _write(
        self,
        cluster: Cluster,
        turn: GroupLock,
        group_id: str,
        change: Change,
        offsets: dict[TopicPartition, CommittedOffset],
        *,
        may_lose: bool,
    ) -> _Answer:
        for callback in cluster.due_before_commit():
            with turn.others_first():
                callback()
        if turn.is_overtaken:
            return _Answer.OVERTAKEN
        with reach(self._name).changed:
            self._check_same()
            lost = cluster.lost_answers if may_lose else None
            try:
                self._store(cluster, group_id, change, offsets, arrives=lost is None or lost.stored)
            except UnknownTopicError as error:
                if {record.topic for record in change.dead_letters} & set(error.topics):
                    raise
                # The topic was deleted since it was read. Brokers refuse the commit, and the next attempt omits the topic.
                return _Answer.OVERTAKEN
        if lost is None:
            return _Answer.STORED
        if not lost.read_back:
            raise _unknown(f"group {group_id}, ledger {self._topic}", "the model is told so")
        return _Answer.LOST

    def _store(
        self,
        cluster: Cluster,
        group_id: str,
        change: Change,
        offsets: dict[TopicPartition, CommittedOffset],
        *,
        arrives: bool,
    ) -> None:
        """Write ledger records and committed offsets in one transaction."""
        # Encode before the transaction begins, as with brokers: an invalid record leaves no transaction open.
        messages = list(self._readings[group_id].fold.messages(change))
        self._append(cluster, group_id, messages, offsets, change.dead_letters, arrives=arrives)

    def _append(
        self,
        cluster: Cluster,
        group_id: str,
        messages: Iterable[LedgerMessage],
        offsets: dict[TopicPartition, CommittedOffset],
        dead_letters: Iterable[NewRecord] = (),
        *,
        arrives: bool,
    ) -> None:
        tp = ledger_partition(self._topic, group_id)
        transaction = cluster.begin(f"koo.{group_id}")
        end = TransactionState.ABORTED
        try:
            for key, value, headers in messages:
                encoded = [(name, text.encode()) for name, text in headers.items()]
                cluster.append(
                    tp,
                    key=key,
                    value=value,
                    timestamp_ms=None,
                    headers=encoded,
                    transaction=transaction,
                )
            for record in dead_letters:
                append_record(cluster, record, transaction)
            cluster.commit(group_id, offsets, transaction)
            if arrives:
                end = TransactionState.COMMITTED
        finally:
            # End it after any error: an open transaction would block every reader of the partition.
            cluster.end(transaction, end)


def read_committed_offsets(
    name: str, group_id: str, partitions: Collection[TopicPartition], *, timeout_s: float
) -> dict[TopicPartition, CommittedOffset | None]:
    """Return a group's committed offsets; None for partitions without one.

    Raises:
        BrokerUnreachableError: the model cannot be reached.
        LedgerUnavailableError: an open transaction holds an offset back until the deadline.
    """
    if not partitions:
        return {}
    committed = reach(name).committed(group_id, partitions, deadline=time.monotonic() + timeout_s)
    if committed is None:
        raise LedgerUnavailableError(
            f"committed offsets of group {group_id} cannot be read within {timeout_s:g} s: another program's open "
            "transaction holds them back. End it",
            group_id=group_id,
        )
    return dict(committed)


def set_committed_offsets(name: str, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set committed offsets of a group, without metadata; raise `GroupInUseError` if it has members."""
    cluster = reach(name)
    with cluster.changed:
        check_group_empty(group_id, list(cluster.group(group_id).members.values()))
        cluster.commit(group_id, {tp: CommittedOffset(at) for tp, at in offsets.items()})


def _unknown(where: str, why: object) -> CommitUnknownError:
    return CommitUnknownError(
        f"{where}: no answer to a commit, and the ledger could not be read back ({why}): the change may have been "
        "stored. Run the same window again: it finds out"
    )
