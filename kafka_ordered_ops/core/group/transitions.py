"""The changes of a planned window: a view and a request in, a `Change` or an error out.

These run inside the fence, on the newest view, and may run again on a newer one: they keep no state and use no other
input. A wish that is fulfilled already results in no change, so that repeating it after an unknown outcome is safe.

===========  ==============================  ====================================================
from         to                              by
===========  ==============================  ====================================================
(none)       planned                         `claiming.claim`
abandoned    planned, under a new claim      `claiming.claim`
rewound      planned, under a new claim      `claiming.claim`, when all of it was given back
planned      planned, attempt + 1            `claiming.resume`
written      written, attempt + 1            `claiming.resume`
planned      planned                         `mark_processed`
planned      written                         `mark_written`; `parts.report`, with the last part
planned      committed                       `commit` (a sink that has nothing to publish)
written      committed                       `commit`
committed    published                       `publish`
open         abandoned                       `abandon`; `adoption.adopt`, for a recreated topic
done         rewound                         `adoption.with_moved`, when progress is moved back
===========  ==============================  ====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts
from kafka_ordered_ops.core.errors import (
    ConfigError,
    PartsMissingError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group import unreadable
from kafka_ordered_ops.core.group.checks import (
    check_foreign,
    check_owned,
    known_state,
    known_window,
    owned,
    owned_output,
)
from kafka_ordered_ops.core.group.group_state import (
    Change,
    Changes,
    GroupState,
    GroupView,
    PartitionState,
    TopicState,
    WindowRecord,
    appeared_since,
    next_state,
)
from kafka_ordered_ops.core.group.others import OthersCommits
from kafka_ordered_ops.core.group.processed import ProcessedOffsets
from kafka_ordered_ops.core.group.shared_commits import shared_commits
from kafka_ordered_ops.core.offset_set import OffsetSet, union_of
from kafka_ordered_ops.core.planning.time_map import EMPTY_MAP, TimeMap
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.core.window.plan import PartitionPlan, WindowPlan, newest_attempt

#: While a window is processed, its claim's age is brought up to date this often. Its record holds the whole plan, and is
#: not written with each report of processed offsets.
TOUCH_EVERY_MS: Final = 30_000

#: The result of a decision: a change to write; the unchanged records; or None, if it was prepared on a view that is
#: too old.
Outcome = Change | WindowRecord | tuple[WindowRecord, ...] | None


def in_turn(view: GroupView, decisions: Iterable[Callable[[GroupView], Outcome]]) -> Outcome:
    """Combine several decisions into one change, each made on the view after the earlier ones."""
    changes = Changes(view)
    records: list[WindowRecord] = []
    for decide in decisions:
        outcome = decide(changes.view)
        if outcome is None:
            return None
        if isinstance(outcome, Change):
            changes.add(outcome)
        else:
            records.extend(outcome if isinstance(outcome, tuple) else [outcome])
    change = changes.joined()
    return tuple(records) if change is None else change


def mark_processed(
    view: GroupView,
    plan: WindowPlan,
    offsets: Mapping[TopicPartition, OffsetSet],
    *,
    now_ms: int,
) -> Outcome:
    """Record that offsets of a planned window are processed. A later attempt of its claim need not process them again.

    It is also a sign of life, even without offsets: the claim is touched. The view must have been asked for the
    window's processed offsets. A written or committed window needs none.

    Raises:
        UnknownWindowError, WindowSupersededError
    """
    record = owned(view, plan)
    if record.status is not WindowStatus.PLANNED:
        return record
    known = view.processed.get(plan.window_id)
    if known is None or known.claim_id != plan.claim_id:
        known = ProcessedOffsets(plan.claim_id, {})
    newest = known.with_more(offsets)
    is_due = now_ms - record.touched_at_ms >= TOUCH_EVERY_MS
    if newest == known and not is_due:
        return record
    return Change(
        state=next_state(known_state(view)),
        records=(replace(record, touched_at_ms=now_ms),) if is_due else (),
        processed={} if newest == known else {plan.window_id: newest},
    )


def mark_written(view: GroupView, plan: WindowPlan, result: Any, *, now_ms: int) -> Outcome:
    """Record that the sink holds the complete window, hidden. From now on, a retry only commits.

    Raises:
        UnknownWindowError, WindowSupersededError
        PartsMissingError: the window was split, and not all parts have reported.
    """
    record = owned_output(view, plan)
    check_parts(record)
    # Written again when the output of an earlier attempt is gone: the newest result counts.
    if record.status.is_done or (record.status is WindowStatus.WRITTEN and record.result == result):
        return record
    written = replace(
        record,
        plan=replace(record.plan, status=WindowStatus.WRITTEN),
        result=result,
        touched_at_ms=now_ms,
    )
    return Change(state=next_state(known_state(view)), records=(written,))


def commit(
    view: GroupView,
    plans: Sequence[WindowPlan],
    *,
    now_ms: int,
    others: OthersCommits,
    present: Mapping[str, TopicFacts],
    publishes: bool = False,
) -> Outcome:
    """Add the windows' offsets to the group's progress; committing again changes nothing.

    All of them, or none. `others` holds the committed offsets, as just read from Kafka, that another program has written;
    `present` those of the group's topics that still exist. With `publishes`, the outputs become visible after it.

    Raises:
        UnknownWindowError: the ledger has no such window.
        WindowSupersededError: a newer attempt, a new claim or an abandonment owns the window.
        ForeignCommitError: another program moved the group's committed offset.
        OffsetMapTooLargeError: the group shares its progress with Parallel Consumer, and its map does not fit.
        PartsMissingError: a window was split, and not all parts have reported.
    """
    records = [owned(view, plan) for plan in plans]
    waiting = {record.plan.window_id: record for record in records if not record.status.is_done}
    if not waiting:
        return tuple(records)
    state = known_state(view)
    check_foreign(state, others)
    for record in waiting.values():
        check_parts(record)
    taken: dict[TopicPartition, list[tuple[PartitionPlan, TimeRange]]] = {}
    for record in waiting.values():
        times = record.plan.window.times
        for part in record.plan:
            # A topic that was recreated, and adopted as such, has its own progress by now.
            topic = state.topics.get(part.tp.topic)
            if topic is not None and topic.topic_id == part.topic_id:
                taken.setdefault(part.tp, []).append((part, times))
    state = _frozen_where_they_appeared(state, [record.plan for record in waiting.values()])
    moved = {tp: _with_windows(state, tp, held) for tp, held in taken.items()}
    trimmed = {tp: view.time_map(tp).trimmed(partition.done) for tp, partition in moved.items()}
    state = _with_progress(state, moved)
    if state.format.is_shared:
        shared_commits(state, present)
    return Change(
        state=next_state(
            state,
            closed=waiting,
            unpublished=[
                name
                for name, record in waiting.items()
                if is_to_be_published(record.result, publishes)
            ],
        ),
        records=tuple(
            replace(
                record,
                plan=replace(record.plan, status=WindowStatus.COMMITTED),
                committed_at_ms=now_ms,
            )
            for record in waiting.values()
        ),
        time_maps={
            tp: time_map for tp, time_map in trimmed.items() if time_map != view.time_map(tp)
        },
        commits_to=present,
    )


def publish(view: GroupView, plan: WindowPlan, result: Any) -> Outcome:
    """Record that the sink has made the committed window visible, and keep its newest result.

    Raises:
        UnknownWindowError, WindowSupersededError
    """
    record = publishable(view, plan)
    if record.status is WindowStatus.PUBLISHED and (
        record.result == result
        # A replay has published the window again before this attempt could record its own publication.
        or newest_attempt(plan, record.result) > newest_attempt(plan, result)
    ):
        return record
    # An output that replaces a published one may be decoded in another way; that of an earlier attempt is as planned.
    is_replaced = record.status is WindowStatus.PUBLISHED
    window = record.plan.window.read_like(plan.window) if is_replaced else record.plan.window
    published = replace(record.plan, status=WindowStatus.PUBLISHED, window=window)
    return Change(
        state=next_state(known_state(view), published=[plan.window_id]),
        records=(replace(record, plan=published, result=result),),
    )


def is_to_be_published(result: Any, publishes: bool) -> bool:
    """Return whether a committed window's output still has to become visible.

    Not if its sink has nothing to publish: then the job itself has delivered the records. An output that names its window
    is one of a sink that publishes, whichever call commits it.
    """
    if not isinstance(result, Mapping) or "reported" in result:
        return False
    return publishes or _names_window(result)


def _names_window(result: Mapping[str, Any]) -> bool:
    parts = result.get("parts")
    several = parts if isinstance(parts, list) else []
    return any(
        isinstance(output, Mapping) and isinstance(output.get("window_id"), str)
        for output in (result, result.get("write"), *several)
    )


def publishable(view: GroupView, plan: WindowPlan) -> WindowRecord:
    """Return the record of a plan whose output may be made visible.

    Raises:
        UnknownWindowError, WindowSupersededError
        ConfigError: the window is not committed yet.
    """
    record = owned_output(view, plan)
    if not record.status.is_done:
        raise ConfigError(
            f"window {plan.window_id} of group {plan.group_id} is {record.status}: commit it before its output "
            "becomes visible"
        )
    return record


def abandon(
    view: GroupView,
    window_id: str,
    *,
    owner: WindowPlan | None = None,
    keep_origins: bool = False,
) -> Outcome:
    """Release the window's offsets to the next window, or to this id when it is planned again.

    An abandoned window stays abandoned without error; a committed one cannot be abandoned. With
    `keep_origins` the group still begins where it began, though nothing was ever committed. With `owner` it is
    abandoned only while that attempt may commit it.

    A window that cannot be read is removed from the ledger, see `unreadable.abandon`; with `owner` it is an error.

    Raises:
        UnknownWindowError, WindowSupersededError, LedgerCorruptError
    """
    if owner is None and window_id in view.unreadable:
        return unreadable.abandon(view, window_id, keep_origins=keep_origins)
    record = known_window(view, window_id)
    if record.status in (WindowStatus.ABANDONED, WindowStatus.REWOUND):
        return record
    if owner is not None:
        check_owned(record, owner)
    if record.status.is_done:
        raise WindowSupersededError(
            f"window {window_id} of group {view.group_id} is {record.status}: its offsets are part of the "
            "group's progress and cannot be released. Replay the window to read the same records again",
            window_id=window_id,
        )
    state = known_state(view)
    others = {
        part.tp.topic
        for other in view.open_windows()
        if other.plan.window_id != window_id
        for part in other.plan
    }
    topics = {
        # An origin that nothing was committed from may be chosen again.
        name: topic
        for name, topic in state.topics.items()
        if topic.settled or name in others or keep_origins or view.open_unreadable()
    }
    return Change(
        state=next_state(replace(state, topics=topics), closed=[window_id]),
        records=(replace(record, plan=replace(record.plan, status=WindowStatus.ABANDONED)),),
        time_maps={
            # A topic's times are removed with its state.
            **{tp: EMPTY_MAP for tp in view.time_maps if tp.topic not in topics},
            **maps_with_freed(view, record.plan, topics),
        },
    )


def maps_with_freed(
    view: GroupView, plan: WindowPlan, topics: Collection[str]
) -> dict[TopicPartition, TimeMap]:
    """Return the known times after a window has released its offsets: bounds of the times that it took.

    Only a window that asks for some of these times reads the records again, and takes them or reports those that
    retention has removed meanwhile.
    """
    state = known_state(view)
    freed: dict[TopicPartition, TimeMap] = {}
    for part in plan:
        topic = state.topics.get(part.tp.topic)
        if part.tp.topic not in topics or topic is None or topic.topic_id != part.topic_id:
            continue
        known = view.time_map(part.tp)
        offsets = part.taken | part.lost
        if state.definition.isolation is plan.isolation:
            newest = known.without(part.lost_untimed)
            newest = newest.replaced(claimed_times(part, plan.window.times)).limited()
        else:
            # It did not count the same records as the group's windows do now.
            newest = known.forgetting(offsets)
        if newest != known:
            freed[part.tp] = newest.of_topic(part.topic_id)
    return freed


def claimed_times(part: PartitionPlan, times: TimeRange) -> TimeMap:
    """Return bounds of the times of the offsets in a window's share: its own times, and late ones where it has such records.

    Lost offsets that no window has read have no bounds.
    """
    offsets = (part.taken | part.lost) - part.lost_untimed
    late = min((late.since_ms for late, _ in part.late.pieces), default=times.since_ms)
    mixed = TimeRange(min(late, times.since_ms), times.before_ms)
    own = TimeMap.between(offsets - part.earlier, times)
    return own.replaced(TimeMap.between(offsets & part.earlier, mixed))


def check_parts(record: WindowRecord) -> None:
    """Raise `PartsMissingError` for a split window not all of whose parts have reported."""
    if record.parts is None or not record.parts.missing:
        return
    plan, missing = record.plan, record.parts.missing
    raise PartsMissingError(
        f"window {plan.window_id} of group {plan.group_id} was split into {record.parts.count} parts, and "
        f"{len(missing)} have not reported: {', '.join(str(index + 1) for index in missing[:10])}. Run them, "
        "then commit",
        window_id=plan.window_id,
        missing=missing,
    )


def with_committed_bases(topic: TopicState) -> TopicState:
    """Return the topic's state after its bases are committed in Kafka."""
    partitions = {
        number: replace(state, committed=state.base) for number, state in topic.partitions.items()
    }
    return replace(topic, partitions=partitions)


def _with_progress(state: GroupState, moved: Mapping[TopicPartition, PartitionState]) -> GroupState:
    """Return the group's state with moved partitions, after it is committed in Kafka."""
    partitions = {name: dict(topic.partitions) for name, topic in state.topics.items()}
    for tp, partition in moved.items():
        partitions[tp.topic][tp.partition] = partition
    settled = {tp.topic for tp in moved}
    return replace(
        state,
        topics={
            name: with_committed_bases(
                replace(
                    topic, settled=topic.settled or name in settled, partitions=partitions[name]
                )
            )
            for name, topic in state.topics.items()
        },
    )


def _frozen_where_they_appeared(state: GroupState, plans: Sequence[WindowPlan]) -> GroupState:
    """Return the state with the times of committed windows on partitions that appeared while these were open."""
    steps: dict[TopicPartition, list[TimeRange]] = {}
    for plan in plans:
        for tp in appeared_since(state.topics, plan):
            steps.setdefault(tp, []).append(plan.window.times)
    topics = dict(state.topics)
    for tp, ranges in steps.items():
        partitions = topics[tp.topic].partitions
        late = partitions[tp.partition].late.with_steps((0, times) for times in ranges)
        partition = replace(
            partitions[tp.partition], late=late.from_offset(partitions[tp.partition].base)
        )
        topics[tp.topic] = replace(
            topics[tp.topic], partitions={**partitions, tp.partition: partition}
        )
    return replace(state, topics=topics)


def _with_windows(
    state: GroupState, tp: TopicPartition, held: Sequence[tuple[PartitionPlan, TimeRange]]
) -> PartitionState:
    """Return a partition's progress with the shares of windows."""
    known = state.topics[tp.topic].partitions[tp.partition]
    offsets = union_of(offsets for part, _ in held for offsets in (part.taken, part.lost))
    moved = replace(known, done=known.done | offsets)
    late = known.late.with_steps((part.decided_end, times) for part, times in held)
    return replace(moved, late=late.from_offset(moved.base))
