"""The ledger: every change of a group's state as one fenced compare-and-set on Kafka itself.

The order is everything:

1. The cluster's facts for the decision are fetched (`Prepare`): there must be no wait inside the fence.
2. A **new** producer with the group's one transactional id; ``init_transactions`` fences the previous producer, and
   ends its open transaction.
3. *Then* the ledger and the committed offsets are read, to their stable end: the state that the transaction changes,
   and nothing else.
4. The decision (`core.group.transitions`) is made on this state. It checks by value that the facts fit the group's
   state.
5. Ledger records and committed offsets are written in **one transaction**.
6. The producer is discarded. If it was fenced, timed out or got no answer: start at 1 with a new one. A decision that
   was committed after all is then found in the ledger, and results in no change.

Deciding before fencing, one id per window, or a producer used twice each lose updates: a late EndTxn of an
older transaction can commit or abort a newer one of the same producer (KIP-890 is about that).

"Stable end" means: the partition's *uncommitted* end after ``init_transactions``, read under
read_committed. Stopping at the last stable offset instead would miss this group's own newest records
whenever another group has a transaction open in the same partition.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer

from kafka_ordered_ops.core.arguments import DefaultTimeout
from kafka_ordered_ops.core.cluster_facts import CommittedOffset, CommittedOffsets
from kafka_ordered_ops.core.errors import (
    BrokerUnreachableError,
    CommitUnknownError,
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
from kafka_ordered_ops.core.group.ledger_rules import (
    CALL_TIMEOUT_S,
    Prepare,
    are_of_one_moment,
    check_not_lost,
    offsets_to_commit,
    transactional_id,
    unknown_commits,
    with_written_only,
)
from kafka_ordered_ops.core.group.ledger_rules import Decision as Decision
from kafka_ordered_ops.core.group.summaries import Summaries
from kafka_ordered_ops.core.group.turn import GroupTurn
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.asking import RETRY_PAUSE_S
from kafka_ordered_ops.kafka.client.calls import waits_for, within
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client
from kafka_ordered_ops.kafka.committed_offsets import OffsetsReader, send_offsets_to_transaction
from kafka_ordered_ops.kafka.ledger.faults import judged
from kafka_ordered_ops.kafka.ledger.log import LedgerLog
from kafka_ordered_ops.kafka.ledger.queue import COMMITTING as COMMITTING
from kafka_ordered_ops.kafka.ledger.queue import PLANNING as PLANNING
from kafka_ordered_ops.kafka.ledger.queue import Line, Place, Tickets, TurnInLine
from kafka_ordered_ops.kafka.ledger.queue import Pace as Pace
from kafka_ordered_ops.kafka.ledger.topic import LEDGER_TOPIC, LedgerTopic
from kafka_ordered_ops.kafka.ledger.writing import produce, warm_up
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.settings import ClientSettings

_log = logging.getLogger("kafka_ordered_ops.ledger")

_Seen = TypeVar("_Seen")

#: A view of the state just read; with a flag whether the log was folded again.
_Look = Callable[[LedgerLog, bool], GroupView]

#: All attempts of one change together.
UPDATE_TIMEOUT_S: Final = DefaultTimeout(120.0)

#: Ending a transaction that failed, which only makes others wait less.
_ABORT_TIMEOUT_S: Final = 1.0

#: A read of the queue does not wait for other groups' open transactions.
_LOOK_PATIENCE_S: Final = 0.2

#: A transaction of a living process is open for some ten milliseconds.
_PATIENCE_S: Final = 1.0

#: How long the broker may hold a fetch at the end of the log: the end is proven by an empty answer.
_FETCH_WAIT_MS: Final = 10

#: Read ahead of the fold; the client's own default is 64 MiB.
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
        """Return the group as of now, without fencing anybody; an empty view where there is no ledger yet.

        It has the open windows, those wanted by id, and all others or those that `keep` accepts: a hundred thousand
        old windows are a hundred thousand plans. `processed` are windows whose processed offsets are wanted. With `settle`, a transaction that does not end by itself within
        moments is considered one of a dead process of this group and ended, so that a plan need not wait for its
        timeout.
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
        """Return windows of the group as a list shows them; their plans are not read where that can be helped.

        All of them, or the last `limit`; those before a window, if one is given.
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
        have side effects. The decision sees the windows that are open, and those wanted by id, or every one, and the
        processed offsets of windows for which they are wanted.
        `partitions` are those whose committed offsets it reads besides the ones the group knows.

        Raises:
            WindowFencedError, CommitUnknownError, LedgerUnavailableError, BrokerUnreachableError: no
                success before the deadline, by the last reason seen.
            LedgerLostError: commits of the group point to a ledger that is gone.
            KafkaOrderedOpsError: whatever `prepare` and the decision raise.
        """
        deadline = within(self._timeout_s).at_s
        if self._topic.id is None:
            self._topic.open(create=True)
        else:
            self._topic.check_same()

        def look(fold: LedgerLog, certain: bool) -> GroupView:
            return fold.view(wanted, everything=everything, processed=processed, certain=certain)

        known = set(partitions)

        def run(transaction: _Transaction) -> GroupView | None:
            return transaction.run(prepare(), look, known, takes_unknown=takes_unknown)

        return self._try(group_id, run, pace, deadline, turn)

    def turn(self, group_id: str) -> GroupTurn:
        """Return a turn for calls of `update`, each of which may find that the group has changed since its facts were read."""

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
        """Remove all records of a group, in one transaction; committed offsets stay as they are.

        Raises the errors of `update`, but none about the records: they may be damaged.
        """
        if self._topic.open(create=False):
            deadline = within(self._timeout_s).at_s
            self._try(group_id, _Transaction.remove, COMMITTING, deadline)

    def restore(self, group_id: str, offset: int, *, dry_run: bool = False) -> RestoredRecord:
        """Restore one record that cannot be read, in one transaction; with `dry_run` only look what would be done.

        Raises:
            ConfigError: there is no such record at the offset.
            LedgerUnavailableError, and others: as `update`.
        """
        deadline = within(self._timeout_s).at_s
        if not self._topic.open(create=False):
            raise ConfigError(f"there is no ledger {self._topic.name}, and no record to restore")
        if dry_run:
            return self._restoration(group_id, offset, deadline)[0]
        return self._try(group_id, lambda one: one.restore(offset), COMMITTING, deadline)

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
        run: Callable[[_Transaction], _Seen],
        pace: Pace,
        deadline: float,
        turn: GroupTurn | None = None,
    ) -> _Seen:
        """Return one attempt after the other until one gets through."""
        unknown, held = False, turn.place if isinstance(turn, TurnInLine) else None
        with self._place(group_id, pace) if held is None else contextlib.nullcontext(held) as place:
            for attempt in range(1_000_000):
                transaction = _Transaction(self, group_id, deadline)
                try:
                    place.wait(
                        partial(self._look, group_id),
                        contended=attempt > 0,
                        deadline=deadline,
                        when_next=transaction.connect,
                    )
                    return run(transaction)
                except (KafkaException, KafkaOrderedOpsError) as error:
                    # The state inside the fence shows how an earlier commit ended.
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

    def _look(self, group_id: str) -> Line:
        """Return the waiting tickets. The next read shows those hidden by an open transaction."""
        with contextlib.suppress(LedgerUnavailableError):
            self._read(group_id, time.monotonic() + _LOOK_PATIENCE_S)
        return self._logs[group_id].line

    def _judge(
        self, error: KafkaException | KafkaOrderedOpsError, group_id: str, unknown: bool
    ) -> KafkaOrderedOpsError:
        """Return the error that a failed attempt means if it is the last."""
        if isinstance(error, KafkaOrderedOpsError):
            return self._unknown(group_id, error) if unknown and error.retriable else error
        where = f"group {group_id}, ledger {self._topic.name}"
        cause = judged(error, where, self._reasons, timeout_s=self._timeout_s)
        return self._unknown(group_id, error) if unknown and cause.retriable else cause

    def _unknown(self, group_id: str, error: Exception) -> CommitUnknownError:
        return CommitUnknownError(
            f"group {group_id}, ledger {self._topic.name}: no answer to a commit within {self._timeout_s:g} s, and the "
            f"ledger could not be read back ({error}): the change may have been stored. Run the same window "
            "again: it finds out"
        )

    def _read(self, group_id: str, deadline: float) -> LedgerLog:
        """Return the group's log, folded up to the uncommitted end as of now."""
        if group_id not in self._logs:
            # Any group id does for plain reads; the group's own is the one that rights are granted on.
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
            # Logs do not shrink: this is another one, or a new leader does not know all of it yet.
            self._topic.check_same()
            if time.monotonic() > deadline:
                raise LedgerUnavailableError(
                    f"group {group_id}: the ledger {log.where} should hold offsets [{start}, {end}), but was read up "
                    f"to {log.position}: a leader is changing, or the partition lost records. Retry; if the error "
                    "persists, start a new process, which reads what is left"
                )
            time.sleep(RETRY_PAUSE_S)

    def _span(self, log: LedgerLog) -> tuple[int, int]:
        """Return where a group's partition begins, as far as that matters, and its uncommitted end as of now."""
        tp = log.where
        try:
            # The start only where a fold begins: further on it would be asked in vain, three times a change.
            start = log.position or self._lookup.log_starts([tp])[tp]
            return start, self._lookup.end_offsets([tp], Isolation.READ_UNCOMMITTED)[tp]
        except UnknownTopicError:
            self._topic.check_same()
            raise

    def _looked_at(
        self, log: LedgerLog, look: Callable[[LedgerLog, bool], _Seen], deadline: float
    ) -> _Seen:
        """Return the state just read, made by `look`, which gets a flag whether the log was folded again."""
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
                    _log.warning("a record is left out, and made again: %s", dropped)
                return seen

    def committed_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], *, timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets, over a connection that is kept: a new one costs 60 ms in the fence."""
        reader = self._offsets.setdefault(group_id, OffsetsReader(self._settings, group_id))
        return reader.read(partitions, timeout_s=timeout_s)

    def _cluster_id(self) -> str:
        """Return the cluster's id, asked once: every change checks that the ledger topic is the same (`check_same`)."""
        if self._cluster is None:
            self._cluster = self._lookup.cluster_id()
        return self._cluster

    def ledger_id(self) -> str | None:
        """Return what tells this ledger from any other one, as ``cluster id/topic id``; None while there is none."""
        if not self._topic.open(create=False):
            return None
        return f"{self._cluster_id()}/{self._topic.id}"

    def check_not_lost(self, view: GroupView, committed: CommittedOffsets) -> None:
        """Raise `LedgerLostError` when commits of this package know more than the ledger does."""
        check_not_lost(view, committed, name=self._topic.name, ledger_id=self._topic.id)

    def unknown_commits(
        self, view: GroupView, committed: CommittedOffsets
    ) -> frozenset[TopicPartition]:
        """Return the partitions whose commits `check_not_lost` refuses."""
        return frozenset(unknown_commits(view, committed, ledger_id=self._topic.id))


class _Transaction:
    """One attempt: one producer, one transaction at most."""

    def __init__(self, ledger: Ledger, group_id: str, deadline: float) -> None:
        self._ledger = ledger
        self._group = group_id
        self._deadline = deadline
        self._producer: Producer | None = None
        #: Whether a commit was asked for and not answered.
        self.outcome_unknown = False
        #: Whether the ledger was read inside the fence: an unknown outcome is known then.
        self.has_read = False

    def run(
        self,
        decide: Decision,
        look: _Look,
        partitions: set[TopicPartition],
        *,
        takes_unknown: bool,
    ) -> GroupView | None:
        producer = self._fenced()
        log, view, committed = self._read(look, partitions)
        if not takes_unknown:
            self._ledger.check_not_lost(view, committed)
        self.has_read = True
        outcome = decide(view, committed)
        if outcome is None:
            return None
        if not isinstance(outcome, Change):
            return view
        offsets = offsets_to_commit(outcome, ledger_id=self._ledger._topic.id or "")
        outcome = with_written_only(outcome, view.state, offsets)
        # Written out before the transaction begins: its time-out counts from the first of them.
        self._store(producer, list(log.messages(outcome)), offsets)
        return outcome.applied_to(view)

    def remove(self) -> None:
        """Remove all records of the group, which need not be readable."""
        producer = self._fenced()
        log = self._ledger._read(self._group, self._deadline)
        self.has_read = True
        self._store(producer, list(log.removal()), {})

    def restore(self, offset: int) -> RestoredRecord:
        """Restore one record that cannot be read."""
        producer = self._fenced()
        restored, messages = self._ledger._restoration(self._group, offset, self._deadline)
        self.has_read = True
        self._store(producer, messages, {})
        return restored

    def connect(self) -> Producer:
        """Open the producer and its connections. That fences nobody yet, and so need not wait for the turn."""
        if self._producer is None:
            ledger = self._ledger
            config = ledger._settings.producer(
                transactional_id=self._transactional_id(),
                # Plans are repetitive JSON, and every new process reads all that remain.
                compression_type="lz4",
            )
            self._producer = open_client(Producer, config, ledger._reasons)
            waits_for("the coordinator of the group's transactions")
            warm_up(self._producer, ledger._topic.name, timeout_s=self._call_timeout_s())
        return self._producer

    def _fenced(self) -> Producer:
        """Return a producer that has fenced the ones before it."""
        producer = self.connect()
        waits_for("the coordinator of the group's transactions")
        producer.init_transactions(self._call_timeout_s())
        return producer

    def _read(
        self, look: _Look, partitions: set[TopicPartition]
    ) -> tuple[LedgerLog, GroupView, dict[TopicPartition, CommittedOffset | None]]:
        """Return the committed offsets, then the ledger: never the other way round.

        A process that fences this attempt may commit between the two reads. With the ledger last, its records exist
        for every commit that was read. With the ledger first, that commit would appear to be lost by the ledger.
        Offsets that are older than the ledger's are read once more: only those read after it were set back.
        """
        ledger, known = self._ledger, set(partitions)
        seen: GroupState | None = None
        while True:
            committed = ledger.committed_offsets(
                self._group, sorted(known), timeout_s=self._call_timeout_s()
            )
            log = ledger._read(self._group, self._deadline)
            view = ledger._looked_at(log, look, self._deadline)
            held = {tp for tp, _ in view.state} if view.state else set()
            if held <= known:
                if are_of_one_moment(seen, view.state, committed):
                    return ledger._logs[self._group], view, committed
                seen = view.state
            known |= held

    def _store(
        self,
        producer: Producer,
        messages: Sequence[LedgerMessage],
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        try:
            self._write(producer, messages, offsets)
        except BaseException:
            if not self.outcome_unknown:
                # Else readers of the group's offsets wait for it until its time-out.
                with contextlib.suppress(KafkaException):
                    producer.abort_transaction(_ABORT_TIMEOUT_S)
            raise

    def _write(
        self,
        producer: Producer,
        messages: Sequence[LedgerMessage],
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        where = self._ledger._topic.partition_of(self._group)
        producer.begin_transaction()
        for message in messages:
            produce(producer, where, message, deadline=self._deadline)
        if offsets:
            send_offsets_to_transaction(
                producer, self._group, offsets, timeout_s=self._call_timeout_s()
            )
        self.outcome_unknown = True
        waits_for("the answer to a commit")
        try:
            producer.commit_transaction(self._call_timeout_s())
        except KafkaException as error:
            # An abortable error is an answer: nothing was stored.
            self.outcome_unknown = not error.args[0].txn_requires_abort()
            raise
        self.outcome_unknown = False

    def _transactional_id(self) -> str:
        return transactional_id(self._ledger._cluster_id(), self._group)

    def _call_timeout_s(self) -> float:
        return max(min(CALL_TIMEOUT_S, self._deadline - time.monotonic()), 0.5)
