"""Query which offsets a group has done, whoever keeps its progress: windows, a consumer, or Parallel Consumer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core.cluster_facts import CommittedOffset, TopicFacts
from kafka_ordered_ops.core.errors import UnknownTopicError
from kafka_ordered_ops.core.group.group_state import GroupState, GroupView
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.names import check_group
from kafka_ordered_ops.core.offset_map.reading import (
    CommittedProgress,
    DecodePolicy,
    MetadataKind,
    read_committed_progress,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import Isolation, ProgressFormat, TopicPartition
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.facts.log_spans import LogSpan, log_spans
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import LedgerDoor, LookupDoor, open_ledger, open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Without names: every topic but internal ones.
_ALL_TOPICS: Final = ("^.*",)

_IN_LEDGER: Final = (ProgressFormat.LEDGER, ProgressFormat.DUAL)


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """A group's offsets in one partition."""

    tp: TopicPartition
    #: The first offset still in the log.
    log_start: int
    #: Where reading ends.
    end_offset: int
    #: The group's committed offset in Kafka; None: there is none.
    committed: int | None
    #: Done offsets from the log's start on.
    done: OffsetSet
    #: Offsets that open windows hold.
    claimed: OffsetSet
    #: What the commit's metadata is.
    metadata: MetadataKind
    #: Why its offset map is ignored, or cannot be about this log; None: neither.
    problem: str | None
    #: Whether the committed offset is past the end of the log.
    is_past_end: bool = False

    @property
    def lag(self) -> int:
        """Offsets of the log that are not done."""
        return (OffsetSet.of((self.log_start, self.end_offset)) - self.done).count

    @property
    def done_beyond(self) -> int:
        """Done offsets beyond the first one that is not done."""
        first = self.done.first_missing(self.log_start)
        return self.done.within(first, self.done.end).count if self.done else 0


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A group's offsets, by partition."""

    group_id: str
    #: Where the progress of a group of windows is kept; None: a group without windows, which has commits only.
    format: ProgressFormat | None
    partitions: tuple[PartitionOffsets, ...]
    #: Topics on which the ledger has progress, and that were deleted, or recreated since.
    missing_topics: tuple[str, ...]
    #: Open windows whose offsets are unknown.
    unreadable: tuple[str, ...]

    @property
    def lag(self) -> int:
        """Offsets of the logs that are not done, in all."""
        return sum(one.lag for one in self.partitions)


class GroupOffsetsReader:
    """Reads a group's offsets, again and again over the same connections. Changes nothing; not for several threads.

    Args:
        settings: how to reach the cluster.
        group_id: the consumer group; not joined.
        topics: names, or patterns that begin with ``^``. None given: those of the group's windows, or for a group
            without windows every topic that this principal may describe.
        ledger_topic: the topic that holds plans and progress; none is created.
        timeout_s: bound for each read.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        topics: Sequence[str] = (),
        *,
        ledger_topic: str = LEDGER_TOPIC,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._group, self._topics, self._timeout_s = check_group(group_id), tuple(topics), timeout_s
        self._lookup = open_lookup(settings, timeout_s=timeout_s)
        self._ledger = open_ledger(settings, self._lookup, topic=ledger_topic, timeout_s=timeout_s)

    def __enter__(self) -> GroupOffsetsReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ledger.close()
        self._lookup.close()

    def read(self) -> GroupOffsets:
        """Return the offsets as of now; no partitions for a group that has neither planned nor committed.

        Raises:
            UnknownTopicError: a topic does not exist.
            BrokerError, LedgerError: the cluster, or the way to it.
        """
        with calls.call(f"group {self._group}: reading its offsets", self._timeout_s):
            return read_offsets(
                self._lookup, self._ledger, self._group, self._topics, timeout_s=self._timeout_s
            )


def read_offsets(
    lookup: LookupDoor,
    ledger: LedgerDoor,
    group_id: str,
    topics: Sequence[str],
    *,
    timeout_s: float,
) -> GroupOffsets:
    """Return a group's offsets; arguments and errors are those of `GroupOffsetsReader`."""
    # Progress first, the logs' ends last: otherwise progress could be beyond an end.
    view = ledger.read(group_id)
    found = _selected(lookup, topics, view.state)
    format_ = None if view.state is None else view.state.format
    in_ledger = format_ in _IN_LEDGER
    # In another topic of the same name, the ledger's offsets are other records.
    anew = _recreated(found, view.state) if in_ledger else set()
    wanted = [
        TopicPartition(name, number)
        for name, facts in sorted(found.items())
        for number in facts.partitions
        if name not in anew and (not in_ledger or _knows(view.state, name, number))
    ]
    committed = ledger.committed_offsets(group_id, wanted, timeout_s=timeout_s)
    isolation = view.state.definition.isolation if view.state else Isolation.READ_UNCOMMITTED
    # Without a ledger, a group has the partitions on which it has committed.
    known = [tp for tp in wanted if in_ledger or committed[tp] is not None]
    spans = log_spans(lookup, known, isolation) if known else {}
    gone = set() if view.state is None or topics else set(view.state.topics) - set(found)
    return GroupOffsets(
        group_id,
        format_,
        tuple(_partitions(view, known, committed, spans)),
        tuple(sorted(gone | anew)),
        tuple(view.open_unreadable()),
    )


def _selected(
    lookup: LookupDoor, topics: Sequence[str], state: GroupState | None
) -> dict[str, TopicFacts]:
    if topics:
        return lookup.selected(topics)
    if state is not None:
        return lookup.existing(state.topics)
    try:
        return lookup.selected(_ALL_TOPICS)
    except UnknownTopicError:
        # The cluster has no topic yet.
        return {}


def _recreated(found: Mapping[str, TopicFacts], state: GroupState | None) -> set[str]:
    known = {} if state is None else state.topics
    return {
        name
        for name, facts in found.items()
        if name in known and known[name].topic_id != facts.topic_id
    }


def _knows(state: GroupState | None, topic: str, number: int) -> bool:
    return state is not None and state.partition(TopicPartition(topic, number)) is not None


def _partitions(
    view: GroupView,
    known: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset | None],
    spans: Mapping[TopicPartition, LogSpan],
) -> Iterator[PartitionOffsets]:
    claims = view.known_claims()
    for tp in known:
        span, found = spans[tp], committed[tp]
        progress = None if found is None else _progress(tp, found, span)
        problem = None if progress is None else progress.problem
        if is_past_end := found is not None and found.offset > span.log_end.offset:
            problem = (
                f"offset {found.offset} is committed, and the log ends at {span.log_end.offset}: the topic was recreated "
                "or cut, or the commit copied from another group"
            )
        done = _done(view.state, tp, progress)
        yield PartitionOffsets(
            tp,
            span.start,
            span.end,
            None if found is None else found.offset,
            done.within(span.start, done.end) if done else done,
            claims.offsets(tp) - done,
            MetadataKind.NONE if progress is None else progress.kind,
            problem,
            is_past_end,
        )


def _done(
    state: GroupState | None, tp: TopicPartition, progress: CommittedProgress | None
) -> OffsetSet:
    """Return what ledger and commits say together; each of them, if it is where progress is kept."""
    done = EMPTY_SET
    if state is not None and state.format in _IN_LEDGER and (known := state.partition(tp)):
        done = known.done
    if progress is not None and (state is None or state.format.is_shared):
        done |= OffsetSet.of((0, progress.base)) | (progress.done or EMPTY_SET)
    return done


def _progress(tp: TopicPartition, found: CommittedOffset, span: LogSpan) -> CommittedProgress:
    return read_committed_progress(
        found.offset,
        found.metadata,
        end=span.log_end.offset,
        policy=DecodePolicy.IGNORE,
        where=str(tp),
    )
