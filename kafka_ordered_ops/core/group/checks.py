"""Conditions on a window and its group before anything is written; each violation is a named error."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kafka_ordered_ops.core.arguments import first_of
from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts
from kafka_ordered_ops.core.errors import (
    ForeignCommitError,
    GroupHandedOverError,
    GroupMismatchError,
    OpenClaimError,
    RecordsLostError,
    TopicRecreatedError,
    UnknownWindowError,
    WindowGroupError,
    WindowMismatchError,
    WindowPrunedError,
    WindowRewoundError,
    WindowSupersededError,
    WindowUnpublishedError,
)
from kafka_ordered_ops.core.group.group_state import (
    GroupState,
    GroupView,
    PartitionState,
    WindowRecord,
)
from kafka_ordered_ops.core.group.others import OthersCommit, OthersCommits, check_usable
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import OnDataLoss, ProgressFormat, TopicPartition, WindowStatus
from kafka_ordered_ops.core.window.ownership import fewer_error
from kafka_ordered_ops.core.window.plan import PartitionPlan, WindowPlan
from kafka_ordered_ops.core.window.window import Window

#: Windows named in one error.
_NAMED_MAX = 8


def known_window(view: GroupView, window_id: str) -> WindowRecord:
    """Return the window's record; raise `UnknownWindowError`, and `LedgerCorruptError` where it cannot be read."""
    view.check_readable([window_id])
    record = view.windows.get(window_id)
    if record is None:
        raise unknown_window(view.group_id, window_id)
    return record


def unknown_window(group_id: str, window_id: str) -> UnknownWindowError:
    """Return the error for a window that the ledger does not have."""
    return UnknownWindowError(
        f"group {group_id} has no window {window_id}: list its windows, or plan it first",
        window_id=window_id,
    )


def known_state(view: GroupView) -> GroupState:
    """Return the group's state; raise `UnknownWindowError` where there is none."""
    if view.state is None:
        raise no_state(view.group_id)
    return view.state


def no_state(group_id: str) -> UnknownWindowError:
    """Return the error for a group that the ledger does not have."""
    return UnknownWindowError(
        f"group {group_id} has no state in the ledger: none of its windows was planned yet. To continue after another "
        'program, plan the first window with starting_offsets="committed"',
        window_id="",
    )


def existing_window(view: GroupView, window_id: str) -> WindowRecord | None:
    """Return the existing window of an id; None if the id may be planned, for the first time or again.

    Raises:
        WindowPrunedError: its plan is gone.
        WindowRewoundError: only some of its offsets were given back.
        LedgerCorruptError: its record cannot be read.
    """
    view.check_readable([window_id])
    record = view.windows.get(window_id)
    if record is None or record.status is WindowStatus.ABANDONED:
        return None
    if record.pruned is not None:
        raise WindowPrunedError(
            f"window {window_id} of group {view.group_id} is {record.status} and was pruned from the ledger "
            f"({record.pruned.offsets:,} offsets): it is done and cannot be read again. To read its times again, "
            "use another group",
            window_id=window_id,
        )
    if record.status is not WindowStatus.REWOUND:
        return record
    if still_done := sum(offsets.count for offsets in _still_done(view, record).values()):
        raise WindowRewoundError(
            f"window {window_id} of group {view.group_id}: progress was moved back before some of its "
            f"{record.plan.offsets:,} offsets, and {still_done:,} are still done. Planned again, it would hold "
            "less than it delivered: plan the rest under another window id",
            window_id=window_id,
        )
    return None


def _still_done(view: GroupView, record: WindowRecord) -> dict[TopicPartition, OffsetSet]:
    offsets = {}
    for part in record.plan:
        topic = None if view.state is None else view.state.topics.get(part.tp.topic)
        # A recreated topic has nothing left of the old one.
        if topic is None or topic.topic_id != part.topic_id:
            continue
        partition = topic.partitions.get(part.tp.partition)
        if partition is not None and (still := part.taken & partition.done):
            offsets[part.tp] = still
    return offsets


def check_topic_id(group_id: str, topic: TopicFacts, expected_id: str) -> None:
    """Raise `TopicRecreatedError` when a topic is not the one that a group's progress is about."""
    if topic.topic_id != expected_id:
        raise TopicRecreatedError(
            f"group {group_id}: topic {topic.name} has id {topic.topic_id}, but the group's progress belongs to "
            f"{expected_id}: the topic was deleted and recreated, and its offsets start over. "
            "`windows adopt` starts with the new topic; or read it with a new group",
            topic=topic.name,
            expected_id=expected_id,
            found_id=topic.topic_id,
        )


def check_same_question(
    plan: WindowPlan,
    window: Window,
    *,
    remedy: str = "Use another window id, or abandon the window and plan it again",
) -> None:
    """Raise `WindowMismatchError` if a window's id is used for another request."""
    differences = plan.window.differences(window)
    if None in (plan.window.starting_offsets, window.starting_offsets):
        # Starting offsets only matter at the group's first plan: adding or removing them later requests the same
        # records.
        differences.pop("starting_offsets", None)
    if differences:
        details = "; ".join(
            f"{name}: planned {old!r}, asked {new!r}" for name, (old, new) in differences.items()
        )
        raise WindowMismatchError(
            f"window {plan.window_id} of group {plan.group_id} was planned with other arguments: {details}. {remedy}",
            window_id=plan.window_id,
            differences=differences,
        )


def check_owner(state: GroupState, owner: str | None) -> None:
    """Raise `GroupMismatchError` if another owner plans the group's windows."""
    known = state.definition.owner
    if None in (known, owner) or known == owner or not state.topics:
        return
    raise GroupMismatchError(
        f"group {state.group_id} is planned by {known}, and this plan is by {owner}: each would miss the records "
        "that the other takes. Give each its own group. If it was renamed or takes over the group, plan once "
        "with redefine=True (--redefine)",
        differences={"owner": (known, owner)},
    )


def check_same_group(state: GroupState, window: Window, owner: str | None = None) -> None:
    """Raise `GroupMismatchError` for a window of another mode, isolation, selection of topics or owner."""
    check_owner(state, owner)
    differences = state.definition.differences(window)
    if differences and state.topics and state.definition.topics:
        details = "; ".join(
            f"{name}: the group's is {old!r}, the window's {new!r}"
            for name, (old, new) in differences.items()
        )
        raise GroupMismatchError(
            f"group {state.group_id} has another definition: {details}. Use a separate group for each "
            "selection of records, or change the group by planning with redefine=True (--redefine)",
            differences=differences,
        )


def check_loss(plan: WindowPlan) -> None:
    """Raise `RecordsLostError` when a plan has lost offsets and its window does not allow that."""
    if not plan.lost or plan.window.on_data_loss is OnDataLoss.WARN:
        return
    lost = {str(tp): offsets.ranges for tp, offsets in plan.lost.items()}
    first = next(iter(lost))
    raise RecordsLostError(
        f"window {plan.window_id} of group {plan.group_id}: offsets were lost before they were delivered, {first} "
        f"{_ranges_text(plan.lost)}: retention or deletion removed them, or they cannot be read. Plan with "
        "on_data_loss='warn' to record them as lost and continue",
        lost=lost,
    )


def check_not_fewer(plan: WindowPlan) -> None:
    """Raise `FewerRecordsError` for a window that was delivered and rewound, and whose records are lost by now."""
    if plan.replaces and plan.lost and not plan.allow_fewer:
        lost = sum(offsets.count for offsets in plan.lost.values())
        raise fewer_error(
            plan.window_id, plan.group_id, f"retention has removed {lost:,} of its offsets since"
        )


def moved_by_others(state: GroupState, others: OthersCommits) -> dict[TopicPartition, OthersCommit]:
    """Return the commits of other programs that change the group's progress.

    The commit that the group began with does not. A missing commit is not foreign: committed offsets of an idle group
    expire, and the next commit restores them.
    """
    return {
        tp: commit
        for tp, partition in state
        if (commit := others.get(tp)) is not None
        and (commit.offset != partition.committed or _does_more(state, tp, partition, commit))
    }


def _does_more(
    state: GroupState, tp: TopicPartition, partition: PartitionState, commit: OthersCommit
) -> bool:
    """Return whether a commit at the known offset has done more than the group knows.

    A group that has not committed yet may have left out the map that it found: it may begin anywhere.
    """
    is_read = partition.origin > partition.base == partition.committed
    is_known = state.topics[tp.topic].settled or is_read
    if commit.problem is not None and not commit.by_parallel_consumer:
        # A damaged map of this package, at the offset that it committed: the ledger has what the map had.
        return False
    return is_known and (commit.problem is not None or not commit.done <= partition.done)


def check_foreign(state: GroupState, others: OthersCommits) -> None:
    """Raise if another program changed the group's progress.

    Raises:
        ForeignCommitError: it moved a committed offset, or has done more beyond one.
        OffsetMapDecodeError: a map of Parallel Consumer cannot be used.
    """
    commits = moved_by_others(state, others)
    if not commits:
        return
    check_usable(state.group_id, commits)
    moved = {
        str(tp): (partition.committed, commits[tp].offset)
        for tp, partition in state
        if tp in commits
    }
    is_partner = state.format.is_shared and all(
        commit.by_parallel_consumer and commit.offset >= partition.base
        for tp, partition in state
        if (commit := commits.get(tp)) is not None
    )
    where, (known, now) = next(iter(moved.items()))
    what = (
        f"the commit of {where} at offset {now} has done records beyond it that this group has not"
        if known == now
        else f"the committed offset of {where} is {now}, but this group last wrote "
        f"{'none' if known is None else known}"
    )
    raise ForeignCommitError(
        f"group {state.group_id}: {what} ({len(moved)} partitions differ). Another program commits "
        "to this group or restored older offsets. Use a separate group for the windows. If the group was moved on "
        "purpose, accept the offset (`windows adopt`, or on_foreign_commit='adopt')",
        moved=moved,
        by_parallel_consumer=is_partner,
    )


def check_only_forward(view: GroupView, others: OthersCommits) -> None:
    """Raise unless Parallel Consumer, with which the group shares its progress, made all changes: see `check_foreign`."""
    try:
        check_foreign(known_state(view), others)
    except ForeignCommitError as error:
        if not error.by_parallel_consumer:
            raise


def check_not_handed_over(state: GroupState | None) -> None:
    """Raise `GroupHandedOverError` if Parallel Consumer has the group."""
    if state is not None and state.format is ProgressFormat.PARALLEL_CONSUMER:
        raise GroupHandedOverError(
            f"group {state.group_id} was handed over to Parallel Consumer: windows would deliver the same records. Stop "
            "Parallel Consumer and take the group back (`offsets migrate --to ledger`), or plan in another group",
            group_id=state.group_id,
        )


def check_free_for_live(state: GroupState | None, *, keeps_maps: bool) -> None:
    """Raise `WindowGroupError` if a live member would pass the windows of a group, whether they have committed or not.

    `keeps_maps`: the member reads and commits the offset maps of Parallel Consumer. It takes turns with the windows of a
    shared group, and waits for those that are planned.
    """
    if state is None or state.format is ProgressFormat.PARALLEL_CONSUMER:
        return
    if state.format.is_shared and keeps_maps and not state.open:
        return
    planned = f", with {len(state.open)} planned and not committed" if state.open else ""
    raise WindowGroupError(
        f"group {state.group_id} is a group of windows, by the ledger{planned}: a live member's commits would move its "
        "progress. Choose another group_id for the live reader",
        group_id=state.group_id,
        partitions=tuple(str(tp) for tp, _ in state),
    )


def check_published(state: GroupState, window_ids: Collection[str]) -> None:
    """Raise `WindowUnpublishedError` if one of these windows is committed, and its output is not published yet."""
    waiting = [name for name in state.unpublished if name in window_ids]
    if not waiting:
        return
    raise WindowUnpublishedError(
        f"group {state.group_id}: progress cannot be moved back into {unpublished_text(waiting)}. The rest of their records "
        "would be in no output. Nothing was changed: run them again, with the same output, which publishes them; or move "
        "progress back to before their first offsets",
        windows=waiting,
    )


def unpublished_text(window_ids: Sequence[str]) -> str:
    """Return which windows are committed and not published."""
    return (
        f"{len(window_ids):,} committed window{'' if len(window_ids) == 1 else 's'} whose output readers do not see yet: "
        f"{first_of(window_ids, _NAMED_MAX)}"
    )


def check_none_open(state: GroupState, doing: str) -> None:
    """Raise `OpenClaimError` if a group has open windows: they hold offsets that are neither done nor free."""
    if state.open:
        named = ", ".join(state.open[:_NAMED_MAX])
        more = f" and {len(state.open) - _NAMED_MAX} more" if len(state.open) > _NAMED_MAX else ""
        raise OpenClaimError(
            f"group {state.group_id} cannot be {doing} while windows are open: {named}{more}. Commit or abandon "
            "them first",
            window_id=state.open[0],
            open_windows=state.open,
        )


def with_losses(
    plan: WindowPlan,
    log_starts: Mapping[TopicPartition, int],
    processed: Mapping[TopicPartition, OffsetSet] | None = None,
    unreadable: Mapping[TopicPartition, OffsetSet] | None = None,
) -> WindowPlan:
    """Return the plan after losses: offsets that retention removed, or that are unreadable, move from taken to lost.

    Processed ones do not.
    """
    processed, unreadable = processed or {}, unreadable or {}
    parts: list[PartitionPlan] = []
    for part in plan:
        removed = OffsetSet.of((0, log_starts.get(part.tp, 0)))
        gone = part.taken & (removed | unreadable.get(part.tp, EMPTY_SET))
        gone = gone - processed.get(part.tp, EMPTY_SET)
        parts.append(
            replace(part, taken=part.taken - gone, lost=part.lost | gone) if gone else part
        )
    return replace(plan, partitions=tuple(parts))


def owned(view: GroupView, plan: WindowPlan) -> WindowRecord:
    """Return the record of a plan that may still write; raise `WindowSupersededError`, `UnknownWindowError`."""
    record = known_window(view, plan.window_id)
    check_owned(record, plan)
    return record


def check_owned(record: WindowRecord, plan: WindowPlan) -> None:
    """Raise `WindowSupersededError` for a plan that may no longer write."""
    if record.plan.claim_id != plan.claim_id:
        raise superseded(record, plan)
    # A committed window is the same for every attempt; an open one belongs to the newest.
    if not record.status.is_done and (
        record.plan.attempt != plan.attempt or not record.status.is_open
    ):
        raise superseded(record, plan)


def owned_output(view: GroupView, plan: WindowPlan) -> WindowRecord:
    """Check as `owned` does, for a plan with an output.

    Also raises `WindowSupersededError` for an attempt that was open while a newer one committed: its output is a
    second copy of the records. Replays have the committed number, or a higher one.
    """
    record = known_window(view, plan.window_id)
    check_owns_output(record, plan)
    return record


def check_owns_output(record: WindowRecord, plan: WindowPlan) -> None:
    """Raise `WindowSupersededError` as `owned_output` does."""
    check_owned(record, plan)
    if plan.status.is_open and plan.attempt < record.plan.attempt:
        raise superseded(record, plan)


def superseded(record: WindowRecord, plan: WindowPlan) -> WindowSupersededError:
    """Return the error for an attempt that no longer owns its window."""
    given_up = record.status in (WindowStatus.ABANDONED, WindowStatus.REWOUND)
    why = (
        f"The window was {record.status} meanwhile: plan it again to read what is open now"
        if given_up and record.plan.claim_id == plan.claim_id
        else "Another attempt took over the window: leave it to that attempt"
    )
    return WindowSupersededError(
        f"window {plan.window_id} of group {plan.group_id}: this is attempt {plan.attempt} of claim "
        f"{plan.claim_id}, and the ledger has attempt {record.plan.attempt} of claim "
        f"{record.plan.claim_id} ({record.status}). {why}",
        window_id=plan.window_id,
    )


def _ranges_text(lost: Mapping[TopicPartition, OffsetSet]) -> str:
    offsets = next(iter(lost.values()))
    ranges = ", ".join(f"[{start}, {end})" for start, end in offsets.ranges[:3])
    more = len(lost) - 1
    return f"{ranges}{f' and {more} more partitions' if more else ''}"
