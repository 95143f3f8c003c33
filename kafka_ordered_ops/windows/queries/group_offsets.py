"""Query which offsets a group has done, whether windows, a consumer or Parallel Consumer keep its progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset, TopicFacts
from kafka_ordered_ops.core.cluster.names import check_group
from kafka_ordered_ops.core.errors import UnknownTopicError
from kafka_ordered_ops.core.group.group_state import GroupState, GroupView
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
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

#: The default: every topic except internal ones.
_ALL_TOPICS: Final = ("^.*",)

_IN_LEDGER: Final = (ProgressFormat.LEDGER, ProgressFormat.DUAL)


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """A group's offsets in one partition."""

    tp: TopicPartition
    #: The first offset in the log.
    log_start: int
    #: The end of reading, exclusive.
    end_offset: int
    #: The group's committed offset in Kafka; None if there is none.
    committed: int | None
    #: Done offsets from the log's start on.
    done: OffsetSet
    #: Offsets that open windows hold.
    claimed: OffsetSet
    #: The kind of the commit's metadata.
    metadata: MetadataKind
    #: Why its offset map is ignored, or cannot be about this log; None if there is no problem.
    problem: str | None
    #: Whether the committed offset is past the end of the log.
    is_past_end: bool = False

    @property
    def lag(self) -> int:
        """The number of offsets of the log that are not done."""
        return (OffsetSet.of((self.log_start, self.end_offset)) - self.done).count

    @property
    def done_beyond(self) -> int:
        """The number of done offsets after the first one that is not done."""
        first = self.done.first_missing(self.log_start)
        return self.done.within(first, self.done.end).count if self.done else 0


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A group's offsets, by partition."""

    group_id: str
    #: Where the progress of a group of windows is kept; None for a group without windows, which only has commits.
    format: ProgressFormat | None
    partitions: tuple[PartitionOffsets, ...]
    #: Topics with progress in the ledger that were deleted or recreated since.
    missing_topics: tuple[str, ...]
    #: Open windows whose offsets are unknown.
    unreadable: tuple[str, ...]

    @property
    def lag(self) -> int:
        """The number of offsets of all logs that are not done."""
        return sum(partition.lag for partition in self.partitions)


class GroupOffsetsReader:
    """Read a group's offsets repeatedly over the same connections, without changing anything. Not thread-safe.

    Args:
        settings: how to reach the cluster.
        group_id: the consumer group; not joined.
        topics: names, or patterns that begin with ``^``. By default the topics of the group's windows, or for a group
            without windows every topic that this principal may describe.
        ledger_topic: the topic that stores plans and progress; it is not created.
        timeout_s: time limit for each read.
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
        """Return the current offsets; no partitions for a group that has neither planned nor committed.

        Raises:
            UnknownTopicError: a topic does not exist.
            BrokerError, LedgerError: the cluster refuses a request, or cannot be reached.
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
    # Read progress first and the ends of logs last: otherwise progress could be past an end.
    view = ledger.read(group_id)
    selected = _selected(lookup, topics, view.state)
    format_ = None if view.state is None else view.state.format
    in_ledger = format_ in _IN_LEDGER
    # In a recreated topic, the ledger's offsets are other records.
    recreated = _recreated(selected, view.state) if in_ledger else set()
    partitions = [
        TopicPartition(name, number)
        for name, facts in sorted(selected.items())
        for number in facts.partitions
        if name not in recreated and (not in_ledger or _knows(view.state, name, number))
    ]
    committed = ledger.committed_offsets(group_id, partitions, timeout_s=timeout_s)
    isolation = view.state.definition.isolation if view.state else Isolation.READ_UNCOMMITTED
    # Without a ledger, a group has the partitions on which it has committed.
    known = [tp for tp in partitions if in_ledger or committed[tp] is not None]
    spans = log_spans(lookup, known, isolation) if known else {}
    gone = set() if view.state is None or topics else set(view.state.topics) - set(selected)
    return GroupOffsets(
        group_id,
        format_,
        tuple(_partitions(view, known, committed, spans)),
        tuple(sorted(gone | recreated)),
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
        # The cluster has no topics yet.
        return {}


def _recreated(topics: Mapping[str, TopicFacts], state: GroupState | None) -> set[str]:
    known = {} if state is None else state.topics
    return {
        name
        for name, facts in topics.items()
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
        span, commit = spans[tp], committed[tp]
        progress = None if commit is None else _progress(tp, commit, span)
        problem = None if progress is None else progress.problem
        if is_past_end := commit is not None and commit.offset > span.log_end.offset:
            problem = (
                f"offset {commit.offset} is committed, and the log ends at {span.log_end.offset}: the topic was recreated "
                "or cut, or the commit copied from another group"
            )
        done = _done(view.state, tp, progress)
        yield PartitionOffsets(
            tp,
            span.start,
            span.end,
            None if commit is None else commit.offset,
            done.within(span.start, done.end) if done else done,
            claims.offsets(tp) - done,
            MetadataKind.NONE if progress is None else progress.kind,
            problem,
            is_past_end,
        )


def _done(
    state: GroupState | None, tp: TopicPartition, progress: CommittedProgress | None
) -> OffsetSet:
    """Return the done offsets by the ledger and by commits, each of them only if it stores the progress."""
    done = EMPTY_SET
    if state is not None and state.format in _IN_LEDGER and (known := state.partition(tp)):
        done = known.done
    if progress is not None and (state is None or state.format.is_shared):
        done |= OffsetSet.of((0, progress.base)) | (progress.done or EMPTY_SET)
    return done


def _progress(tp: TopicPartition, commit: CommittedOffset, span: LogSpan) -> CommittedProgress:
    return read_committed_progress(
        commit.offset,
        commit.metadata,
        end=span.log_end.offset,
        policy=DecodePolicy.IGNORE,
        where=str(tp),
    )
