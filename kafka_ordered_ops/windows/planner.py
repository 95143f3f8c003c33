"""Plans windows: looks outside the fence, decides inside it, and starts over when the group changed meanwhile."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from kafka_ordered_ops.core.errors import (
    ConfigError,
    ForeignCommitError,
    OpenClaimError,
    RecordsLostError,
    UnknownWindowError,
    WindowCoveredError,
    WindowPrunedError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group import claiming, transitions
from kafka_ordered_ops.core.group.checks import (
    check_foreign,
    check_loss,
    check_owner,
    check_same_question,
    existing_window,
    known_window,
    with_losses,
)
from kafka_ordered_ops.core.group.claiming import ClaimWish, WindowWish
from kafka_ordered_ops.core.group.group_state import GroupView, WindowRecord
from kafka_ordered_ops.core.group.truncation import planned_logs, seen_epochs
from kafka_ordered_ops.core.offset_set import EMPTY_SET
from kafka_ordered_ops.core.times import duration_text
from kafka_ordered_ops.core.types import (
    OnCovered,
    OnDataLoss,
    OnOpenClaim,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.facts.log_spans import log_ends
from kafka_ordered_ops.kafka.facts.window_facts import (
    Survey,
    Surveyor,
    check_logs,
    check_plan_identity,
    partitions_of,
)
from kafka_ordered_ops.kafka.ports import LedgerDoor, LookupDoor
from kafka_ordered_ops.windows.checks import (
    Committed,
    check_cutoff,
    commits_of_others,
    covers,
    expired_notes,
    newest,
)

_log = logging.getLogger("kafka_ordered_ops.windows")

#: Drafts made anew because the group changed meanwhile: each time others made progress.
_DRAFTS_MAX: Final = 50

#: Open windows named in one warning.
_HELD_NAMED_MAX: Final = 5

#: How often a plan that waits for open windows looks again.
_CLAIM_LOOK_S: Final = 2.0


@dataclass
class _Request:
    """The windows still to be planned, and what was found on the way."""

    windows: dict[str, Window]
    policy: Policy
    wait_until: float
    notes: list[str]


class Planner:
    """Plans windows of one group; the part of the service that reads logs."""

    def __init__(
        self,
        group: str,
        lookup: LookupDoor,
        ledger: LedgerDoor,
        surveyor: Surveyor,
        *,
        lookup_timeout_s: float,
        run_id: str | None,
        owner: str | None,
        clock: Callable[[], float],
    ) -> None:
        self._group = group
        self._lookup = lookup
        self._ledger = ledger
        self._surveyor = surveyor
        self._lookup_timeout_s = lookup_timeout_s
        self._run_id = run_id
        self._owner = owner
        self._clock = clock

    def preview(self, windows: Mapping[str, Window], policy: Policy) -> list[WindowPlan]:
        """The plans that `plan` would make now, nothing written; by window id."""
        self._check(windows)
        view = self._ledger.read(self._group, list(windows))
        existing = {name: existing_window(view, name) for name in windows}
        fresh = {name: window for name, window in windows.items() if existing[name] is None}
        plans = {
            # A preview is no try: it must not be able to commit.
            name: replace(record.plan, claim_id="")
            for name, record in existing.items()
            if record is not None
        }
        for name, plan in plans.items():
            check_same_question(plan, windows[name])
        if fresh:
            _, view, wish = self._draft(fresh, replace(policy, on_covered=OnCovered.SKIP), ())
            built = claiming.build_plans(view, wish)
            if built is None:
                raise AssertionError("a draft suffices for the view that it was made from")
            plans |= {plan.window_id: replace(plan, claim_id="", attempt=0) for plan in built}
        return [plans[name] for name in windows]

    def plan(
        self, windows: Mapping[str, Window], policy: Policy, adopt: Callable[[], object] | None
    ) -> list[WindowPlan]:
        """Plans windows by id, or takes up those that are there; all in one pass and one transaction.

        `adopt` takes what somebody else committed for the group's progress; without it that is an error.
        """
        self._check(windows)
        wait_s = policy.claim_wait.total_seconds()
        if policy.on_open_claim is OnOpenClaim.WAIT and (call := calls.running()) is not None:
            call.allow(wait_s)
        request = _Request(dict(windows), policy, time.monotonic() + wait_s, [])
        replayed: dict[str, WindowPlan] = {}
        drafts = 0
        while drafts < _DRAFTS_MAX and request.windows:
            view = self._ledger.read(self._group, list(request.windows), settle=True)
            if view.state is not None and not policy.redefine:
                check_owner(view.state, self._owner)
            existing = {name: existing_window(view, name) for name in request.windows}
            taken_up = {name: one for name, one in existing.items() if one is not None}
            fresh = {name: one for name, one in request.windows.items() if existing[name] is None}
            if fresh:
                self._lookup.check_no_members(self._group)
                if self._heed_claims(view, fresh, request):
                    continue
            try:
                after = self._plan_or_take_up(fresh, taken_up, request)
            except WindowCoveredError as error:
                if policy.on_covered is not OnCovered.REPLAY:
                    raise
                replayed[error.window_id] = self._replay_instead(error, windows[error.window_id])
                del request.windows[error.window_id]
                continue
            except ForeignCommitError:
                if adopt is None:
                    raise
                adopt()
                after = None
            if after is not None:
                planned = {name: known_window(after, name).plan for name in request.windows}
                return [{**planned, **replayed}[name] for name in windows]
            drafts += 1
            _log.info("group %s: the group changed while windows were drafted, again", self._group)
        if not request.windows:
            return [replayed[name] for name in windows]
        first = next(iter(request.windows))
        raise WindowSupersededError(
            f"group {self._group}: the group changed under each of {_DRAFTS_MAX} drafts of window {first}: "
            "windows are abandoned and planned again in a loop somewhere. Stop that, and plan again",
            window_id=first,
        )

    def replay(self, record: WindowRecord) -> WindowPlan:
        """The plan of a committed window, if it can still be read."""
        plan = record.plan
        if not record.status.is_done:
            raise UnknownWindowError(
                f"window {plan.window_id} of group {self._group} is {record.status} and not committed: plan "
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
        return plan

    def check_topics(self, plans: Sequence[WindowPlan]) -> None:
        """The topics that are still there must be those that were planned, and their logs not cut since."""
        present = self._ledger.existing({name for plan in plans for name in plan.topics})
        for plan in plans:
            check_plan_identity(plan, present)
        wanted = {part.tp for plan in plans for part in plan if part.tp.topic in present}
        logs = planned_logs(plans)
        ends = log_ends(self._lookup, sorted(wanted), seen_epochs(*logs))
        for known in logs:
            check_logs(self._lookup, self._group, known, ends)

    def check_still_there(self, plan: WindowPlan) -> None:
        """Raises `RecordsLostError` when a committed window can no longer be read."""
        self.check_topics([plan])
        starts = self._lookup.log_starts(list(plan.taken))
        strict = replace(plan.window, on_data_loss=OnDataLoss.FAIL)
        parts = tuple(replace(part, lost=EMPTY_SET) for part in plan)
        gone = with_losses(replace(plan, window=strict, partitions=parts), starts)
        try:
            check_loss(gone)
        except RecordsLostError as error:
            raise RecordsLostError(
                f"window {plan.window_id} of group {self._group} cannot be replayed: retention has taken some of "
                "its offsets. What was delivered then is delivered; it cannot be read from Kafka again",
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
                one.start,
                one.lateness_ms,
                one.on_data_loss,
                one.mode,
            )
            for one in windows.values()
        }
        if len(kinds) != 1:
            raise ConfigError(
                "windows that are planned together differ in nothing but their times: plan others by "
                "themselves"
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

    def _heed_claims(self, view: GroupView, fresh: Mapping[str, Window], request: _Request) -> bool:
        """Does what the policy says about open windows in the way; whether the group must be read again."""
        policy = request.policy
        if policy.on_open_claim is OnOpenClaim.STEP_AROUND:
            return False
        in_the_way = _in_the_way(view, fresh, request)
        if not in_the_way:
            return False
        if policy.on_open_claim is OnOpenClaim.TAKE_OVER:
            return self._take_over(in_the_way, request)
        left_s = request.wait_until - time.monotonic()
        if policy.on_open_claim is OnOpenClaim.WAIT and left_s > 0:
            calls.waits_for(f"open windows in the way: {', '.join(_names(in_the_way)[:5])}")
            time.sleep(min(_CLAIM_LOOK_S, left_s))
            return True
        names = _names(in_the_way)
        waited = (
            f" after {duration_text(policy.claim_wait // timedelta(milliseconds=1))}"
            if policy.on_open_claim is OnOpenClaim.WAIT
            else ""
        )
        raise OpenClaimError(
            f"group {self._group}: window {next(iter(fresh))} is not planned: {len(names)} open windows may hold "
            f"records that it asks for{waited} ({', '.join(names[:5])}). Finish or abandon them, or plan with "
            "on_open_claim='step_around'",
            window_id=next(iter(fresh)),
            open_windows=names,
        )

    def _take_over(self, in_the_way: Sequence[WindowRecord], request: _Request) -> bool:
        now_ms = self._now_ms()
        age_ms = request.policy.claim_age // timedelta(milliseconds=1)
        stale = [
            record
            for record in in_the_way
            if record.status is WindowStatus.PLANNED and now_ms - record.touched_at_ms > age_ms
        ]
        if not stale:
            return False

        def give_up(one: WindowRecord) -> Callable[[GroupView], transitions.Outcome]:
            def decide(view: GroupView) -> transitions.Outcome:
                found = known_window(view, one.plan.window_id)
                # Somebody may have come back to it.
                if found != one:
                    return found
                return transitions.abandon(view, one.plan.window_id, keep_origins=True)

            return decide

        names = [record.plan.window_id for record in stale]
        after = self._ledger.update(
            self._group,
            lambda view, _: transitions.in_turn(view, [give_up(one) for one in stale]),
            wanted=names,
        )
        for record in stale:
            if after is None or known_window(after, record.plan.window_id).status.is_open:
                continue
            age = duration_text(now_ms - record.touched_at_ms)
            note = f"took over window {record.plan.window_id}, which no try had touched for {age}"
            _log.warning("group %s: %s", self._group, note)
            request.notes.append(note)
        return True

    def _draft(
        self, fresh: Mapping[str, Window], policy: Policy, notes: Sequence[str]
    ) -> tuple[Survey, GroupView, ClaimWish]:
        windows = list(fresh.values())
        topics = self._lookup.selected(windows[0].topics, windows[0].exclude)
        committed = self._ledger.committed_offsets(
            self._group, partitions_of(topics), timeout_s=self._lookup_timeout_s
        )
        # After the offsets, never before: a commit of another try in between would look like one that
        # the ledger has lost.
        view = self._ledger.read(self._group, list(fresh))
        self._ledger.check_not_lost(view, committed)
        now_ms = self._now_ms()
        survey = self._surveyor.survey(view, windows, topics, committed, now_ms=now_ms)
        wish = ClaimWish(
            windows=[
                WindowWish(name, uuid.uuid4().hex[:16], window) for name, window in fresh.items()
            ],
            drafts=survey.drafts,
            newcomers=survey.newcomers,
            patterns=survey.patterns,
            now_ms=now_ms,
            looked_at=view.state,
            run_id=self._run_id,
            on_covered=policy.on_covered,
            redefine=policy.redefine,
            owner=self._owner,
            notes=(*notes, *survey.notes, *expired_notes(view, committed)),
        )
        return survey, view, wish

    def _plan_or_take_up(
        self,
        fresh: Mapping[str, Window],
        taken_up: Mapping[str, WindowRecord],
        request: _Request,
    ) -> GroupView | None:
        again = self._taking_up(taken_up, request.windows)
        wish: ClaimWish | None = None
        partitions: list[TopicPartition] = []
        if fresh:
            survey, _, wish = self._draft(fresh, request.policy, request.notes)
            partitions = [draft.facts.tp for draft in survey.drafts]

        strict = request.policy.on_open_claim in (OnOpenClaim.WAIT, OnOpenClaim.FAIL)

        def decide(view: GroupView, committed: Committed) -> transitions.Outcome:
            steps = list(again)
            if wish is not None:
                if view.state is not None:
                    check_foreign(view.state, commits_of_others(committed, view.state))
                if not claiming.are_committed_where_seen(view.state, wish.newcomers, committed):
                    return None
                # Claimed since the group was looked at: look again.
                if strict and _in_the_way(view, fresh, request):
                    return None
                steps.insert(0, lambda now: claiming.claim(now, wish))
            return transitions.in_turn(view, steps)

        if not fresh and not again:
            return self._ledger.read(self._group, list(taken_up))
        after = self._ledger.update(
            self._group, decide, wanted=list(request.windows), partitions=partitions
        )
        if after is not None:
            for name in request.windows:
                plan = known_window(after, name).plan
                _log.info(
                    "group %s: %s %s, attempt %d, %d offsets, %d timestamps read",
                    self._group,
                    "planned" if name in fresh else "took up",
                    name,
                    plan.attempt,
                    plan.offsets,
                    plan.scanned,
                )
                if name in fresh:
                    self._tell_held(plan)
        return after

    def _tell_held(self, plan: WindowPlan) -> None:
        """Says which open windows keep a plan short."""
        if not plan.held_by_open:
            return
        now_ms = self._now_ms()
        named = ", ".join(
            f"{one.window_id} ({one.offsets:,} offsets, {one.status}, "
            f"last touched {duration_text(max(now_ms - one.touched_at_ms, 0))} ago)"
            for one in plan.held_by_open[:_HELD_NAMED_MAX]
        )
        _log.warning(
            "group %s: window %s leaves up to %d offsets that it asks for to %d open windows: %s. They come with "
            "those windows, or, once they are abandoned, with another one",
            self._group,
            plan.window_id,
            sum(one.offsets for one in plan.held_by_open),
            len(plan.held_by_open),
            named,
        )

    def _taking_up(
        self, existing: Mapping[str, WindowRecord], windows: Mapping[str, Window]
    ) -> list[Callable[[GroupView], transitions.Outcome]]:
        """What takes up the windows that are open; those that are done only have their question checked."""
        for name, record in existing.items():
            check_same_question(record.plan, windows[name])
        open_ = {name: record for name, record in existing.items() if record.status.is_open}
        if not open_:
            return []
        self._lookup.check_no_members(self._group)
        self.check_topics([record.plan for record in open_.values()])
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
        now_ms = self._now_ms()

        def taking_up(name: str) -> Callable[[GroupView], transitions.Outcome]:
            return lambda view: claiming.take_up(
                view,
                name,
                windows[name],
                log_starts=starts,
                now_ms=now_ms,
                run_id=self._run_id,
                owner=self._owner,
            )

        return [taking_up(name) for name in open_]


def _names(records: Sequence[WindowRecord]) -> list[str]:
    return [record.plan.window_id for record in records]


def _in_the_way(
    view: GroupView, fresh: Mapping[str, Window], request: _Request
) -> list[WindowRecord]:
    """Open windows whose times meet those of a window to be planned, but for those of this very call."""
    return [
        record
        for record in view.open_windows()
        if record.plan.window_id not in request.windows
        and any(record.plan.window.times.meets(window.times) for window in fresh.values())
    ]
