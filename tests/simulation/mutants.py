"""Protocols that are wrong, each by one thing: put in by patches, so that a test can tell that histories find them.

Some faults need more than these histories have. Outputs of other ledgers and earlier claims are those of
`test_output_histories.py`; lost, cut and forged ledgers those of `test_histories_broker.py` and `tests/kafka`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import pytest
from confluent_kafka import KafkaException

from kafka_ordered_ops import WindowPlan
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.group import checks, transitions
from kafka_ordered_ops.core.group.checks import known_state
from kafka_ordered_ops.core.group.claims import Claims
from kafka_ordered_ops.core.group.decisions import claiming
from kafka_ordered_ops.core.group.group_state import Change, GroupView, WindowRecord, next_state
from kafka_ordered_ops.core.group.ledger_rules import offsets_to_commit
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.planning.planning import settle
from kafka_ordered_ops.core.types import Isolation, TopicPartition, WindowStatus
from kafka_ordered_ops.kafka.ledger import ledger as ledger_module
from kafka_ordered_ops.kafka.ledger import transaction as transaction_module
from kafka_ordered_ops.kafka.ledger.ledger import Ledger
from kafka_ordered_ops.kafka.ledger.transaction import FencedTransaction
from tests.simulation import wrong_outputs, wrong_topics
from tests.simulation.brokers import Fate
from tests.simulation.clients import SimulatedOffsets, SimulatedProducer
from tests.simulation.world import World

Put = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A wrong protocol."""

    #: What it does.
    name: str
    put: Put
    #: The seed of a history that finds it.
    found_by: int


# --- the fence -----------------------------------------------------------------------------------


def _fence_late(patch: pytest.MonkeyPatch) -> None:
    store, fence = FencedTransaction.store, FencedTransaction.fence

    def late(self: FencedTransaction, *args: Any) -> None:
        fence(self)
        store(self, *args)

    patch.setattr(FencedTransaction, "fence", lambda self: None)
    patch.setattr(FencedTransaction, "store", late)


def _read_before_fence(patch: pytest.MonkeyPatch) -> None:
    fence, read = FencedTransaction.fence, Ledger._read_inside

    def before(self: Ledger, transaction: FencedTransaction, *args: Any) -> Any:
        found = read(self, transaction, *args)
        fence(transaction)
        return found

    patch.setattr(FencedTransaction, "fence", lambda self: None)
    patch.setattr(Ledger, "_read_inside", before)


def _an_id_for_each_change(patch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    patch.setattr(
        transaction_module,
        "transactional_id",
        lambda cluster_id, group_id: f"koo.{group_id}.{next(numbers)}",
    )


def _assumed_stored(patch: pytest.MonkeyPatch) -> None:
    write = FencedTransaction._write

    def assume(self: FencedTransaction, *args: Any) -> None:
        try:
            write(self, *args)
        except KafkaException:
            if not self.outcome_unknown:
                raise

    patch.setattr(FencedTransaction, "_write", assume)


def _not_read_again(patch: pytest.MonkeyPatch) -> None:
    read = Ledger._read_inside
    seen: dict[tuple[int, float], Any] = {}

    def once(self: Ledger, transaction: FencedTransaction, *args: Any) -> Any:
        # Of one change, all attempts have one deadline.
        key = id(self), transaction.deadline
        if key not in seen:
            seen[key] = read(self, transaction, *args)
        return seen[key]

    patch.setattr(Ledger, "_read_inside", once)


def _producer_used_again(patch: pytest.MonkeyPatch) -> None:
    init = SimulatedProducer.init_transactions
    #: Of each ledger: its producer, until it is fenced.
    kept: dict[int, SimulatedProducer] = {}
    make = Ledger._transaction

    def same(self: Ledger, group_id: str, deadline: float) -> FencedTransaction:
        transaction = make(self, group_id, deadline)
        known = kept.get(id(self))
        if known is None or known.is_fenced or known.world is not World.running:
            known = kept[id(self)] = cast("SimulatedProducer", transaction.connect())
        transaction._producer = cast("Any", known)
        return transaction

    def once(self: SimulatedProducer, timeout: float) -> None:
        if self.epoch < 0:
            init(self, timeout)

    patch.setattr(Ledger, "_transaction", same)
    patch.setattr(SimulatedProducer, "init_transactions", once)
    # It takes a request that comes once more, within another transaction, while somebody looks.
    patch.setattr(World, "fate", lambda self: self.random.choice([Fate.TWICE, Fate.ANSWERED]))


def _read_to_the_stable_end(patch: pytest.MonkeyPatch) -> None:
    def stable(self: Ledger, log: Any) -> tuple[int, int]:
        tp = log.where
        start = log.position or self._lookup.log_starts([tp])[tp]
        end = self._lookup.end_offsets([tp], Isolation.READ_COMMITTED)[tp]
        return start, max(start, end)

    patch.setattr(Ledger, "_span", stable)


def _ledger_before_offsets(patch: pytest.MonkeyPatch) -> None:
    def reversed_(
        self: Ledger, transaction: FencedTransaction, look: Any, partitions: set[TopicPartition]
    ) -> Any:
        log = self._read(transaction.group_id, transaction.deadline)
        view = self._looked_at(log, look, transaction.deadline)
        known = partitions | ({tp for tp, _ in view.state} if view.state else set())
        committed = self.committed_offsets(
            transaction.group_id, sorted(known), timeout_s=transaction.call_timeout_s()
        )
        return self._logs[transaction.group_id], view, committed

    patch.setattr(Ledger, "_read_inside", reversed_)


def _offsets_outside_of_the_transaction(patch: pytest.MonkeyPatch) -> None:
    def plainly(producer: Any, group_id: str, offsets: Any, timeout_s: float) -> None:
        producer.world.command("commit offsets plainly")
        producer.world.cluster.commit(group_id, offsets)

    patch.setattr(transaction_module, "send_offsets_to_transaction", plainly)


def _offsets_not_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_module, "send_offsets_to_transaction", lambda *_, **__: None)


def _two_transactions(patch: pytest.MonkeyPatch) -> None:
    write = FencedTransaction._write

    def apart(
        self: FencedTransaction, producer: Any, messages: Any, offsets: Any, letters: Any
    ) -> None:
        if offsets:
            write(self, producer, (), offsets, letters)
        write(self, producer, messages, {}, ())

    patch.setattr(FencedTransaction, "_write", apart)


# --- decisions -----------------------------------------------------------------------------------


def _any_attempt_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checks, "check_owned", lambda record, plan: None)


def _claims_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Claims, "offsets", lambda self, tp: EMPTY_SET)


def _drafts_not_settled(patch: pytest.MonkeyPatch) -> None:
    def unchecked(draft: Any, *, done: OffsetSet, claimed: OffsetSet, **more: Any) -> Any:
        """Take what the draft took, whatever others have claimed or done since."""
        return settle(draft, done=EMPTY_SET, claimed=EMPTY_SET, **more) or settle(
            draft, done=done, claimed=claimed, **more
        )

    patch.setattr(claiming, "settle", unchecked)


def _resumed_as_the_same_attempt(patch: pytest.MonkeyPatch) -> None:
    resume = claiming.resume

    def same(view: GroupView, **more: Any) -> Any:
        change = resume(view, **more)
        if not isinstance(change, Change):
            return change
        records = tuple(
            replace(record, plan=replace(record.plan, attempt=record.plan.attempt - 1))
            for record in change.records
        )
        return replace(change, records=records)

    patch.setattr(claiming, "resume", same)


def _progress_replaced(patch: pytest.MonkeyPatch) -> None:
    exact = transitions._with_windows

    def replaced(state: Any, tp: TopicPartition, held: Any) -> Any:
        moved = exact(state, tp, held)
        own = OffsetSet.of((0, 0))
        for part, _ in held:
            own |= part.taken | part.lost
        return replace(moved, done=own | OffsetSet.of((0, moved.origin)))

    patch.setattr(transitions, "_with_windows", replaced)


def _progress_up_to_the_end(patch: pytest.MonkeyPatch) -> None:
    exact = transitions._with_windows

    def upto(state: Any, tp: TopicPartition, held: Any) -> Any:
        moved = exact(state, tp, held)
        end = max((part.taken.end for part, _ in held if part.taken), default=0)
        return replace(moved, done=moved.done | OffsetSet.of((0, end)))

    patch.setattr(transitions, "_with_windows", upto)


def _committed_one_further(patch: pytest.MonkeyPatch) -> None:
    def further(change: Change, *, ledger_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return {
            tp: replace(commit, offset=commit.offset + 1)
            for tp, commit in offsets_to_commit(change, ledger_id=ledger_id).items()
        }

    patch.setattr(ledger_module, "offsets_to_commit", further)


def _abandoned_windows_commit(patch: pytest.MonkeyPatch) -> None:
    exact = checks.check_owned

    def lenient(record: WindowRecord, plan: WindowPlan) -> None:
        if record.status is not WindowStatus.ABANDONED:
            exact(record, plan)

    patch.setattr(checks, "check_owned", lenient)


def _planned_again_with_the_same_claim(patch: pytest.MonkeyPatch) -> None:
    exact = claiming.claim

    def same(view: GroupView, wish: Any) -> Any:
        windows = [replace(one, claim_id=f"claim-of-{one.window_id}") for one in wish.windows]
        return exact(view, replace(wish, windows=windows))

    patch.setattr(claiming, "claim", same)


def _committed_windows_abandoned(patch: pytest.MonkeyPatch) -> None:
    exact = transitions.abandon

    def also_committed(view: GroupView, window_id: str, **more: Any) -> Any:
        record = view.windows.get(window_id)
        if record is None or record.status is not WindowStatus.COMMITTED:
            return exact(view, window_id, **more)
        plan = replace(record.plan, status=WindowStatus.ABANDONED)
        return Change(
            state=next_state(known_state(view), published=[window_id]),
            records=(replace(record, plan=plan),),
        )

    patch.setattr(transitions, "abandon", also_committed)


def _moments_not_compared(patch: pytest.MonkeyPatch) -> None:
    read = SimulatedOffsets.read

    def slowly(self: SimulatedOffsets, *args: Any, **options: Any) -> Any:
        found = read(self, *args, **options)
        self._world.scheduler.sleep(self._world.random.random())
        return found

    patch.setattr(ledger_module, "are_of_one_moment", lambda *_: True)
    # It takes a process that stops between the two reads, and another one that commits.
    patch.setattr(SimulatedOffsets, "read", slowly)


MUTANTS: Final = (
    Mutant("init_transactions comes just before the commit", _fence_late, 16),
    Mutant("the ledger is read before the fence", _read_before_fence, 112),
    Mutant("each change has a transactional id of its own", _an_id_for_each_change, 22),
    Mutant("a commit without an answer counts as stored", _assumed_stored, 15),
    Mutant("the next attempt decides on what the first one has read", _not_read_again, 3),
    Mutant("a producer is used again", _producer_used_again, 54),
    Mutant("the ledger is read up to its stable end", _read_to_the_stable_end, 2),
    Mutant("the ledger is read before the committed offsets", _ledger_before_offsets, 34),
    Mutant(
        "offsets are committed outside of the transaction", _offsets_outside_of_the_transaction, 10
    ),
    Mutant("offsets are not committed", _offsets_not_sent, 0),
    Mutant("offsets and records are two transactions", _two_transactions, 3),
    Mutant("any attempt may commit", _any_attempt_commits, 4),
    Mutant("abandoned windows may commit", _abandoned_windows_commit, 53),
    Mutant("committed windows may be abandoned", _committed_windows_abandoned, 182),
    Mutant("windows take what open windows hold", _claims_not_seen, 12),
    Mutant("drafts are not compared with what others have claimed since", _drafts_not_settled, 12),
    Mutant("a window that is taken up keeps its attempt", _resumed_as_the_same_attempt, 0),
    Mutant("a window that is planned again keeps its claim", _planned_again_with_the_same_claim, 3),
    Mutant("progress is replaced by that of the window", _progress_replaced, 0),
    Mutant("progress reaches up to the end of the window", _progress_up_to_the_end, 9),
    Mutant("offsets are committed one further", _committed_one_further, 0),
    Mutant("outputs are published before the commit", wrong_outputs.published_before_the_commit, 0),
    Mutant("outputs are not recorded with the commit", wrong_outputs.output_not_recorded, 0),
    Mutant(
        "manifests are written without conditions", wrong_outputs.written_without_conditions, 41
    ),
    Mutant(
        "manifests name files before they are copied", wrong_outputs.named_before_they_are_copied, 2
    ),
    Mutant("offsets and ledger are not read at one moment", _moments_not_compared, 60),
    Mutant("replays that died are not found", wrong_outputs.dead_replays_not_found, 39),
    Mutant("a folder is replaced by two renames", wrong_outputs.replaced_by_two_renames, 29),
    Mutant("the root of a folder is not locked", wrong_outputs.root_not_locked, 9),
    Mutant("what a dead replacement left is not healed", wrong_outputs.nothing_healed, 29),
    Mutant(
        "a marker leaves its stage before the tag", wrong_outputs.marker_moved_before_its_tag, 5
    ),
    Mutant(
        "stages are removed without asking the ledger", wrong_outputs.cleaned_without_asking, 118
    ),
    Mutant("plans are read from whichever topic has the name", wrong_topics.read_by_name, 63),
    Mutant("progress goes on in a recreated topic", wrong_topics.ids_not_compared, 18),
    Mutant("an adoption keeps the progress of the other topic", wrong_topics.progress_kept, 18),
    Mutant("an adoption leaves windows of the other topic open", wrong_topics.windows_left_open, 4),
    Mutant("the logs of a recreated topic count as cut", wrong_topics.logs_counted_as_cut, 316),
)
