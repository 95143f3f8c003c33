"""The ledger: every change of a group's state is one fenced compare-and-set in Kafka itself.

The order is essential:

1. The cluster's facts for the decision are fetched (`Prepare`): there must be no wait inside the fence.
2. A **new** producer is opened with the group's only transactional id; ``init_transactions`` fences the previous
   producer, and ends its open transaction.
3. *Then* the ledger and the committed offsets are read to their stable end: exactly the state that the transaction
   changes.
4. The decision (`core.group.transitions`) is made on this state. It checks by value that the facts fit the group's
   state.
5. Ledger records and committed offsets are written in **one transaction**.
6. The producer is discarded. If it was fenced, timed out or got no answer, start again at 1 with a new one. A decision
   that was committed after all is then found in the ledger, and results in no change.

Each of these would lose updates: deciding before fencing, one id per window, or using a producer twice. A late EndTxn of an
older transaction can commit or abort a newer one of the same producer (see KIP-890).

"Stable end" means the partition's *uncommitted* end after ``init_transactions``, read under read_committed. Stopping at the
last stable offset instead would miss this group's own newest records whenever another group has an open transaction in the
same partition.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaException

from kafka_ordered_ops.core.arguments import DefaultTimeout
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset, CommittedOffsets
from kafka_ordered_ops.core.errors import (
    BrokerUnreachableError,
    ConfigError,
    KafkaOrderedOpsError,
    LedgerUnavailableError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.group.group_state import Change, GroupState, GroupView
from kafka_ordered_ops.core.group.ledger.records import Keep, LedgerMessage, StaleFoldError
from kafka_ordered_ops.core.group.ledger.repair import (
    RestoredRecord,
    damaged_record,
    restoration,
)
from kafka_ordered_ops.core.group.ledger_rules import Decision as Decision
from kafka_ordered_ops.core.group.ledger_rules import (
    Prepare,
    are_of_one_moment,
    check_not_lost,
    offsets_to_commit,
    unknown_commits,
    with_written_only,
)
from kafka_ordered_ops.core.group.summaries import Summaries
from kafka_ordered_ops.core.group.turn import GroupTurn
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.asking import RETRY_PAUSE_S
from kafka_ordered_ops.kafka.client.calls import waits_for, within
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client
from kafka_ordered_ops.kafka.ledger.faults import judged, unknown_outcome
from kafka_ordered_ops.kafka.ledger.log import LedgerLog
from kafka_ordered_ops.kafka.ledger.queue import COMMITTING as COMMITTING
from kafka_ordered_ops.kafka.ledger.queue import PLANNING as PLANNING
from kafka_ordered_ops.kafka.ledger.queue import Line, Place, Tickets, TurnInLine
from kafka_ordered_ops.kafka.ledger.queue import Pace as Pace
from kafka_ordered_ops.kafka.ledger.topic import LEDGER_TOPIC, LedgerTopic
from kafka_ordered_ops.kafka.ledger.transaction import FencedTransaction
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets.committed_offsets import OffsetsReader
from kafka_ordered_ops.kafka.settings import ClientSettings

_log = logging.getLogger("kafka_ordered_ops.ledger")

_Seen = TypeVar("_Seen")

#: Returns a view of the state just read; the flag tells whether the log was folded again.
_Look = Callable[[LedgerLog, bool], GroupView]

#: The time limit for all attempts of one change together.
UPDATE_TIMEOUT_S: Final = DefaultTimeout(120.0)

#: How long a read of the queue waits: not for other groups' open transactions.
_LOOK_PATIENCE_S: Final = 0.2

#: How long a plan waits for an open transaction: a living process has it open for tens of milliseconds.
_PATIENCE_S: Final = 1.0

#: How long the broker may hold a fetch at the end of the log: an empty answer proves the end.
_FETCH_WAIT_MS: Final = 10

#: The limit for fetching ahead of the fold; the client's own default is 64 MiB.
_QUEUED_KIB_MAX: Final = 4_096

#: Errors after which another attempt may succeed.
_PASSING: Final = (KafkaException, BrokerUnreachableError, LedgerUnavailableError)


class Ledger:
    """The ledger topic of one cluster; `close` it, or use it as a context manager."""

    def __init__(
        self,
        settings: ClientSettings,
        lookup: Lookup,
        *,
        topic: str = LEDGER_TOPIC,
        timeout_s: float = UPDATE_TIMEOUT_S,
    ) -> None:
        self._settings = settings
        self._lookup = lookup
        self._timeout_s = timeout_s
        self._reasons = FaultReasons(settings.secret_values())
        self._topic = LedgerTopic(settings, lookup, topic, self._reasons)
        self._tickets = Tickets(settings)
        self._logs: dict[str, LedgerLog] = {}
        self._offsets: dict[str, OffsetsReader] = {}
        self._cluster: str | None = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the readers."""
        for log in self._logs.values():
            log.close()
        for reader in self._offsets.values():
            reader.close()
        self._logs.clear()
        self._offsets.clear()

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
        """Return the group's current state, without fencing; an empty view if there is no ledger yet.

        The view has the open windows, those wanted by id, and all others or those that `keep` accepts: a hundred thousand
        old windows are a hundred thousand plans. `processed` are windows whose processed offsets are wanted. With
        `settle`, a transaction that does not end within moments counts as one of a dead process of this group and is
        ended, so that a plan need not wait for its timeout.
        """
        if not self._topic.open(create=False):
            return GroupView(group_id)
        deadline = within(self._timeout_s).at_s
        try:
            patience_s = _PATIENCE_S if settle else self._timeout_s
            self._read(group_id, min(deadline, time.monotonic() + patience_s))
        except LedgerUnavailableError:
            if not settle:
                raise
            self.update(group_id, lambda: lambda _view, _committed: None)  # fences, and so ends it
            self._read(group_id, deadline)

        def look(fold: LedgerLog, certain: bool) -> GroupView:
            return fold.view(
                wanted, everything=everything, keep=keep, processed=processed, certain=certain
            )

        return self._looked_at(self._logs[group_id], look, deadline)

    def summaries(
        self, group_id: str, *, limit: int | None = None, before: str | None = None
    ) -> Summaries:
        """Return summaries of the group's windows; plans are not read if that can be avoided.

        Returns all windows or the last `limit`, and only those before a window if `before` is given.
        """
        if not self._topic.open(create=False):
            return Summaries()
        deadline = time.monotonic() + self._timeout_s
        log = self._read(group_id, deadline)

        def look(fold: LedgerLog, certain: bool) -> Summaries:
            return fold.summaries(limit=limit, before=before, certain=certain)

        return self._looked_at(log, look, deadline)

    def update(
        self,
        group_id: str,
        prepare: Prepare,
        *,
        wanted: Collection[str] = (),
        everything: bool = False,
        processed: Collection[str] = (),
        partitions: Iterable[TopicPartition] = (),
        pace: Pace = PLANNING,
        turn: GroupTurn | None = None,
        takes_unknown: bool = False,
    ) -> GroupView | None:
        """Change a group's state; return the view after it, or None if the decision was None.

        `prepare` and the decision that it returns may run several times, each time on a newer view, and must not
        have side effects. The decision sees the open windows, those wanted by id or all windows, and the processed
        offsets of the windows in `processed`.
        `partitions` are read for committed offsets in addition to the partitions that the group knows.

        Raises:
            WindowFencedError, CommitUnknownError, LedgerUnavailableError, BrokerUnreachableError: no attempt succeeded
                before the deadline; the last reason determines the error.
            LedgerLostError: commits of the group point to a ledger that is gone.
            KafkaOrderedOpsError: raised by `prepare` or the decision.
        """
        deadline = within(self._timeout_s).at_s
        if self._topic.id is None:
            self._topic.open(create=True)
        else:
            self._topic.check_same()

        def look(fold: LedgerLog, certain: bool) -> GroupView:
            return fold.view(wanted, everything=everything, processed=processed, certain=certain)

        known = set(partitions)

        def change(transaction: FencedTransaction) -> GroupView | None:
            return self._change(transaction, prepare(), look, known, takes_unknown=takes_unknown)

        return self._try(group_id, change, pace, deadline, turn)

    def _change(
        self,
        transaction: FencedTransaction,
        decide: Decision,
        look: _Look,
        partitions: set[TopicPartition],
        *,
        takes_unknown: bool,
    ) -> GroupView | None:
        transaction.fence()
        log, view, committed = self._read_inside(transaction, look, partitions)
        if not takes_unknown:
            self.check_not_lost(view, committed)
        transaction.has_read = True
        outcome = decide(view, committed)
        if not isinstance(outcome, Change):
            return None if outcome is None else view
        offsets = offsets_to_commit(outcome, ledger_id=self._topic.id or "")
        outcome = with_written_only(outcome, view.state, offsets)
        # Encoded before the transaction begins, whose timeout starts with the first message.
        transaction.store(list(log.messages(outcome)), offsets, outcome.dead_letters)
        return outcome.applied_to(view)

    def turn(self, group_id: str) -> GroupTurn:
        """Return a turn for repeated calls of `update`, which may find that the group has changed since its facts were read."""

        def is_busy() -> bool:
            log = self._logs.get(group_id)
            return log is not None and log.line.ahead_of(None) > 0

        return TurnInLine(
            partial(self._place, group_id, PLANNING),
            partial(self._look, group_id),
            is_busy,
            self._timeout_s,
        )

    def _place(self, group_id: str, pace: Pace) -> Place:
        where = self._topic.partition_of(group_id)
        return Place(self._tickets, where, group_id, pace.rank)

    def remove(self, group_id: str) -> None:
        """Remove all records of a group, damaged or not, in one transaction; committed offsets stay. Raises as `update` does."""
        if self._topic.open(create=False):
            deadline = within(self._timeout_s).at_s
            self._try(group_id, self._remove, COMMITTING, deadline)

    def _remove(self, transaction: FencedTransaction) -> None:
        transaction.fence()
        log = self._read(transaction.group_id, transaction.deadline)
        transaction.has_read = True
        transaction.store(list(log.removal()), {})

    def restore(self, group_id: str, offset: int, *, dry_run: bool = False) -> RestoredRecord:
        """Restore one unreadable record in one transaction; with `dry_run`, only return what would be done.

        Raises:
            ConfigError: there is no unreadable record at the offset.
            LedgerUnavailableError, and others: raised as by `update`.
        """
        deadline = within(self._timeout_s).at_s
        if not self._topic.open(create=False):
            raise ConfigError(f"there is no ledger {self._topic.name}, and no record to restore")
        if dry_run:
            return self._restoration(group_id, offset, deadline)[0]

        def restore(transaction: FencedTransaction) -> RestoredRecord:
            transaction.fence()
            restored, messages = self._restoration(group_id, offset, transaction.deadline)
            transaction.has_read = True
            transaction.store(messages, {})
            return restored

        return self._try(group_id, restore, COMMITTING, deadline)

    def _restoration(
        self, group_id: str, offset: int, deadline: float
    ) -> tuple[RestoredRecord, list[LedgerMessage]]:
        def look(fold: LedgerLog, _: bool) -> tuple[RestoredRecord, list[LedgerMessage]]:
            record = damaged_record(fold, offset)
            start = self._lookup.log_starts([fold.where])[fold.where]
            history = fold.history(record, log_start=start, deadline=deadline)
            return restoration(fold, record, offset, history)

        return self._looked_at(self._read(group_id, deadline), look, deadline)

    def _try(
        self,
        group_id: str,
        run: Callable[[FencedTransaction], _Seen],
        pace: Pace,
        deadline: float,
        turn: GroupTurn | None = None,
    ) -> _Seen:
        """Make one attempt after the other until one succeeds; return its result."""
        unknown, held = False, turn.place if isinstance(turn, TurnInLine) else None
        with self._place(group_id, pace) if held is None else contextlib.nullcontext(held) as place:
            for attempt in range(1_000_000):
                transaction = self._transaction(group_id, deadline)
                try:
                    place.wait(
                        partial(self._look, group_id),
                        contended=attempt > 0,
                        deadline=deadline,
                        when_next=transaction.connect,
                    )
                    return run(transaction)
                except (KafkaException, KafkaOrderedOpsError) as error:
                    # An attempt that has read the state inside the fence knows how an earlier commit ended.
                    unknown = transaction.outcome_unknown or (unknown and not transaction.has_read)
                    cause = self._judge(error, group_id, unknown)
                    pause = pace.pause_s(attempt)
                    is_last = time.monotonic() + pause >= deadline
                    if is_last or not (cause.retriable and isinstance(error, _PASSING)):
                        if cause is error:
                            raise
                        raise cause from error
                    waits_for(f"the group's state to be changed (the last attempt: {error})")
                    _log.debug(
                        "group %s: change not stored (%s), again in %.2f s", group_id, error, pause
                    )
                    time.sleep(pause)
        raise AssertionError("the deadline ends the loop")

    def _transaction(self, group_id: str, deadline: float) -> FencedTransaction:
        return FencedTransaction(
            self._settings, self._topic, self._reasons, self._cluster_id, group_id, deadline
        )

    def _look(self, group_id: str) -> Line:
        """Return the waiting tickets, except those hidden by an open transaction, which a later read shows."""
        with contextlib.suppress(LedgerUnavailableError):
            self._read(group_id, time.monotonic() + _LOOK_PATIENCE_S)
        return self._logs[group_id].line

    def _judge(
        self, error: KafkaException | KafkaOrderedOpsError, group_id: str, unknown: bool
    ) -> KafkaOrderedOpsError:
        """Return the error to raise if a failed attempt is the last."""
        where = f"group {group_id}, ledger {self._topic.name}"
        if isinstance(error, KafkaOrderedOpsError):
            cause = error
        else:
            cause = judged(error, where, self._reasons, timeout_s=self._timeout_s)
        if unknown and cause.retriable:
            return unknown_outcome(error, where, timeout_s=self._timeout_s)
        return cause

    def _read(self, group_id: str, deadline: float) -> LedgerLog:
        """Return the group's log, folded up to the current uncommitted end."""
        if group_id not in self._logs:
            # Plain reads work with any group id; the rights are granted on the group's own.
            config = self._settings.consumer(
                group_id=group_id,
                isolation=Isolation.READ_COMMITTED,
                fetch_wait_max_ms=_FETCH_WAIT_MS,
                queued_max_messages_kbytes=_QUEUED_KIB_MAX,
            )
            opened = partial(open_client, Consumer, config, self._reasons)
            where = self._topic.partition_of(group_id)
            self._logs[group_id] = LedgerLog(where, group_id, opened, self._reasons, config=config)
        log = self._logs[group_id]
        while True:
            start, end = self._span(log)
            if max(start, log.position) <= end:
                log.read_to(end, log_start=start, deadline=deadline)
                return log
            # Logs do not shrink: this is another log, or a new leader does not know all of it yet.
            self._topic.check_same()
            if time.monotonic() > deadline:
                raise LedgerUnavailableError(
                    f"group {group_id}: the ledger {log.where} should hold offsets [{start}, {end}), but was read up "
                    f"to {log.position}: a leader is changing, or the partition lost records. Retry; if the error "
                    "persists, start a new process, which reads what is left"
                )
            time.sleep(RETRY_PAUSE_S)

    def _span(self, log: LedgerLog) -> tuple[int, int]:
        """Return the start of a group's partition, or the position if there is one, and its current uncommitted end."""
        tp = log.where
        try:
            # The start is needed only for a new fold; otherwise it would be requested in vain, three times a change.
            start = log.position or self._lookup.log_starts([tp])[tp]
            return start, self._lookup.end_offsets([tp], Isolation.READ_UNCOMMITTED)[tp]
        except UnknownTopicError:
            self._topic.check_same()
            raise

    def _looked_at(
        self, log: LedgerLog, look: Callable[[LedgerLog, bool], _Seen], deadline: float
    ) -> _Seen:
        """Return the view that `look` makes of the state just read; its flag tells whether the log was folded again."""
        certain = False
        while True:
            try:
                seen = look(log, certain)
            except StaleFoldError as error:
                if time.monotonic() > deadline:
                    raise LedgerUnavailableError(
                        f"group {log.group_id}: the ledger {log.where} changes faster than it can be read: retry"
                    ) from None
                _log.debug("group %s: reading the ledger again: %s", log.group_id, error)
                self._logs.pop(log.group_id).close()
                log, certain = self._read(log.group_id, deadline), True
            else:
                for dropped in log.newly_dropped():
                    _log.warning("a record is left out and will be recreated: %s", dropped)
                return seen

    def _read_inside(
        self, transaction: FencedTransaction, look: _Look, partitions: set[TopicPartition]
    ) -> tuple[LedgerLog, GroupView, dict[TopicPartition, CommittedOffset | None]]:
        """Read the committed offsets, then the ledger, never the other way round.

        A process that fences this attempt may commit between the two reads. With the ledger last, the ledger has the
        records of every commit that was read. With the ledger first, that commit would appear to be lost in the ledger.
        Offsets older than the ledger's are read again: only offsets read after the ledger prove that they were set back.
        """
        group_id, known = transaction.group_id, set(partitions)
        state: GroupState | None = None
        while True:
            committed = self.committed_offsets(
                group_id, sorted(known), timeout_s=transaction.call_timeout_s()
            )
            log = self._read(group_id, transaction.deadline)
            view = self._looked_at(log, look, transaction.deadline)
            held = {tp for tp, _ in view.state} if view.state else set()
            if held <= known:
                if are_of_one_moment(state, view.state, committed):
                    return self._logs[group_id], view, committed
                state = view.state
            known |= held

    def committed_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], *, timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets, over a cached connection: a new one costs 60 ms inside the fence."""
        reader = self._offsets.setdefault(group_id, OffsetsReader(self._settings, group_id))
        return reader.read(partitions, timeout_s=timeout_s)

    def _cluster_id(self) -> str:
        """Return the cluster's id, requested once: every change checks that the ledger topic is the same (`check_same`)."""
        if self._cluster is None:
            self._cluster = self._lookup.cluster_id()
        return self._cluster

    def ledger_id(self) -> str | None:
        """Return the unique id of this ledger as ``cluster id/topic id``; None while there is no ledger."""
        if not self._topic.open(create=False):
            return None
        return f"{self._cluster_id()}/{self._topic.id}"

    def check_not_lost(self, view: GroupView, committed: CommittedOffsets) -> None:
        """Raise `LedgerLostError` if commits of this package know more than the ledger."""
        name, ledger_id = self._topic.name, self._topic.id
        unknown = unknown_commits(view, committed, ledger_id=ledger_id)
        topics = self._lookup.existing({tp.topic for tp in unknown}) if unknown else {}
        check_not_lost(view, committed, unknown, name=name, ledger_id=ledger_id, topics=topics)

    def unknown_commits(
        self, view: GroupView, committed: CommittedOffsets
    ) -> frozenset[TopicPartition]:
        """Return the partitions whose commits `check_not_lost` refuses."""
        return frozenset(unknown_commits(view, committed, ledger_id=self._topic.id))
