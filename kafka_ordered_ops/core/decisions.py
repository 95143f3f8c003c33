"""Every change of a group's state: a view and a wish in, a `Change` or an error out.

These run inside the fence, on the newest view, and may run again on a newer one: they keep no state and
look at nothing else. A wish that is fulfilled already gives no change, so that repeating it after an
unknown outcome is safe.

===========  ==============================  ====================================================
from         to                              by
===========  ==============================  ====================================================
(none)       planned                         `claim`
abandoned    planned, under a new claim      `claim`
planned      planned, attempt + 1            `take_up`
written      written, attempt + 1            `take_up`
planned      written                         `write_down`
planned      committed                       `commit` (a sink that has nothing to publish)
written      committed                       `commit`
committed    published                       `publish`
open         abandoned                       `abandon`
===========  ==============================  ====================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kafka_ordered_ops.core.errors import (
    ForeignCommitError,
    RecordsLostError,
    UnknownWindowError,
    WindowCoveredError,
    WindowMismatchError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group_state import (
    Change,
    Claims,
    GroupState,
    GroupView,
    PartitionState,
    TopicState,
    WindowRecord,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.plan import PartitionPlan, WindowPlan, check_plan_size
from kafka_ordered_ops.core.planning import PartitionDraft, settle
from kafka_ordered_ops.core.time_map import TimeMap
from kafka_ordered_ops.core.types import (
    OnCovered,
    OnDataLoss,
    PlanContent,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window import Window


@dataclass(frozen=True, slots=True)
class ClaimWish:
    """A window drafted outside the fence."""

    window_id: str
    claim_id: str
    window: Window
    drafts: Sequence[PartitionDraft]
    #: State of topics and partitions that the group did not have when the draft was made.
    newcomers: Mapping[str, TopicState]
    patterns: Sequence[str]
    now_ms: int
    run_id: str | None = None
    on_covered: OnCovered = OnCovered.SKIP
    notes: tuple[str, ...] = ()


def adopt_newcomers(view: GroupView, wish: ClaimWish) -> GroupState:
    """The group's state with the topics and partitions that the wish brings; what exists stays."""
    topics = dict(view.state.topics) if view.state else {}
    for name, new in wish.newcomers.items():
        known = topics.get(name)
        if known is None:
            topics[name] = new
        else:
            topics[name] = replace(known, partitions={**new.partitions, **known.partitions})
    if view.state is None:
        return GroupState(
            view.group, 0, wish.window.isolation, tuple(sorted(wish.patterns)), topics, ()
        )
    return replace(
        view.state, topics=topics, patterns=tuple(sorted({*view.state.patterns, *wish.patterns}))
    )


def build_plan(view: GroupView, wish: ClaimWish) -> WindowPlan | None:
    """The plan that a wish amounts to now; None when its draft no longer suffices.

    Raises:
        RecordsLostError: retention took some of it, and the window does not allow that.
        PlanTooLargeError: too many ranges.
    """
    state = adopt_newcomers(view, wish)
    claims = view.claims(but=wish.window_id)
    parts: list[PartitionPlan] = []
    for draft in wish.drafts:
        known = state.partition(draft.facts.tp)
        if known is None:
            return None
        part = settle(
            draft,
            done=known.done,
            claimed=claims.offsets(draft.facts.tp),
            late=claims.late(draft.facts.tp, known.late),
        )
        if part is None:
            return None
        parts.append(part)
    plan = WindowPlan(
        group=view.group,
        window_id=wish.window_id,
        window=wish.window,
        claim_id=wish.claim_id,
        attempt=1,
        status=WindowStatus.PLANNED,
        content=_content(parts, state, claims, wish.window.cutoff_ms),
        planned_at_ms=wish.now_ms,
        partitions=tuple(parts),
        stepped_around=tuple(
            record.plan.window_id for record in view.open_windows(but=wish.window_id)
        ),
        notes=wish.notes,
    )
    check_loss(plan)
    check_plan_size(plan)
    return plan


def claim(view: GroupView, wish: ClaimWish) -> Change | WindowRecord | None:
    """Plans a window: a change, the record if this very claim is there already, or None for a stale draft.

    A window that somebody else has planned meanwhile is taken up instead (by the caller: the record is
    returned unchanged).

    Raises:
        WindowMismatchError: the id belongs to another question.
        WindowCoveredError: others have taken everything, and `on_covered` is fail.
        RecordsLostError: retention took records of the window.
    """
    existing = view.windows.get(wish.window_id)
    if existing is not None and existing.status is not WindowStatus.ABANDONED:
        check_same_question(existing.plan, wish.window)
        return existing
    plan = build_plan(view, wish)
    if plan is None:
        return None
    if plan.content is PlanContent.COVERED and wish.on_covered is not OnCovered.SKIP:
        raise WindowCoveredError(
            f"window {plan.window_id} of group {plan.group}: other windows have taken every record stamped "
            "before its cutoff. Replay the window that holds them, or plan with on_covered='skip'",
            window_id=plan.window_id,
        )
    state = adopt_newcomers(view, wish)
    return Change(
        state=_next(state, opened=plan.window_id),
        record=WindowRecord(plan=plan, run_id=wish.run_id),
        time_maps=_learned_maps(view, wish.drafts),
    )


def take_up(
    view: GroupView,
    window_id: str,
    window: Window,
    *,
    log_starts: Mapping[TopicPartition, int],
    run_id: str | None = None,
) -> Change | WindowRecord:
    """Another try at a window: its plan stays, its attempt rises, so that older tries cannot commit.

    A window that is committed already is returned as it is. Records that retention took since are written
    down as lost where the window allows it.

    Raises:
        UnknownWindowError, WindowMismatchError, RecordsLostError
    """
    record = known_window(view, window_id)
    check_same_question(record.plan, window)
    if not record.status.is_open:
        return record
    plan = replace(record.plan, attempt=record.plan.attempt + 1)
    if record.status is WindowStatus.PLANNED:
        # A written window needs its records no more.
        loss_policy = replace(plan.window, on_data_loss=window.on_data_loss)
        plan = with_losses(replace(plan, window=loss_policy), log_starts)
        check_loss(plan)
    state = _state(view)
    return Change(state=_next(state), record=replace(record, plan=plan, run_id=run_id))


def write_down(view: GroupView, plan: WindowPlan, result: Any) -> Change | WindowRecord:
    """The sink holds all of the window, hidden: from now on a retry only commits.

    Raises:
        UnknownWindowError, WindowSupersededError
    """
    record = _owned(view, plan)
    # Written again when the output of an earlier try is gone: the newest result counts.
    if record.status.is_done or (record.status is WindowStatus.WRITTEN and record.result == result):
        return record
    written = replace(record, plan=replace(record.plan, status=WindowStatus.WRITTEN), result=result)
    return Change(state=_next(_state(view)), record=written)


def commit(
    view: GroupView,
    plan: WindowPlan,
    *,
    now_ms: int,
    others: Mapping[TopicPartition, int],
) -> Change | WindowRecord:
    """The window's offsets become part of the group's progress; committing again changes nothing.

    `others` holds the committed offsets, as just read from Kafka, that somebody else has written.

    Raises:
        UnknownWindowError: the ledger has no such window.
        WindowSupersededError: a newer attempt, a new claim or an abandonment owns the window.
        ForeignCommitError: somebody else moved the group's committed offset.
    """
    record = _owned(view, plan)
    if record.status.is_done:
        return record
    state = _state(view)
    check_foreign(state, others)
    topics = dict(state.topics)
    time_maps: dict[TopicPartition, TimeMap] = {}
    for part in record.plan:
        topic = topics[part.tp.topic]
        moved = _with_window(topic.partitions[part.tp.partition], part, record.plan.cutoff_ms)
        topics[part.tp.topic] = replace(
            topic, settled=True, partitions={**topic.partitions, part.tp.partition: moved}
        )
        known = view.time_map(part.tp)
        if (remaining := known.trimmed(moved.done)) != known:
            time_maps[part.tp] = remaining
    state = replace(
        state, topics={name: _with_committed_bases(topic) for name, topic in topics.items()}
    )
    done_plan = replace(record.plan, status=WindowStatus.COMMITTED)
    return Change(
        state=_next(state, closed=plan.window_id),
        record=replace(record, plan=done_plan, committed_at_ms=now_ms),
        time_maps=time_maps,
        moves_offsets=True,
    )


def publish(view: GroupView, plan: WindowPlan, result: Any) -> Change | WindowRecord:
    """The sink has made the committed window visible; its newest result is kept.

    Raises:
        UnknownWindowError, WindowSupersededError
    """
    record = known_window(view, plan.window_id)
    if record.plan.claim_id != plan.claim_id or not record.status.is_done:
        raise _superseded(record, plan)
    if record.status is WindowStatus.PUBLISHED and record.result == result:
        return record
    published = replace(record.plan, status=WindowStatus.PUBLISHED)
    return Change(state=_next(_state(view)), record=replace(record, plan=published, result=result))


def abandon(view: GroupView, window_id: str) -> Change | WindowRecord:
    """Gives the window's offsets free; the next window, or this id planned anew, takes them.

    An abandoned window stays abandoned without error; a committed one cannot be abandoned.

    Raises:
        UnknownWindowError, WindowSupersededError
    """
    record = known_window(view, window_id)
    if record.status is WindowStatus.ABANDONED:
        return record
    if record.status.is_done:
        raise WindowSupersededError(
            f"window {window_id} of group {view.group} is {record.status}: its offsets are part of the "
            "group's progress and cannot be given free. Replay it to read the same records again",
            window_id=window_id,
        )
    state = _state(view)
    others = {part.tp.topic for other in view.open_windows(but=window_id) for part in other.plan}
    topics = {
        # An origin that nothing was committed from may be chosen anew.
        name: topic
        for name, topic in state.topics.items()
        if topic.settled or name in others
    }
    freed = {part.tp: view.time_map(part.tp).forgetting(part.taken) for part in record.plan}
    return Change(
        state=_next(replace(state, topics=topics), closed=window_id),
        record=replace(record, plan=replace(record.plan, status=WindowStatus.ABANDONED)),
        time_maps={tp: time_map for tp, time_map in freed.items() if time_map != view.time_map(tp)},
    )


def known_window(view: GroupView, window_id: str) -> WindowRecord:
    """The window's record; raises `UnknownWindowError`."""
    record = view.windows.get(window_id)
    if record is None:
        raise UnknownWindowError(
            f"group {view.group} has no window {window_id}: list its windows, or plan it first",
            window_id=window_id,
        )
    return record


def check_same_question(plan: WindowPlan, window: Window) -> None:
    """Raises `WindowMismatchError` when a window's id is used for another question."""
    differences = plan.window.differences(window)
    if not window.start and "start" in differences:
        # The bound only matters at the group's first plan: leaving it out later asks for the same.
        del differences["start"]
    if differences:
        told = "; ".join(
            f"{name}: planned {old!r}, asked {new!r}" for name, (old, new) in differences.items()
        )
        raise WindowMismatchError(
            f"window {plan.window_id} of group {plan.group} was planned with other arguments: {told}. Use "
            "another window id, or abandon the window and plan it anew",
            window_id=plan.window_id,
            differences=differences,
        )


def check_loss(plan: WindowPlan) -> None:
    """Raises `RecordsLostError` when a plan has lost offsets and its window does not allow that."""
    if not plan.lost or plan.window.on_data_loss is OnDataLoss.WARN:
        return
    lost = {str(tp): offsets.ranges for tp, offsets in plan.lost.items()}
    first = next(iter(lost))
    raise RecordsLostError(
        f"window {plan.window_id} of group {plan.group}: retention or deletion took offsets that were still "
        f"to be delivered, {first} {_shown(plan.lost)}. They cannot be had from Kafka any more: plan with "
        "on_data_loss='warn' to write them down as lost and go on",
        lost=lost,
    )


def check_foreign(state: GroupState, others: Mapping[TopicPartition, int]) -> None:
    """Raises `ForeignCommitError` when somebody else's commit is not the one that the group began with.

    A missing commit is not foreign: committed offsets of an idle group expire, and the next commit restores
    them.
    """
    moved = {
        str(tp): (partition.committed, others[tp])
        for tp, partition in state
        if tp in others and others[tp] != partition.committed
    }
    if moved:
        where, (known, found) = next(iter(moved.items()))
        raise ForeignCommitError(
            f"group {state.group}: the committed offset of {where} is {found}, and this group last wrote "
            f"{'none' if known is None else known} ({len(moved)} partitions differ). Somebody else commits "
            "to this group: give the windows a group of their own, or set the offset back",
            moved=moved,
        )


def with_losses(plan: WindowPlan, log_starts: Mapping[TopicPartition, int]) -> WindowPlan:
    """The plan with what retention took since moved from taken to lost."""
    parts: list[PartitionPlan] = []
    for part in plan:
        gone = part.taken & OffsetSet.of((0, log_starts.get(part.tp, 0)))
        parts.append(
            replace(part, taken=part.taken - gone, lost=part.lost | gone) if gone else part
        )
    return replace(plan, partitions=tuple(parts))


def _owned(view: GroupView, plan: WindowPlan) -> WindowRecord:
    record = known_window(view, plan.window_id)
    if record.plan.claim_id != plan.claim_id:
        raise _superseded(record, plan)
    # A committed window is the same for every attempt; an open one belongs to the newest.
    if not record.status.is_done and (
        record.plan.attempt != plan.attempt or record.status is WindowStatus.ABANDONED
    ):
        raise _superseded(record, plan)
    return record


def _superseded(record: WindowRecord, plan: WindowPlan) -> WindowSupersededError:
    return WindowSupersededError(
        f"window {plan.window_id} of group {plan.group}: this is attempt {plan.attempt} of claim "
        f"{plan.claim_id}, and the ledger has attempt {record.plan.attempt} of claim "
        f"{record.plan.claim_id} ({record.status}). Another try took the window over: leave it to that one",
        window_id=plan.window_id,
    )


def _state(view: GroupView) -> GroupState:
    if view.state is None:
        raise UnknownWindowError(f"group {view.group} has no state in the ledger", window_id="")
    return view.state


def _next(state: GroupState, *, opened: str | None = None, closed: str | None = None) -> GroupState:
    open_ = [window_id for window_id in state.open if window_id != closed]
    if opened is not None:
        open_.append(opened)
    return replace(state, sequence=state.sequence + 1, open=tuple(open_))


def _content(
    parts: Sequence[PartitionPlan], state: GroupState, claims: Claims, cutoff_ms: int
) -> PlanContent:
    if any(part.taken or part.lost for part in parts):
        return PlanContent.RECORDS
    frozen = [
        claims.late(part.tp, known.late).latest_ms
        for part in parts
        if (known := state.partition(part.tp)) is not None
    ]
    # Nothing is left. If every partition was decided up to this cutoff before, others have taken it.
    covered = bool(frozen) and all(latest is not None and latest >= cutoff_ms for latest in frozen)
    return PlanContent.COVERED if covered else PlanContent.EMPTY


def _learned_maps(
    view: GroupView, drafts: Sequence[PartitionDraft]
) -> dict[TopicPartition, TimeMap]:
    learned: dict[TopicPartition, TimeMap] = {}
    for draft in drafts:
        if not draft.learned and not draft.superseded:
            continue
        tp = draft.facts.tp
        known = view.time_map(tp)
        newest = known.without(draft.superseded).replaced(draft.learned).limited()
        if newest != known:
            learned[tp] = newest
    return learned


def _with_window(state: PartitionState, part: PartitionPlan, cutoff_ms: int) -> PartitionState:
    done = state.done | part.taken | part.lost
    late = state.late.with_step(part.decided_end, cutoff_ms)
    moved = replace(state, done=done)
    return replace(moved, late=late.from_offset(moved.base))


def _with_committed_bases(topic: TopicState) -> TopicState:
    partitions = {
        number: replace(state, committed=state.base) for number, state in topic.partitions.items()
    }
    return replace(topic, partitions=partitions)


def _shown(lost: Mapping[TopicPartition, OffsetSet]) -> str:
    offsets = next(iter(lost.values()))
    ranges = ", ".join(f"[{start}, {end})" for start, end in offsets.ranges[:3])
    more = len(lost) - 1
    return f"{ranges}{f' and {more} more partitions' if more else ''}"
