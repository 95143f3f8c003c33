"""Plan windows: fetch facts outside the fence, decide inside it, and start over if the group changed meanwhile."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from kafka_ordered_ops.core.cluster_facts import CommittedOffsets
from kafka_ordered_ops.core.errors import (
    ConfigError,
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
from kafka_ordered_ops.core.times import duration_text
from kafka_ordered_ops.core.types import (
    OnCovered,
    OnDataLoss,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window.ownership import Publisher
from kafka_ordered_ops.core.window.plan import WindowPlan, newest_attempt
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.facts.plan_facts import PlanFacts
from kafka_ordered_ops.kafka.facts.window_facts import SnapshotReader, partitions_of
from kafka_ordered_ops.kafka.ports import LedgerDoor, LookupDoor
from kafka_ordered_ops.windows.checks import (
    Accept,
    check_cutoff,
    covers,
    expired_notes,
    newest,
    present,
    unpublished_notes,
)
from kafka_ordered_ops.windows.open_claims import OpenClaims
from kafka_ordered_ops.windows.sink import Place

_log = logging.getLogger("kafka_ordered_ops.windows")

#: Limit for new drafts because the group changed: each time, another process made progress.
_DRAFTS_MAX: Final = 50

#: Open windows named in one warning.
_HELD_NAMED_MAX: Final = 5


class Planner:
    """Plans windows of one group; the part of the service that reads logs."""

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
        #: Whether a draft was worthless because others had planned meanwhile: in such a log, most will be.
        self._is_overtaken = False

    def preview(self, windows: Mapping[str, Window], policy: Policy) -> list[WindowPlan]:
        """Return the plans that `plan` would make now, nothing written; by window id."""
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
        for name in view.forgotten.keys() & fresh.keys():
            found = self._recalled(view, name, fresh.pop(name), OnCovered.SKIP)
            plans[name] = replace(found.plan, claim_id="", attempt=0)
        if fresh:
            view, wish = self._draft(fresh, replace(policy, on_covered=OnCovered.SKIP), ())
            built = claiming.build_plans(view, wish)
            if built is None:
                raise AssertionError("a draft suffices for the view that it was made from")
            plans |= {plan.window_id: replace(plan, claim_id="", attempt=0) for plan in built}
        return [plans[name] for name in windows]

    def plan(
        self, windows: Mapping[str, Window], policy: Policy, accept: Accept, place: Place | None
    ) -> list[WindowPlan]:
        """Plan windows by id, or resume existing ones; all in one pass and one transaction.

        `accept` takes other programs' commits as the group's progress, or raises the error about them. `place` refuses
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
        wanted, replayed = dict(windows), dict[str, WindowPlan]()
        open_claims = OpenClaims(self._ledger, turn, policy, self._now_ms, self._pause)
        drafts, is_in_turn = 0, False
        while drafts < _DRAFTS_MAX and wanted:
            # 2. In the group's current state: which of them exist, and which are new.
            view = self._ledger.read(self._group, list(wanted), settle=True)
            if view.state is not None and not policy.redefine:
                check_owner(view.state, self._owner)
            existing = {name: existing_window(view, name) for name in wanted}
            resumed = {name: one for name, one in existing.items() if one is not None}
            fresh = {name: one for name, one in wanted.items() if existing[name] is None}
            known = {name: fresh.pop(name) for name in view.forgotten.keys() & fresh.keys()}
            # 3. Other open windows, and others' outputs, in the way of new ones.
            if place is not None:
                notes = self._check_place(place, view, fresh, resumed, windows)
                open_claims.notes += [one for one in notes if one not in open_claims.notes]
            if fresh:
                check_not_handed_over(view.state)
                self._lookup.check_no_members(self._group)
                if open_claims.heed(view, fresh, wanted):
                    continue
                # Most drafts hold that are made while the one before changes the group. The others are made in turn.
                if not is_in_turn and turn.take(overtaken=drafts > 0, early=not self._is_overtaken):
                    is_in_turn = True
                    continue
            try:
                # 4. Facts and scan, before the fence; 5. one transaction for all of them.
                after = self._claimed(fresh, known, resumed, wanted, open_claims)
            except WindowCoveredError as error:
                # 6. Records of other windows are read from their plans.
                if policy.on_covered is not OnCovered.REPLAY:
                    raise
                turn.leave()
                replayed[error.window_id] = self._replay_instead(error, wanted.pop(error.window_id))
                continue
            except ForeignCommitError as error:
                turn.leave()
                accept(error)
                after = None
            if after is not None:
                planned = {name: _plan_of(known_window(after, name)) for name in wanted}
                notes = unpublished_notes(after, windows)
                every = {**planned, **replayed}
                return [
                    replace(one, notes=(*one.notes, *notes))
                    for one in map(every.get, windows)
                    if one
                ]
            drafts, is_in_turn, self._is_overtaken = drafts + 1, False, True
            _log.info(
                "group %s: the group changed while windows were drafted; starting over", self._group
            )
        if not wanted:
            return [replayed[name] for name in windows]
        first = next(iter(wanted))
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
        wanted: Mapping[str, Window],
        open_claims: OpenClaims,
    ) -> GroupView | None:
        """Return the view with the windows claimed; None if the group has changed since it was read."""
        # 4. Before the fence: the cluster's facts for the existing windows, and for the new ones.
        policy = open_claims.policy
        again = self._resuming(resumed, wanted, allow_fewer=policy.allow_fewer)
        if not fresh and not forgotten and not again:
            return self._ledger.read(self._group, list(resumed))
        drafted = self._draft(fresh, policy, open_claims.notes)[1] if fresh else None
        now_ms = self._now_ms()

        def prepare() -> Decision:
            # The ledger may have been created for this very change.
            return partial(decide, ledger_id=self._ledger.ledger_id() or "")

        def decide(
            view: GroupView, committed: CommittedOffsets, ledger_id: str
        ) -> transitions.Outcome:
            # 5. Inside: check that the facts still fit the group's state; then the claims.
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
                # Claimed since the group was read: read again.
                if open_claims.came_meanwhile(view, fresh, wanted):
                    return None
                steps.insert(0, partial(claiming.claim, wish=wish))
            return transitions.in_turn(view, steps)

        after = self._ledger.update(
            self._group,
            prepare,
            wanted=list(wanted),
            processed=list(resumed),
            partitions=[draft.facts.tp for draft in drafted.drafts] if drafted else (),
            turn=open_claims.turn,
        )
        for name in wanted if after is not None else ():
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
        """Raise `RecordsLostError` when a committed window can no longer be read."""
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

    # --- inside ----------------------------------------------------------------------------------

    def _check(self, windows: Mapping[str, Window]) -> None:
        now_ms = self._now_ms()
        for window in windows.values():
            check_cutoff(window, now_ms)
        kinds = {
            (
                one.topics,
                one.exclude,
                one.isolation,
                one.starting_offsets,
                one.out_of_orderness_ms,
                one.on_data_loss,
                one.mode,
            )
            for one in windows.values()
        }
        if len(kinds) != 1:
            raise ConfigError(
                "windows that are planned together may differ only in their times: plan the others "
                "separately"
                if kinds
                else "there is no window to plan"
            )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _replay_instead(self, error: WindowCoveredError, window: Window) -> WindowPlan:
        view = self._ledger.read(self._group, keep=lambda record: covers(record, window))
        holder = newest(record for record in view.windows.values() if covers(record, window))
        if holder is None:
            raise error
        return self.replay(holder)

    def _draft(
        self, fresh: Mapping[str, Window], policy: Policy, notes: Sequence[str]
    ) -> tuple[GroupView, ClaimWish]:
        """Return the windows as far as they can be decided outside the fence, and the view they were drafted on."""
        windows = list(fresh.values())
        topics = self._lookup.selected(windows[0].topics, windows[0].exclude)
        committed = self._ledger.committed_offsets(
            self._group, partitions_of(topics), timeout_s=self._lookup_timeout_s
        )
        # After the offsets, never before: another attempt's commit in between would appear to be lost by the ledger.
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
            on_covered=policy.on_covered,
            redefine=policy.redefine,
            owner=self._owner,
            allow_fewer=policy.allow_fewer,
            notes=(*notes, *snapshot.notes, *expired_notes(view, committed)),
            committed=committed,
        )
        return view, wish

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
            self._tell_held(plan)

    def _tell_held(self, plan: WindowPlan) -> None:
        """Log which open windows hold offsets that a plan asks for."""
        if not plan.held_by_open:
            return
        now_ms = self._now_ms()
        named = ", ".join(
            f"{one.window_id} ({one.offsets:,} offsets, {one.status}, "
            f"last touched {duration_text(max(now_ms - one.touched_at_ms, 0))} ago)"
            for one in plan.held_by_open[:_HELD_NAMED_MAX]
        )
        _log.warning(
            "group %s: window %s leaves up to %d offsets that it asks for to %d open windows: %s. These windows deliver "
            "them or, once they are abandoned, another window does",
            self._group,
            plan.window_id,
            sum(one.offsets for one in plan.held_by_open),
            len(plan.held_by_open),
            named,
        )

    def _check_place(
        self,
        place: Place,
        view: GroupView,
        fresh: Mapping[str, Window],
        resumed: Mapping[str, WindowRecord],
        windows: Mapping[str, Window],
    ) -> Sequence[str]:
        """Return notes on the place of windows that are not delivered yet; raise what `Place.check` raises."""
        claims = {name: claiming.earlier_claims(view, name, fresh[name]) for name in fresh}
        for name, record in resumed.items():
            if record.status.is_open:
                claims[name] = (record.plan.claim_id, *record.plan.replaces)
        ledger_id = self._ledger.ledger_id() or ""
        publishers = [Publisher(ledger_id, self._group, name, own) for name, own in claims.items()]
        try:
            return place.check(publishers, windows) if publishers else ()
        except OutputOwnedError:
            # Of a ledger that is lost, that is the cause.
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
        found = recall(view, window_id, window, on_covered=on_covered, now_ms=self._now_ms())
        [record] = present(found).records if not isinstance(found, WindowRecord) else [found]
        return record

    def _resuming(
        self,
        existing: Mapping[str, WindowRecord],
        windows: Mapping[str, Window],
        *,
        allow_fewer: bool,
    ) -> list[Callable[[GroupView], transitions.Outcome]]:
        """Return the decision that resumes open windows; for finished windows only the request is checked."""
        for name, record in existing.items():
            check_same_question(record.plan, windows[name])
        open_ = {name: record for name, record in existing.items() if record.status.is_open}
        if not open_:
            return []
        self._lookup.check_no_members(self._group)
        plans = [record.plan for record in open_.values()]
        PlanFacts.ask(self._lookup, self._group, plans).check(plans)
        starts = self._lookup.log_starts(
            # A written window needs its records no more: nor that its topics are still there.
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
                window=windows[name],
                log_starts=starts,
                unreadable=unreadable.get(name, {}),
                now_ms=now_ms,
                run_id=self._run_id,
                owner=self._owner,
                allow_fewer=allow_fewer,
            )
            for name, record in open_.items()
        ]

    def _unreadable(
        self, plan: WindowPlan, window: Window, starts: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, OffsetSet]:
        """Return the offsets of a resumed window that cannot be read; they are looked for if their loss is accepted."""
        if window.on_data_loss is not OnDataLoss.WARN:
            return {}
        there = {tp: taken - OffsetSet.of((0, starts[tp])) for tp, taken in plan.taken.items()}
        wanted = {tp: offsets for tp, offsets in there.items() if offsets}
        return self._snapshots.unreadable(wanted, plan.isolation) if wanted else {}


def _plan_of(record: WindowRecord) -> WindowPlan:
    """Return a window's plan; of a delivered one as its newest attempt, so that it may be read into the same place."""
    if not record.status.is_done:
        return record.plan
    return replace(record.plan, attempt=newest_attempt(record.plan, record.result))
