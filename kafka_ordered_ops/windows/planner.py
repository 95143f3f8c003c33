"""Plan windows: fetch facts outside the fence, decide inside it, and start over if the group changed meanwhile."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffsets, partitions_of
from kafka_ordered_ops.core.errors import (
    ForeignCommitError,
    OutputOwnedError,
    RecordsLostError,
    UnknownWindowError,
    WindowCoveredError,
    WindowPrunedError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group import transitions
from kafka_ordered_ops.core.group.checks import (
    check_foreign,
    check_loss,
    check_not_handed_over,
    check_owner,
    check_same_question,
    existing_window,
    known_window,
    with_losses,
)
from kafka_ordered_ops.core.group.decisions import claiming
from kafka_ordered_ops.core.group.decisions.claiming import ClaimWish, WindowWish
from kafka_ordered_ops.core.group.decisions.forgotten import recall
from kafka_ordered_ops.core.group.group_state import GroupView, WindowRecord
from kafka_ordered_ops.core.group.ledger_rules import Decision, commits_of_others
from kafka_ordered_ops.core.group.turn import GroupTurn
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import (
    OnCovered,
    OnDataLoss,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window.ownership import Publisher
from kafka_ordered_ops.core.window.plan import WindowPlan, newest_attempt
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window, check_cutoff
from kafka_ordered_ops.kafka.facts.plan_facts import PlanFacts
from kafka_ordered_ops.kafka.facts.window_facts import SnapshotReader
from kafka_ordered_ops.kafka.ports import LedgerDoor, LookupDoor
from kafka_ordered_ops.windows.checks import (
    Accept,
    check_alike,
    covers,
    expired_notes,
    left_notes,
    newest,
    present,
)
from kafka_ordered_ops.windows.open_claims import OpenClaims, log_held
from kafka_ordered_ops.windows.sink import Place
from kafka_ordered_ops.windows.values.schemas import Schemas, as_asked

_log = logging.getLogger("kafka_ordered_ops.windows")

#: Limit of new drafts after changes of the group: with each change, another process made progress.
_DRAFTS_MAX: Final = 50


class Planner:
    """Plan windows of one group; the part of the service that reads logs."""

    def __init__(
        self,
        group_id: str,
        lookup: LookupDoor,
        ledger: LedgerDoor,
        snapshots: SnapshotReader,
        *,
        lookup_timeout_s: float,
        run_id: str | None,
        owner: str | None,
        clock: Callable[[], float],
        pause: Callable[[float], object],
        schemas: Schemas,
    ) -> None:
        self._group = group_id
        self._lookup = lookup
        self._ledger = ledger
        self._snapshots = snapshots
        self._lookup_timeout_s = lookup_timeout_s
        self._run_id = run_id
        self._owner = owner
        self._clock = clock
        self._pause = pause
        self._schemas = schemas
        #: Whether a draft was outdated because others had planned meanwhile: in such a group, most drafts will be.
        self._is_overtaken = False

    def preview(self, windows: Mapping[str, Window], policy: Policy) -> list[WindowPlan]:
        """Return the plans that `plan` would make now, by window id, without writing anything."""
        self._check(windows)
        view = self._ledger.read(self._group, list(windows))
        existing = {name: existing_window(view, name) for name in windows}
        fresh = {name: window for name, window in windows.items() if existing[name] is None}
        plans = {
            # A preview is not an attempt: it must not be able to commit.
            name: replace(record.plan, claim_id="")
            for name, record in existing.items()
            if record is not None
        }
        for name, plan in plans.items():
            check_same_question(plan, windows[name])
            plans[name] = replace(plan, window=as_asked(plan, windows[name], policy))
        for name in view.forgotten.keys() & fresh.keys():
            record = self._recalled(view, name, fresh.pop(name), OnCovered.SKIP)
            plans[name] = replace(record.plan, claim_id="", attempt=0)
        if fresh:
            view, wish = self._draft(fresh, replace(policy, on_covered=OnCovered.SKIP), ())
            built = claiming.build_plans(view, wish)
            if built is None:
                raise AssertionError("a draft is valid for the view that it was made from")
            plans |= {plan.window_id: replace(plan, claim_id="", attempt=0) for plan in built}
        return [plans[name] for name in windows]

    def plan(
        self, windows: Mapping[str, Window], policy: Policy, accept: Accept, place: Place | None
    ) -> list[WindowPlan]:
        """Plan windows by id, or resume existing ones; all in one pass and one transaction.

        `accept` adopts other programs' commits as the group's progress, or raises the error about them. `place` refuses
        windows whose outputs could not be published, before they are claimed.
        """
        # 1. Windows that can be planned together.
        self._check(windows)
        with self._ledger.turn(self._group) as turn:
            return self._planned(windows, policy, accept, place, turn)

    def _planned(
        self,
        windows: Mapping[str, Window],
        policy: Policy,
        accept: Accept,
        place: Place | None,
        turn: GroupTurn,
    ) -> list[WindowPlan]:
        to_plan, replayed = dict(windows), dict[str, WindowPlan]()
        open_claims = OpenClaims(self._ledger, turn, policy, self._now_ms, self._pause)
        drafts, is_in_turn = 0, False
        while drafts < _DRAFTS_MAX and to_plan:
            # 2. Find in the group's current state which windows exist, and which are new.
            view = self._ledger.read(self._group, list(to_plan), settle=True)
            if view.state is not None and not policy.redefine:
                check_owner(view.state, self._owner)
            existing = {name: existing_window(view, name) for name in to_plan}
            resumed = {name: record for name, record in existing.items() if record is not None}
            fresh = {name: window for name, window in to_plan.items() if existing[name] is None}
            known = {name: fresh.pop(name) for name in view.forgotten.keys() & fresh.keys()}
            fresh = self._schemas.of(fresh, resumed, windows, policy)
            # 3. Handle other open windows, and outputs of others, in the way of new windows.
            if place is not None:
                notes = self._check_place(place, view, fresh, resumed, windows)
                open_claims.notes += [note for note in notes if note not in open_claims.notes]
            if fresh:
                check_not_handed_over(view.state)
                self._lookup.check_no_members(self._group)
                if open_claims.heed(view, fresh, to_plan):
                    continue
                # Most drafts made while another one changes the group stay valid. Outdated drafts are repeated in turn.
                if not is_in_turn and turn.take(overtaken=drafts > 0, early=not self._is_overtaken):
                    is_in_turn = True
                    continue
            try:
                # 4. Facts and scan, before the fence; 5. one transaction for all of them.
                after = self._claimed(fresh, known, resumed, to_plan, open_claims, place)
            except WindowCoveredError as error:
                # 6. Read records of other windows by their plans.
                if policy.on_covered is not OnCovered.REPLAY:
                    raise
                turn.leave()
                asked = to_plan.pop(error.window_id)
                replayed[error.window_id] = self._schemas.read_like(
                    self._replay_instead(error, asked), asked, policy
                )
                continue
            except ForeignCommitError as error:
                turn.leave()
                accept(error, policy.adopts_commits)
                after = None
            if after is not None:
                planned = {
                    name: self._schemas.asked_again(
                        _plan_of(known_window(after, name)), asked, policy
                    )
                    for name, asked in to_plan.items()
                }
                every = {**planned, **replayed}
                notes = left_notes(after, every.values(), policy.claim_age, now_ms=self._now_ms())
                return [
                    replace(plan, notes=(*plan.notes, *notes))
                    for plan in map(every.get, windows)
                    if plan
                ]
            drafts, is_in_turn, self._is_overtaken = drafts + 1, False, True
            _log.info(
                "group %s: the group changed while windows were drafted; starting over", self._group
            )
        if not to_plan:
            return [replayed[name] for name in windows]
        first = next(iter(to_plan))
        raise WindowSupersededError(
            f"group {self._group}: the group changed during each of {_DRAFTS_MAX} drafts of window {first}: "
            "a program abandons and plans windows in a loop. Stop it, and plan again",
            window_id=first,
        )

    def _claimed(
        self,
        fresh: Mapping[str, Window],
        forgotten: Mapping[str, Window],
        resumed: Mapping[str, WindowRecord],
        to_plan: Mapping[str, Window],
        open_claims: OpenClaims,
        place: Place | None,
    ) -> GroupView | None:
        """Return the view with the windows claimed; None if the group has changed since it was read."""
        # 4. Before the fence: the cluster's facts for the existing windows, and for the new ones.
        policy = open_claims.policy
        again = self._resuming(resumed, to_plan, policy)
        if not fresh and not forgotten and not again:
            return self._ledger.read(self._group, list(resumed))
        drafted = self._draft(fresh, policy, open_claims.notes, place)[1] if fresh else None
        now_ms = self._now_ms()

        def prepare() -> Decision:
            # The ledger may have been created for this very change.
            return partial(decide, ledger_id=self._ledger.ledger_id() or "")

        def decide(
            view: GroupView, committed: CommittedOffsets, ledger_id: str
        ) -> transitions.Outcome:
            # 5. Inside: check that the facts still fit the group's state, then claim.
            steps = list(again)
            for name, window in forgotten.items():
                steps.append(
                    partial(
                        recall,
                        window_id=name,
                        window=window,
                        on_covered=policy.on_covered,
                        now_ms=now_ms,
                    )
                )
            if drafted is not None:
                wish = replace(drafted, ledger_id=ledger_id)
                if view.state is not None:
                    check_foreign(view.state, commits_of_others(committed, view.state))
                if not claiming.are_committed_where_seen(view.state, wish, committed):
                    return None
                # Other windows were claimed since the group was read: read it again.
                if open_claims.came_meanwhile(view, fresh, to_plan):
                    return None
                steps.insert(0, partial(claiming.claim, wish=wish))
            return transitions.in_turn(view, steps)

        after = self._ledger.update(
            self._group,
            prepare,
            wanted=list(to_plan),
            processed=list(resumed),
            partitions=[draft.facts.tp for draft in drafted.drafts] if drafted else (),
            turn=open_claims.turn,
        )
        for name in to_plan if after is not None else ():
            self._tell(known_window(present(after), name).plan, is_new=name in fresh)
        return after

    def replay(self, record: WindowRecord) -> WindowPlan:
        """Return the plan of a committed window, if it can still be read."""
        plan = record.plan
        if not record.status.is_done:
            raise UnknownWindowError(
                f"window {plan.window_id} of group {self._group} is {record.status}, not committed: plan "
                "it to take it up",
                window_id=plan.window_id,
            )
        if record.pruned is not None:
            raise WindowPrunedError(
                f"window {plan.window_id} of group {self._group} was pruned from the ledger: its offsets are "
                "no longer known. Read its times with another group",
                window_id=plan.window_id,
            )
        self.check_still_there(plan)
        return _plan_of(record)

    def check_still_there(self, plan: WindowPlan) -> None:
        """Raise `RecordsLostError` if a committed window can no longer be read."""
        PlanFacts.ask(self._lookup, self._group, [plan]).check([plan])
        starts = self._lookup.log_starts(list(plan.taken))
        strict = replace(plan.window, on_data_loss=OnDataLoss.FAIL)
        parts = tuple(replace(part, lost=EMPTY_SET) for part in plan)
        gone = with_losses(replace(plan, window=strict, partitions=parts), starts)
        try:
            check_loss(gone)
        except RecordsLostError as error:
            raise RecordsLostError(
                f"window {plan.window_id} of group {self._group} cannot be replayed: retention has removed some of "
                "its offsets. The window was delivered; Kafka no longer has these records",
                lost=error.lost,
            ) from error

    # --- internals -------------------------------------------------------------------------------

    def _check(self, windows: Mapping[str, Window]) -> None:
        now_ms = self._now_ms()
        for window in windows.values():
            check_cutoff(window, now_ms)
        check_alike(windows.values())

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _replay_instead(self, error: WindowCoveredError, window: Window) -> WindowPlan:
        view = self._ledger.read(self._group, keep=lambda record: covers(record, window))
        holder = newest(record for record in view.windows.values() if covers(record, window))
        if holder is None:
            raise error
        return self.replay(holder)

    def _draft(
        self,
        fresh: Mapping[str, Window],
        policy: Policy,
        notes: Sequence[str],
        place: Place | None = None,
    ) -> tuple[GroupView, ClaimWish]:
        """Return the view, and the draft of the windows on it, as far as they can be decided outside the fence."""
        windows = list(fresh.values())
        topics = self._lookup.selected(windows[0].topics, windows[0].exclude)
        committed = self._ledger.committed_offsets(
            self._group, partitions_of(topics), timeout_s=self._lookup_timeout_s
        )
        # Read the ledger after the offsets, never before: otherwise another attempt's commit in between would look like
        # a loss of the ledger.
        view = self._ledger.read(self._group, list(fresh))
        self._ledger.check_not_lost(view, committed)
        now_ms = self._now_ms()
        snapshot = self._snapshots.read(view, windows, topics, committed, now_ms=now_ms)
        wish = ClaimWish(
            windows=[
                WindowWish(name, uuid.uuid4().hex[:16], window) for name, window in fresh.items()
            ],
            drafts=snapshot.drafts,
            newcomers=snapshot.newcomers,
            patterns=snapshot.patterns,
            now_ms=now_ms,
            looked_at=view.state,
            run_id=self._run_id,
            policy=policy,
            owner=self._owner,
            notes=(*notes, *snapshot.notes, *expired_notes(view, committed)),
            committed=committed,
        )
        check = None if place is None else place.check_columns
        return view, self._schemas.drafted(view, wish, check)

    def _tell(self, plan: WindowPlan, *, is_new: bool) -> None:
        _log.info(
            "group %s: %s %s, attempt %d, %d offsets, %d timestamps read",
            self._group,
            "planned" if is_new else "took up",
            plan.window_id,
            plan.attempt,
            plan.offsets,
            plan.scanned,
        )
        if is_new:
            log_held(plan, self._now_ms())

    def _check_place(
        self,
        place: Place,
        view: GroupView,
        fresh: Mapping[str, Window],
        resumed: Mapping[str, WindowRecord],
        windows: Mapping[str, Window],
    ) -> Sequence[str]:
        """Return notes about the place of windows that are not delivered yet; raise as `Place.check` does."""
        claims = {name: claiming.earlier_claims(view, name, fresh[name]) for name in fresh}
        for name, record in resumed.items():
            if record.status.is_open:
                claims[name] = (record.plan.claim_id, *record.plan.replaces)
        ledger_id = self._ledger.ledger_id() or ""
        publishers = [Publisher(ledger_id, self._group, name, own) for name, own in claims.items()]
        try:
            return place.check(publishers, windows) if publishers else ()
        except OutputOwnedError:
            # If the ledger is lost, raise that as the cause.
            known = [tp for tp, _ in view.state or ()]
            if view.state is None:
                first = next(iter(windows.values()))
                known = partitions_of(self._lookup.selected(first.topics, first.exclude))
            committed = self._ledger.committed_offsets(
                self._group, known, timeout_s=self._lookup_timeout_s
            )
            self._ledger.check_not_lost(view, committed)
            raise

    def _recalled(
        self, view: GroupView, window_id: str, window: Window, on_covered: OnCovered
    ) -> WindowRecord:
        outcome = recall(view, window_id, window, on_covered=on_covered, now_ms=self._now_ms())
        [record] = present(outcome).records if not isinstance(outcome, WindowRecord) else [outcome]
        return record

    def _resuming(
        self,
        existing: Mapping[str, WindowRecord],
        windows: Mapping[str, Window],
        policy: Policy,
    ) -> list[Callable[[GroupView], transitions.Outcome]]:
        """Return the decisions that resume open windows; for finished windows, only check the request."""
        for name, record in existing.items():
            check_same_question(record.plan, windows[name])
        open_ = {name: record for name, record in existing.items() if record.status.is_open}
        if not open_:
            return []
        self._lookup.check_no_members(self._group)
        plans = [record.plan for record in open_.values()]
        PlanFacts.ask(self._lookup, self._group, plans).check(plans)
        starts = self._lookup.log_starts(
            # A written window does not need its records or topics any more.
            sorted(
                {
                    part.tp
                    for record in open_.values()
                    if record.status is WindowStatus.PLANNED
                    for part in record.plan
                }
            )
        )
        unreadable = {
            name: self._unreadable(record.plan, windows[name], starts)
            for name, record in open_.items()
            if record.status is WindowStatus.PLANNED
        }
        now_ms = self._now_ms()

        return [
            partial(
                claiming.resume,
                looked_at=record,
                window=self._schemas.asked_now(record, windows[name]),
                log_starts=starts,
                unreadable=unreadable.get(name, {}),
                now_ms=now_ms,
                run_id=self._run_id,
                owner=self._owner,
                policy=policy,
            )
            for name, record in open_.items()
        ]

    def _unreadable(
        self, plan: WindowPlan, window: Window, starts: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, OffsetSet]:
        """Return the offsets of a resumed window that cannot be read; checked only if their loss is accepted."""
        if window.on_data_loss is not OnDataLoss.WARN:
            return {}
        there = {tp: taken - OffsetSet.of((0, starts[tp])) for tp, taken in plan.taken.items()}
        to_read = {tp: offsets for tp, offsets in there.items() if offsets}
        return self._snapshots.unreadable(to_read, plan.isolation) if to_read else {}


def _plan_of(record: WindowRecord) -> WindowPlan:
    """Return a window's plan; for a finished window with its newest attempt, so that it may write to the same place."""
    if not record.status.is_done:
        return record.plan
    return replace(record.plan, attempt=newest_attempt(record.plan, record.result))
