"""Continue a group on a cluster to which a mirror has copied its topics and its committed offsets.

The offsets of both clusters differ. What holds on both is the meaning of a copied commit: everything before the committed
offset was delivered, as the mirror rounds it down. Its map has the offsets of the other cluster; they are translated only
between two exact pairs of offsets that are equally far apart on both clusters. Everything else stays open, so nothing is
missed. Of the open records, those stamped before the greatest cutoff of the other cluster's windows may have been
delivered there: they may come twice, and nothing else may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from kafka_ordered_ops.core.cluster.cluster_facts import (
    CommittedOffset,
    CommittedOffsets,
    TopicFacts,
)
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.group.checks import check_not_handed_over
from kafka_ordered_ops.core.group.decisions.adoption import LogNow
from kafka_ordered_ops.core.group.group_state import (
    Change,
    GroupDefinition,
    GroupState,
    GroupView,
    PartitionState,
    TopicState,
    next_state,
)
from kafka_ordered_ops.core.group.transitions import with_committed_bases
from kafka_ordered_ops.core.offset_map.ours import OffsetMap
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet, union_of
from kafka_ordered_ops.core.planning.time_map import EMPTY_MAP
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.types import INT64_MIN, Isolation, TopicPartition, WindowStatus

#: Of a group whose definition is on the other cluster: its first window here defines it again.
_UNDEFINED = GroupDefinition(None, Isolation.READ_COMMITTED, (), ())


@dataclass(frozen=True, slots=True)
class OffsetSync:
    """A record's offset on the other cluster and on this one, as the mirror has noted them."""

    source: int
    here: int
    #: Whether the note before it, of any partition, is known too: without it, a note in between may be missing.
    follows: bool


@dataclass(frozen=True, slots=True)
class MirrorFacts:
    """A group, its committed offsets and its logs, read before the fence."""

    view: GroupView
    committed: CommittedOffsets
    topics: Mapping[str, TopicFacts]
    logs: Mapping[TopicPartition, LogNow]
    #: The mirrored maps among the commits.
    maps: Mapping[TopicPartition, OffsetMap]
    #: In the order of their offsets on this cluster.
    syncs: Mapping[TopicPartition, Sequence[OffsetSync]]

    def are_those_of(self, view: GroupView, committed: CommittedOffsets) -> bool:
        """Return whether the group is unchanged."""
        return view.state == self.view.state and all(
            committed.get(tp) == commit for tp, commit in self.committed.items()
        )


@dataclass(frozen=True, slots=True)
class Start:
    """Where a group continues on one partition."""

    tp: TopicPartition
    #: The committed offset until now.
    before: int | None
    done: OffsetSet
    #: Open offsets of the log that the other cluster's windows may have delivered, if their records are stamped early enough.
    doubtful: OffsetSet


@dataclass(frozen=True, slots=True)
class FailedOverPartition:
    """One partition of a group that continues on this cluster."""

    tp: TopicPartition
    #: The mirrored committed offset; None: there was none, and everything in the log is open.
    before: int | None
    #: The first offset that is not done.
    after: int
    #: Done offsets after it.
    done_beyond: int
    #: Offsets of the records that may come twice: the other cluster's windows may have delivered them.
    may_repeat: OffsetSet


@dataclass(frozen=True, slots=True)
class FailOver:
    """The change that a fail-over makes, or has made."""

    group_id: str
    partitions: tuple[FailedOverPartition, ...] = ()
    #: The greatest cutoff of the windows that were committed on the other cluster. Records that are stamped earlier and
    #: still open count as late. None: unknown.
    delivered_before_ms: int | None = None
    #: Windows that were open here, from before the group continued on the other cluster.
    abandoned: tuple[str, ...] = ()

    @property
    def may_repeat(self) -> int:
        """The number of records that may come twice."""
        return sum(partition.may_repeat.count for partition in self.partitions)

    def __bool__(self) -> bool:
        return bool(self.partitions)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "delivered_before_ms": self.delivered_before_ms,
            "may_repeat": self.may_repeat,
            "abandoned": list(self.abandoned),
            "partitions": [
                {
                    "topic": partition.tp.topic,
                    "partition": partition.tp.partition,
                    "before": partition.before,
                    "after": partition.after,
                    "done_beyond": partition.done_beyond,
                    "may_repeat": [list(offsets) for offsets in partition.may_repeat.ranges],
                }
                for partition in self.partitions
            ],
        }


@dataclass(frozen=True, slots=True)
class Starts:
    """Where a group continues on all of its partitions, decided before any record is read."""

    delivered_before_ms: int | None
    partitions: Mapping[TopicPartition, Start]


def starts_of(facts: MirrorFacts) -> Starts:
    """Return where a group continues; empty if no commit is mirrored.

    Raises:
        GroupHandedOverError: Parallel Consumer has the group here.
        LedgerCorruptError: an open window cannot be read.
        ConfigError: the mirror's pairs of offsets contradict the commits: they are of another flow.
    """
    state, maps = facts.view.state, facts.maps
    if not maps:
        return Starts(None, {})
    check_not_handed_over(state)
    facts.view.check_readable(facts.view.open_unreadable())
    mirrored = {tp.topic for tp in maps}
    newest = max(known.sequence for known in maps.values())
    times = [known.delivered_before_ms for known in maps.values()]
    before_ms = max((time_ms for time_ms in times if time_ms is not None), default=None)
    starts = {}
    for tp, log in facts.logs.items():
        known = _known(state, tp, log)
        if tp.topic not in mirrored and known is None:
            continue
        done = EMPTY_SET if known is None else known.done
        commit, offset_map = facts.committed.get(tp), maps.get(tp)
        surely_open = EMPTY_SET
        if commit is not None and offset_map is not None:
            delivered, surely_open = translated(
                tp, commit, offset_map, facts.syncs.get(tp, ()), end=log.end
            )
            done = done | delivered
            if offset_map.sequence < newest:
                # A mirror copies a commit only if its offset has risen: windows have done more beyond it since.
                surely_open = EMPTY_SET
        elif known is None:
            # Retention removed these before this group began here.
            done = OffsetSet.of((0, log.log_start))
        log_offsets = OffsetSet.of((log.log_start, log.end))
        doubtful = log_offsets - done - surely_open
        starts[tp] = Start(tp, None if commit is None else commit.offset, done, doubtful)
    return Starts(before_ms, starts)


def translated(
    tp: TopicPartition,
    commit: CommittedOffset,
    offset_map: OffsetMap,
    syncs: Sequence[OffsetSync],
    *,
    end: int,
) -> tuple[OffsetSet, OffsetSet]:
    """Return the offsets on this cluster that are surely done, and those in a log up to `end` that surely are not.

    Raises `ConfigError` for pairs that contradict the commit.
    """
    below = OffsetSet.of((0, commit.offset))
    syncs = _since_restart(syncs)
    _check_same_flow(tp, commit, offset_map, syncs, end)
    done_there = None
    if offset_map.beyond is not None:
        done_there = OffsetSet.of((0, offset_map.base)) | offset_map.beyond
    exact = max((sync.here for sync in syncs if sync.source <= offset_map.base), default=0)
    below = below | OffsetSet.of((0, exact))
    if done_there is None or not syncs:
        return below, EMPTY_SET
    done, not_done = [below], []
    last = syncs[-1]
    alone = OffsetSync(last.source + 1, last.here + 1, follows=True)
    for first, after in pairwise([*syncs, alone]):
        length = after.here - first.here
        if not after.follows or length != after.source - first.source:
            continue
        there = OffsetSet.of((first.source, after.source))
        shift = first.here - first.source
        done.append(_shifted(there & done_there, shift))
        not_done.append(_shifted(there - done_there, shift))
    if last.source >= done_there.end:
        not_done.append(OffsetSet.of((last.here, end)))
    surely_done = union_of(done)
    return surely_done, union_of(not_done) - surely_done


def fail_over(
    facts: MirrorFacts, starts: Starts, early: Mapping[TopicPartition, OffsetSet]
) -> tuple[Change | None, FailOver]:
    """Return the change with which a group continues on this cluster, and its summary; None: no commit is mirrored.

    Args:
        facts: the group, unchanged since.
        starts: the decision of `starts_of`.
        early: of the doubtful offsets, those of records stamped before the greatest delivered cutoff.
    """
    view = facts.view
    if not starts.partitions:
        return None, FailOver(view.group_id)
    topics = dict(view.state.topics) if view.state else {}
    rows = []
    for tp, start in sorted(starts.partitions.items()):
        log = facts.logs[tp]
        known = _known(view.state, tp, log)
        partition = _continued(known, start, starts.delivered_before_ms, log)
        topic = topics.get(tp.topic)
        if topic is None or topic.topic_id != log.topic_id:
            topic = TopicState(log.topic_id, settled=True, partitions={})
        topics[tp.topic] = replace(
            topic, settled=True, partitions={**topic.partitions, tp.partition: partition}
        )
        rows.append(
            FailedOverPartition(
                tp,
                start.before,
                partition.base,
                partition.beyond.count,
                start.doubtful & early.get(tp, EMPTY_SET),
            )
        )
    topics = {name: with_committed_bases(topic) for name, topic in topics.items()}
    state = view.state or GroupState(view.group_id, 0, _UNDEFINED, (), {}, ())
    open_ = view.open_windows()
    closed = tuple(record.plan.window_id for record in open_)
    change = Change(
        state=next_state(replace(state, topics=topics), closed=closed),
        records=tuple(
            replace(record, plan=replace(record.plan, status=WindowStatus.ABANDONED))
            for record in open_
        ),
        # What the abandoned windows held, and what is new, is scanned again.
        time_maps=dict.fromkeys(view.time_maps, EMPTY_MAP),
        commits_to=facts.topics,
    )
    return change, FailOver(view.group_id, tuple(rows), starts.delivered_before_ms, closed)


def _known(state: GroupState | None, tp: TopicPartition, log: LogNow) -> PartitionState | None:
    """Return the group's progress on this very log."""
    if state is None or tp.topic not in state.topics:
        return None
    topic = state.topics[tp.topic]
    return topic.partitions.get(tp.partition) if topic.topic_id == log.topic_id else None


def _continued(
    known: PartitionState | None, start: Start, before_ms: int | None, log: LogNow
) -> PartitionState:
    origin = start.done.end if start.done else 0
    partition = PartitionState(origin, start.done, start.before, leader_epoch=log.leader_epoch)
    late = partition.late if known is None else known.late
    if before_ms is not None:
        late = late.with_step(0, TimeRange(INT64_MIN, before_ms))
    return replace(partition, late=late.from_offset(partition.base))


def _shifted(offsets: OffsetSet, by: int) -> OffsetSet:
    return OffsetSet.from_ranges((start + by, end + by) for start, end in offsets)


def _since_restart(syncs: Sequence[OffsetSync]) -> Sequence[OffsetSync]:
    """Return the pairs after the last one whose source is not above the one before: there the mirror copied records again."""
    again = [
        number
        for number, (first, after) in enumerate(pairwise(syncs), start=1)
        if after.source <= first.source
    ]
    return syncs[again[-1] :] if again else syncs


def _check_same_flow(
    tp: TopicPartition,
    commit: CommittedOffset,
    offset_map: OffsetMap,
    syncs: Sequence[OffsetSync],
    end: int,
) -> None:
    for sync in syncs:
        # The mirror rounds down: a record that is not done there is not below the commit here.
        if sync.here >= end or (sync.source > offset_map.base and sync.here < commit.offset):
            raise ConfigError(
                f"{tp}: the mirror's pair of offsets {sync.source} and {sync.here} contradicts the commit of {offset_map.base} "
                f"there and {commit.offset} here, in a log that ends at {end}: the offset syncs are those of another "
                "flow, or of the other direction. Name the topic that MirrorMaker 2 wrote with "
                "offset-syncs.topic.location=target, or leave it out"
            )
