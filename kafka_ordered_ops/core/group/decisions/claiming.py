"""Plan inside the fence: turn drafts and the newest view into plans that claim their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffsets
from kafka_ordered_ops.core.errors import PlanTooLargeError, WindowCoveredError
from kafka_ordered_ops.core.group.checks import (
    check_loss,
    check_not_fewer,
    check_not_handed_over,
    check_same_group,
    check_same_question,
    existing_window,
    known_state,
    with_losses,
)
from kafka_ordered_ops.core.group.decisions.committable import check_committable
from kafka_ordered_ops.core.group.decisions.held import held_by_open
from kafka_ordered_ops.core.group.decisions.newcomers import is_first_plan, with_newcomers
from kafka_ordered_ops.core.group.decisions.truncation import known_end
from kafka_ordered_ops.core.group.group_state import (
    Change,
    Claims,
    GroupDefinition,
    GroupState,
    GroupView,
    PartitionState,
    TopicState,
    WindowRecord,
    next_state,
)
from kafka_ordered_ops.core.offset_set import GrowingOffsetSet, OffsetSet
from kafka_ordered_ops.core.planning.notes import hidden_notes
from kafka_ordered_ops.core.planning.planning import PartitionDecision, WindowsRequest, settle
from kafka_ordered_ops.core.planning.time_map import EMPTY_MAP, TimeMap
from kafka_ordered_ops.core.time_ranges import TimeRange, TimeSplit
from kafka_ordered_ops.core.types import (
    PlanContent,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window.covered import covered_text
from kafka_ordered_ops.core.window.plan import PartitionPlan, WindowPlan, check_plan_size
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy
from kafka_ordered_ops.core.window.window import Window


@dataclass(frozen=True, slots=True)
class WindowWish:
    """One window to be planned: its name, and the token that its claim will carry."""

    window_id: str
    claim_id: str
    window: Window


@dataclass(frozen=True, slots=True)
class ClaimWish:
    """Windows drafted together outside the fence, in the order in which they are served."""

    windows: Sequence[WindowWish]
    drafts: Sequence[PartitionDecision]
    #: State of topics and partitions that the group did not have when the draft was made.
    newcomers: Mapping[str, TopicState]
    patterns: Sequence[str]
    now_ms: int
    #: The group's state when it was read: topics that it did not have then are not in the drafts.
    looked_at: GroupState | None = None
    run_id: str | None = None
    policy: Policy = DEFAULT_POLICY
    #: The planner's name; None: not given.
    owner: str | None = None
    notes: tuple[str, ...] = ()
    #: The group's commits when its new partitions were given a start.
    committed: CommittedOffsets = field(default_factory=dict)
    #: The ledger that the windows are claimed in; empty in a preview.
    ledger_id: str = ""
    #: The group's inferred columns from now on, with those that the windows' values have; None: none are inferred.
    columns: Mapping[str, list[Any]] | None = None


def claim(view: GroupView, wish: ClaimWish) -> Change | tuple[WindowRecord, ...] | None:
    """Plan windows: a change, the records if these very claims are there already, or None.

    None: the draft no longer suffices, or another process has planned one of the ids meanwhile. Read again.

    Raises:
        GroupMismatchError: the group was planned otherwise so far.
        GroupHandedOverError: Parallel Consumer has the group.
        WindowCoveredError: others have taken everything, and `on_covered` is fail or replay.
        RecordsLostError: retention took records of the window.
        FewerRecordsError: a rewound window would hold less than it delivered.
        PlanTooLargeError: too many ranges, of a window or of the group's state after its commit.
        OffsetMapTooLargeError: the group shares its progress with Parallel Consumer, whose maps could not store it.
    """
    existing = [existing_window(view, window_wish.window_id) for window_wish in wish.windows]
    records = tuple(record for record in existing if record is not None)
    if records:
        # An earlier attempt of this very call may have succeeded without an answer, and no attempt has resumed it since.
        claims = {window_wish.claim_id for window_wish in wish.windows}
        mine = all(
            record.plan.claim_id in claims and record.plan.attempt == 1 for record in records
        )
        return records if mine and len(records) == len(existing) else None
    if any(window_wish.window_id in view.forgotten for window_wish in wish.windows):
        return None
    if any(wanted.window.is_open for wanted in wish.windows) or _has_other_columns(view, wish):
        return None
    plans = build_plans(view, wish)
    if plans is None:
        return None
    for plan in plans:
        check_not_fewer(plan)
        if plan.content is PlanContent.COVERED and not wish.policy.on_covered.allows_covered:
            raise WindowCoveredError(
                f"{covered_text(plan)}. Replay the window that has them, or plan with on_covered='skip'",
                window_id=plan.window_id,
            )
    return Change(
        state=next_state(
            _with_epochs(state_with(view, wish), wish.drafts),
            opened=[plan.window_id for plan in plans],
        ),
        records=tuple(
            WindowRecord(plan=plan, run_id=wish.run_id, touched_at_ms=wish.now_ms) for plan in plans
        ),
        time_maps=_learned_maps(view, wish),
    )


def _has_other_columns(view: GroupView, wish: ClaimWish) -> bool:
    """Return whether another process has stored columns since these were inferred: the stored ones count."""
    if wish.columns is None:
        return False
    seen = {} if wish.looked_at is None else wish.looked_at.columns
    return seen != ({} if view.state is None else view.state.columns)


def build_plans(view: GroupView, wish: ClaimWish) -> list[WindowPlan] | None:
    """Return the plans that a wish amounts to now; None when its draft no longer suffices.

    Raises:
        GroupHandedOverError, GroupMismatchError, RecordsLostError, PlanTooLargeError, OffsetMapTooLargeError
    """
    check_not_handed_over(view.state)
    if view.state is not None and not wish.policy.redefine:
        for window_wish in wish.windows:
            check_same_group(view.state, window_wish.window, wish.owner)
    if _is_other_group(view.state, wish):
        return None
    state = state_with(view, wish)
    claims = replace(view, state=state).claims()
    windows = [window_wish.window for window_wish in wish.windows]
    # Most partitions have seen the same windows, and then all of them are asked for the same.
    splits: dict[tuple[TimeRange, ...], TimeSplit] = {}
    shares: list[tuple[PartitionPlan, ...]] = []
    for draft in wish.drafts:
        tp = draft.facts.tp
        known = state.partition(tp)
        if known is None or state.topics[tp.topic].topic_id != draft.facts.topic_id:
            return None
        if not _is_same_leader(view, claims, draft, known):
            return None
        late = claims.late(tp, known.late)
        if (frozen := late.times) not in splits:
            splits[frozen] = WindowsRequest.of(windows, frozen).split
        settled = settle(
            draft,
            done=known.done,
            claimed=claims.offsets(tp),
            late=late,
            split=splits[frozen],
        )
        if settled is None:
            return None
        shares.append(settled)
    ends = {share[0].tp: share[0].decided_end for share in shares}
    held = held_by_open(view, state, windows, ends)
    covered = _CoveredTimes(state, claims, [draft.facts.tp for draft in wish.drafts])
    plans: list[WindowPlan] = []
    facts = [draft.facts for draft in wish.drafts]
    for number, window_wish in enumerate(wish.windows):
        parts = tuple(share[number] for share in shares)
        plan = WindowPlan(
            group_id=view.group_id,
            window_id=window_wish.window_id,
            window=window_wish.window,
            claim_id=window_wish.claim_id,
            attempt=1,
            status=WindowStatus.PLANNED,
            content=_content(parts, covered, window_wish.window),
            planned_at_ms=wish.now_ms,
            partitions=parts,
            stepped_around=view.state.open if view.state else (),
            held_by_open=held[number],
            notes=(*wish.notes, *hidden_notes(facts, number)),
            ledger_id=wish.ledger_id,
            replaces=earlier_claims(view, window_wish.window_id, window_wish.window),
            allow_fewer=wish.policy.allow_fewer,
            adopts_commits=wish.policy.adopts_commits,
            scanned=sum(draft.records_scanned for draft in wish.drafts) if number == 0 else 0,
        )
        check_loss(plan)
        check_plan_size(plan)
        _check_offsets(plan, wish.policy.max_offsets, "Nothing was claimed")
        covered.add(window_wish.window.times)
        plans.append(plan)
    check_committable(state, plans)
    return plans


def _check_offsets(plan: WindowPlan, limit: int | None, outcome: str) -> None:
    if limit is None or plan.offsets <= limit:
        return
    by_topic = dict.fromkeys(plan.topics, 0)
    for part in plan:
        by_topic[part.tp.topic] += part.taken.count
    worst = max(by_topic, key=lambda topic: by_topic[topic])
    raise PlanTooLargeError(
        f"window {plan.window_id} of group {plan.group_id} has {plan.offsets:,} offsets, and max_offsets is {limit:,}; "
        f"{by_topic[worst]:,} of them are in topic {worst}. {outcome}. Raise the limit, or take it in steps, with "
        "earlier cutoffs first",
        topic=worst,
    )


def earlier_claims(view: GroupView, window_id: str, window: Window) -> tuple[str, ...]:
    """Return the claims of a window that is planned again whose output readers may see.

    Raises `WindowMismatchError` when it asks for other records than they did, and would hide theirs.
    """
    record = view.windows.get(window_id)
    if record is None:
        return ()
    delivered = (record.plan.claim_id,) if record.status is WindowStatus.REWOUND else ()
    claims = (*record.plan.replaces, *delivered)
    if claims:
        why = "It was delivered, and progress was moved back since: another request would replace its output"
        check_same_question(record.plan, window, remedy=f"{why}. Use another window id")
    return claims


def are_committed_where_seen(
    state: GroupState | None, wish: ClaimWish, committed: CommittedOffsets
) -> bool:
    """Return whether the commits that new partitions may begin at are still those that were seen, maps included."""
    new = (
        TopicPartition(name, number)
        for name, topic in wish.newcomers.items()
        for number in topic.partitions
    )
    return all(
        committed.get(tp) == wish.committed.get(tp)
        for tp in new
        if state is None or state.partition(tp) is None
    )


def state_with(view: GroupView, wish: ClaimWish) -> GroupState:
    """Return the group's state with the wish's new topics and partitions; existing ones stay."""
    definition = GroupDefinition.of(wish.windows[0].window, wish.owner)
    if view.state is None:
        return GroupState(
            *(view.group_id, 0, definition, tuple(sorted(wish.patterns)), dict(wish.newcomers), ()),
            columns=wish.columns or {},
        )
    state = view.state
    topics = with_newcomers(state, wish.newcomers, wish.windows[0].window).topics
    if wish.policy.redefine or not state.topics or not state.definition.topics:
        # A group without topics has nothing that another definition could contradict; a sweep has no mode.
        mode = definition.mode or (state.definition.mode if state.topics else None)
        owner = wish.owner or state.definition.owner
        state = replace(state, definition=replace(definition, mode=mode, owner=owner))
    else:
        mode = state.definition.mode or definition.mode
        same = replace(state.definition, mode=mode).owned_by(wish.owner)
        state = replace(state, definition=same)
    columns = {} if wish.policy.redefine else state.columns
    return replace(
        state,
        topics=topics,
        patterns=tuple(sorted({*state.patterns, *wish.patterns})),
        columns=columns if wish.columns is None else wish.columns,
    )


def _is_same_leader(
    view: GroupView, claims: Claims, draft: PartitionDecision, known: PartitionState
) -> bool:
    """Return whether the draft read under the group's leader, or under a newer one that was asked about the known log."""
    mine, groups = draft.facts.leader_epoch, known.leader_epoch
    if mine is None or groups is None or mine == groups:
        return True
    end = known_end(view, claims, draft.facts.tp, known)
    return mine > groups and end <= draft.facts.checked_end


def _with_epochs(state: GroupState, drafts: Sequence[PartitionDecision]) -> GroupState:
    """Return the state with the leaders under which the logs were read."""
    topics = dict(state.topics)
    for facts in (draft.facts for draft in drafts):
        topic = topics[facts.tp.topic]
        known = topic.partitions[facts.tp.partition]
        if facts.leader_epoch is not None and facts.leader_epoch != known.leader_epoch:
            partition = replace(known, leader_epoch=facts.leader_epoch)
            partitions = {**topic.partitions, facts.tp.partition: partition}
            topics[facts.tp.topic] = replace(topic, partitions=partitions)
    return replace(state, topics=topics)


def _is_other_group(now: GroupState | None, wish: ClaimWish) -> bool:
    """Return whether the group has partitions that were not read, or its new ones now begin elsewhere."""
    looked_at, window = wish.looked_at, wish.windows[0].window
    known = {draft.facts.tp for draft in wish.drafts}.union(tp for tp, _ in looked_at or ())
    if any(tp not in known for tp, _ in now or ()):
        return True
    still_new = [name for name in wish.newcomers if now is None or name not in now.topics]
    return any(
        is_first_plan(looked_at, window, name) != is_first_plan(now, window, name)
        for name in still_new
    )


def resume(
    view: GroupView,
    *,
    looked_at: WindowRecord,
    window: Window,
    log_starts: Mapping[TopicPartition, int],
    unreadable: Mapping[TopicPartition, OffsetSet],
    now_ms: int,
    run_id: str | None = None,
    owner: str | None = None,
    policy: Policy = DEFAULT_POLICY,
) -> Change | WindowRecord | None:
    """Resume a window: its plan stays and its attempt rises, so that older attempts cannot commit.

    None: the window was abandoned, rewound or forgotten since, and may have been planned again, so the log starts are of
    other offsets. Read again.

    A committed window is returned unchanged. Records that retention removed since, or that are unreadable, are recorded as
    lost if the window allows it. Those that earlier attempts processed are not lost; the view must have been asked for them. Reports of single
    parts belong to the older attempt.

    Raises:
        WindowMismatchError, WindowPrunedError, WindowRewoundError, RecordsLostError, FewerRecordsError
    """
    record = existing_window(view, looked_at.plan.window_id)
    if record is None or record.plan.claim_id != looked_at.plan.claim_id:
        return None
    check_same_question(record.plan, window)
    if not record.status.is_open:
        return record
    plan = replace(
        record.plan,
        attempt=record.plan.attempt + 1,
        allow_fewer=record.plan.allow_fewer or policy.allow_fewer,
        adopts_commits=record.plan.adopts_commits or policy.adopts_commits,
    )
    _check_offsets(plan, policy.max_offsets, f"It stays {record.status}")
    parts = record.parts
    if record.status is WindowStatus.PLANNED:
        # A written window needs its records no more.
        # What this attempt may lose, and how it reads: a replay later reads as the attempt that delivered.
        attempt_window = replace(plan.window.read_like(window), on_data_loss=window.on_data_loss)
        processed = view.processed_offsets(record.plan)
        plan = with_losses(replace(plan, window=attempt_window), log_starts, processed, unreadable)
        check_loss(plan)
        check_not_fewer(plan)
        parts = None
    state = known_state(view)
    return Change(
        state=next_state(replace(state, definition=state.definition.owned_by(owner))),
        records=(replace(record, plan=plan, run_id=run_id, touched_at_ms=now_ms, parts=parts),),
    )


class _CoveredTimes:
    """The times for which every partition was decided before; grows by the windows that are planned now."""

    def __init__(
        self, state: GroupState, claims: Claims, partitions: Iterable[TopicPartition]
    ) -> None:
        # Most partitions have seen the same windows.
        frozen = {
            claims.late(tp, known.late).times
            for tp in partitions
            if (known := state.partition(tp)) is not None
        }
        # Ranges of times are no offsets, and grow by the same rule.
        self._frozen = [GrowingOffsetSet() for _ in frozen]
        for growing, ranges in zip(self._frozen, frozen, strict=True):
            for times in ranges:
                growing.add(*times)

    def add(self, times: TimeRange) -> None:
        """Add the times of one more window, which is decided on every partition."""
        for growing in self._frozen:
            growing.add(*times)

    def hold(self, times: TimeRange) -> bool:
        """Return whether all these times were decided on every partition."""
        return bool(self._frozen) and all(
            growing.first_missing(times.since_ms) >= times.before_ms for growing in self._frozen
        )


def _content(parts: Sequence[PartitionPlan], covered: _CoveredTimes, window: Window) -> PlanContent:
    if any(part.taken or part.lost for part in parts):
        return PlanContent.RECORDS
    # Nothing is left. If every partition was decided for all these times before, others have taken it.
    return PlanContent.COVERED if covered.hold(window.times) else PlanContent.EMPTY


def _learned_maps(view: GroupView, wish: ClaimWish) -> dict[TopicPartition, TimeMap]:
    # Of a group that reads other records from now on, nothing is known.
    is_forgotten = not knows_times(view.state, wish.windows[0].window)
    learned: dict[TopicPartition, TimeMap] = {}
    if is_forgotten:
        learned = dict.fromkeys(view.time_maps, EMPTY_MAP)
    for draft in wish.drafts:
        if not draft.learned and not draft.superseded:
            continue
        tp, topic_id = draft.facts.tp, draft.facts.topic_id
        known = EMPTY_MAP if is_forgotten else view.time_map(tp, topic_id)
        newest = known.without(draft.superseded).replaced(draft.learned).limited()
        if newest != known:
            learned[tp] = newest.of_topic(topic_id)
    return learned


def knows_times(state: GroupState | None, window: Window) -> bool:
    """Return whether the group's time maps speak of the records that a window counts."""
    return state is None or not state.topics or state.definition.isolation is window.isolation
