"""Adopt changes of other programs as progress: moved offsets, a recreated topic, a cut log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts, is_selected
from kafka_ordered_ops.core.group.checks import check_published, known_state, moved_by_others
from kafka_ordered_ops.core.group.group_state import (
    Change,
    GroupState,
    GroupView,
    PartitionState,
    TopicState,
    WindowRecord,
    next_state,
)
from kafka_ordered_ops.core.group.others import OthersCommits, check_usable
from kafka_ordered_ops.core.group.transitions import (
    claimed_times,
    maps_with_freed,
    with_committed_bases,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.planning.time_map import EMPTY_MAP, TimeMap
from kafka_ordered_ops.core.time_ranges import NO_STEPS, LateSteps, TimeRange
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.core.window.plan import PartitionPlan


class Cause(StrEnum):
    """Why a partition's progress changed."""

    FORWARD = "forward"
    BACK = "back"
    RECREATED = "recreated"
    TRUNCATED = "truncated"
    #: Not by another program: a person set it.
    RESET = "reset"
    #: The commit was made with a state that the ledger does not have. Progress stays, and is committed again.
    UNKNOWN = "unknown state"


#: After these, nothing at or above an offset counts any more.
_CUTS = (Cause.BACK, Cause.TRUNCATED, Cause.RESET)


@dataclass(frozen=True, slots=True)
class LogNow:
    """The current facts of a partition of the group."""

    topic_id: str
    log_start: int
    #: Up to which a moved offset is believed.
    end: int
    #: The offset of the cut, if there is one: after it there are no records, or other ones than the group knows.
    cut: int | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """One partition's progress: the committed offset before and after."""

    tp: TopicPartition
    cause: Cause
    base_before: int
    base_after: int
    #: Of a log that was cut while progress beyond the committed offset is lost: where.
    cut: int | None = None
    #: Done offsets above the new committed offset, by the other program's offset map.
    done: OffsetSet = EMPTY_SET

    @property
    def kept_below(self) -> int:
        """Where progress was moved back: nothing at or above it counts any more."""
        return self.base_after if self.cut is None else self.cut


@dataclass(frozen=True, slots=True)
class Adoption:
    """The changes that adopting makes, or has made."""

    moved: tuple[Moved, ...] = ()
    #: Committed windows some of whose offsets are open again.
    rewound: tuple[str, ...] = ()
    #: Open windows that asked for a topic that is gone.
    abandoned: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.moved)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "moved": [
                {
                    "topic": move.tp.topic,
                    "partition": move.tp.partition,
                    "cause": move.cause.value,
                    "base_before": move.base_before,
                    "base_after": move.base_after,
                    **({} if move.cut is None else {"cut": move.cut}),
                    **({"done_beyond": move.done.count} if move.done else {}),
                }
                for move in self.moved
            ],
            "rewound": list(self.rewound),
            "abandoned": list(self.abandoned),
        }


def find_moved(
    state: GroupState, others: OthersCommits, logs: Mapping[TopicPartition, LogNow]
) -> tuple[Moved, ...]:
    """Return the partitions that are not where the group left them.

    `others` are committed offsets that another program wrote; `logs` are the partitions that still exist. A
    position beyond the end of the log is believed up to the end, an offset map not at all.

    Raises:
        OffsetMapDecodeError: a map of Parallel Consumer cannot be used.
    """
    commits = moved_by_others(state, others)
    check_usable(
        state.group_id,
        {
            tp: commit
            for tp, commit in commits.items()
            # Of an older topic of the same name, or of a log that was cut, the map is of no use in any case.
            if (log := logs.get(tp)) is not None
            and log.topic_id == state.topics[tp.topic].topic_id
            and log.cut is None
        },
    )
    moved = []
    for tp, partition in state:
        log = logs.get(tp)
        if log is None:
            continue
        base, end = partition.base, log.end
        if log.topic_id != state.topics[tp.topic].topic_id:
            moved.append(Moved(tp, Cause.RECREATED, base, log.log_start))
            continue
        other = commits.get(tp)
        to = None if other is None else min(other.offset, end)
        done = EMPTY_SET if other is None else other.done
        if log.cut is not None:
            # An offset that another program committed counts as well, if it is before that.
            cut = log.cut if to is None or to >= base else min(to, log.cut)
            after = (partition.done & OffsetSet.of((0, cut))).first_missing(0)
            moved.append(Moved(tp, Cause.TRUNCATED, base, after, None if cut == after else cut))
        elif to is not None and to < base:
            moved.append(Moved(tp, Cause.BACK, base, done.first_missing(to), done=done))
        elif to is not None:
            # Done ranges beyond the base may begin there.
            after = (partition.done | done).first_missing(to)
            moved.append(Moved(tp, Cause.FORWARD, base, after, done=done))
        elif (commit := others.get(tp)) is not None and commit.is_of_unknown_state:
            moved.append(Moved(tp, Cause.UNKNOWN, base, base))
    return tuple(moved)


def adopt(
    view: GroupView,
    others: OthersCommits,
    logs: Mapping[TopicPartition, LogNow],
    present: Mapping[str, TopicFacts],
) -> tuple[Change | None, Adoption]:
    """Adopt the changes of other programs as the group's progress; `view` holds every window.

    `present` are those of the group's topics that still exist, and `logs` their partitions.

    Forward: progress is joined with everything below the new offset. Back: it is cut there, and committed windows
    with offsets after the cut are rewound. Done offsets of an offset map are joined in both cases. A recreated
    topic begins at its start.

    Raises:
        WindowUnpublishedError: a window would be rewound before readers have seen its output.
    """
    moved = find_moved(known_state(view), others, logs)
    return with_moved(view, moved, logs, present) if moved else (None, Adoption())


def with_moved(
    view: GroupView,
    moved: Sequence[Moved],
    logs: Mapping[TopicPartition, LogNow],
    present: Mapping[str, TopicFacts],
) -> tuple[Change, Adoption]:
    """Return the change that moves the group's progress, and its summary; for the arguments see `adopt`."""
    state = known_state(view)
    # An unreadable window may have to be rewound or abandoned.
    view.check_readable()
    cut = {move.tp: move.kept_below for move in moved if move.cause in _CUTS}
    lost = {move.tp: move.kept_below for move in moved if move.cause is Cause.TRUNCATED}
    anew = {move.tp.topic for move in moved if move.cause is Cause.RECREATED}
    rewound = [record for record in view.windows.values() if _reaches_behind(record, cut, state)]
    abandoned = [
        record
        for record in view.open_windows()
        # They hold, or have read, offsets that the cut log no longer has.
        if any(
            part.tp.topic in anew or part.decided_end > lost.get(part.tp, part.decided_end)
            for part in record.plan
        )
    ]
    gone = {record.plan.window_id for record in rewound}
    remaining = [
        record
        for record in view.windows.values()
        if record.status.is_done and record.plan.window_id not in gone
    ]
    topics = {**state.topics, **{name: _anew(name, state, logs) for name in anew}}
    # Of partitions that the topic recreated does not have, nothing is left.
    time_maps: dict[TopicPartition, TimeMap] = {
        tp: EMPTY_MAP for tp in view.time_maps if tp.topic in anew
    }
    for move in moved:
        if move.cause is Cause.UNKNOWN:
            continue
        topic = topics[move.tp.topic]
        late = _frozen(move.tp, topic.topic_id, remaining)
        partition = _moved(topic.partitions[move.tp.partition], move, late)
        partition = replace(partition, leader_epoch=logs[move.tp].leader_epoch)
        topics[move.tp.topic] = replace(
            topic,
            settled=True,
            partitions={**topic.partitions, move.tp.partition: partition},
        )
        known = view.time_map(move.tp)
        newest = _known_times(view, move, known, state, partition, rewound)
        if newest != known:
            time_maps[move.tp] = newest
    for record in abandoned:
        now = replace(view, time_maps={**view.time_maps, **time_maps})
        freed = maps_with_freed(now, record.plan, topics.keys() - anew)
        # After a cut there are no records, or other ones than they held.
        time_maps |= {
            tp: time_map.within(OffsetSet.of((0, lost[tp]))) if tp in lost else time_map
            for tp, time_map in freed.items()
        }
    # One that is given back wholly is delivered by other windows; of another one, the rest would be in no output.
    check_published(
        state, [record.plan.window_id for record in rewound if _keeps_offsets(record, topics)]
    )
    closed = [record.plan.window_id for record in abandoned]
    state = replace(
        state, topics={name: with_committed_bases(topic) for name, topic in topics.items()}
    )
    change = Change(
        state=next_state(state, closed=closed, published=gone),
        records=tuple(
            replace(record, plan=replace(record.plan, status=status))
            for records, status in (
                (rewound, WindowStatus.REWOUND),
                (abandoned, WindowStatus.ABANDONED),
            )
            for record in records
        ),
        time_maps=time_maps,
        commits_to=present,
    )
    gone_ids = tuple(record.plan.window_id for record in rewound)
    return change, Adoption(tuple(moved), gone_ids, tuple(closed))


def _keeps_offsets(record: WindowRecord, topics: Mapping[str, TopicState]) -> bool:
    """Return whether some offsets of a window are still done."""
    return any(
        part.taken & topics[part.tp.topic].partitions[part.tp.partition].done
        for part in record.plan
        if (known := topics.get(part.tp.topic)) is not None
        and known.topic_id == part.topic_id
        and part.tp.partition in known.partitions
    )


def _anew(name: str, state: GroupState, logs: Mapping[TopicPartition, LogNow]) -> TopicState:
    here = {
        number: partition
        for number, partition in state.topics[name].partitions.items()
        if TopicPartition(name, number) in logs
    }
    topic_id = next(logs[TopicPartition(name, number)].topic_id for number in here)
    return TopicState(topic_id, settled=True, partitions=here)


def _reaches_behind(
    record: WindowRecord, cut: Mapping[TopicPartition, int], state: GroupState
) -> bool:
    if not record.status.is_done:
        return False
    return any(
        part.tp in cut
        # Offsets in an older topic of the same name lie nowhere in this one.
        and part.topic_id == state.topics[part.tp.topic].topic_id
        and (gone := part.taken | part.lost)
        and gone.end > cut[part.tp]
        for part in record.plan
    )


def _moved(partition: PartitionState, moved: Moved, window_steps: LateSteps) -> PartitionState:
    """Return the partition's progress now; `window_steps` are the times of the windows that stay done."""
    below = OffsetSet.of((0, moved.kept_below))
    done, late = below, NO_STEPS
    if moved.cause is Cause.FORWARD:
        done, late = partition.done | below | moved.done, partition.late
    elif moved.cause is Cause.RESET:
        late = window_steps
    elif moved.cause is not Cause.RECREATED:
        done, late = (partition.done & below) | moved.done, window_steps
        if moved.cause is Cause.TRUNCATED:
            # Later records there are written after every planned window.
            late = window_steps.up_to(moved.kept_below)
    # Records below were delivered by other programs, or by rewound windows; and so were some of those that Parallel
    # Consumer had done beyond.
    by_others = OffsetSet.of((0, moved.base_after)) | moved.done
    by_others = by_others | (done & OffsetSet.of((0, partition.origin)))
    state = replace(partition, done=done, origin=by_others.end if by_others else 0)
    return replace(state, late=late.from_offset(state.base))


def _known_times(
    view: GroupView,
    moved: Moved,
    known: TimeMap,
    before: GroupState,
    now: PartitionState,
    rewound: list[WindowRecord],
) -> TimeMap:
    """Return the known times of a moved partition."""
    if moved.cause is Cause.FORWARD:
        return known.trimmed(now.done)
    if moved.cause is Cause.TRUNCATED:
        return known.within(OffsetSet.of((0, moved.kept_below)))
    if moved.cause is Cause.RECREATED:
        return EMPTY_MAP
    # Offsets that were done and are open again have the times that their window took; other times are unknown.
    topic = before.topics[moved.tp.topic]
    opened = topic.partitions[moved.tp.partition].done - now.done
    newest = known.forgetting(opened)
    for record in rewound:
        if record.plan.isolation is not before.definition.isolation:
            continue
        for part in record.plan:
            if (part.tp, part.topic_id) == (moved.tp, topic.topic_id):
                times = claimed_times(part, record.plan.window.times).within(opened)
                newest = newest.replaced(times)
    newest = newest.trimmed(now.done)
    return newest.limited().of_topic(topic.topic_id) if newest else EMPTY_MAP


def _frozen(tp: TopicPartition, topic_id: str, records: list[WindowRecord]) -> LateSteps:
    """Return the times that windows still cover on a partition once others were rewound."""
    steps: list[tuple[int, TimeRange]] = []
    for record in records:
        times = record.plan.window.times
        if record.pruned is not None:
            # The end of the decision is forgotten. Open records after the cut in its times are then late for others:
            # the next window takes them, not a sweep.
            steps.append((0, times))
        held = [part for part in record.plan if part.tp.topic == tp.topic]
        steps += [
            (part.decided_end, times) for part in held if (part.tp, part.topic_id) == (tp, topic_id)
        ]
        if not any(part.tp == tp for part in held) and _selects(record, held, tp, topic_id):
            # The partition appeared after it.
            steps.append((0, times))
    return NO_STEPS.with_steps(steps)


def _selects(
    record: WindowRecord, held: list[PartitionPlan], tp: TopicPartition, topic_id: str
) -> bool:
    """Return whether a window asked for all partitions of a topic; `held` are its shares of it, if it was there."""
    if held:
        return held[0].topic_id == topic_id
    window = record.plan.window
    return record.pruned is None and is_selected(tp.topic, window.topics, window.exclude)
