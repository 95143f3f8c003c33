"""Gather the facts for liveness: a few batched requests, and timestamps where the index is not enough."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kafka_ordered_ops.core.errors import RecordsLostError
from kafka_ordered_ops.core.liveness.live_search import (
    LivenessRule,
    LogFacts,
    Seen,
    SeenFold,
    far,
    near,
    tail,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning.planning import lookup_time_ms
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.facts.log_spans import agreed
from kafka_ordered_ops.kafka.facts.skipping import Skipping
from kafka_ordered_ops.kafka.facts.time_index import IndexAnswer, first_at_or_after
from kafka_ordered_ops.kafka.ports import LookupDoor, open_reader
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings

_log = logging.getLogger("kafka_ordered_ops.kafka")

#: The offsets read from one partition in one check, after the first few: a fraction of a second. A partition that needs more
#: stays undecided, and the next check continues.
LOOK_OFFSETS_MAX: Final = 100_000
#: The fetch size for the first few offsets: with the client's own 1 MiB, a thousand partitions would fetch a gigabyte,
#: of which almost nothing is read.
NEAR_FETCH_BYTES: Final = 65_536
#: How often the facts are gathered again in one check, if retention removes offsets before they are read.
_ROUNDS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class LivenessQuestion:
    """The partitions to check, and the rule."""

    #: Names, or patterns that begin with ``^``; `exclude` likewise.
    topics: Sequence[str]
    exclude: Sequence[str]
    isolation: Isolation
    rule: LivenessRule


def look(
    lookup: LookupDoor,
    settings: ClientSettings,
    group_id: str,
    question: LivenessQuestion,
    *,
    now_ms: int,
    seen: Mapping[TopicPartition, Seen],
    offsets_max: int = LOOK_OFFSETS_MAX,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> list[tuple[LogFacts, Seen]]:
    """Check every partition of the topics once, continuing from the results of earlier checks in `seen`.

    Reads for the group without joining it: at most `offsets_max` offsets of a partition, and the few that the index
    points to. Creates and writes nothing.

    Raises:
        UnknownTopicError: a topic does not exist, or no topic matches.
        BrokerError, ReadError: the cluster refuses a request, or cannot be reached or read.
    """
    known: dict[TopicPartition, Seen] = {}
    facts: list[LogFacts] = []
    for _ in range(_ROUNDS_MAX):
        facts = log_facts(lookup, question)
        known = {
            log.tp: (known.get(log.tp) or seen.get(log.tp) or Seen(log.topic_id)).kept_for(log)
            for log in facts
        }
        try:
            first = {log.tp: near(log, known[log.tp]) for log in facts}
            quick = settings.merged({"fetch.message.max.bytes": NEAR_FETCH_BYTES})
            _read(quick, group_id, question, first, known, now_ms, stall_timeout_s)
            rest = {log.tp: far(log, known[log.tp], offsets_max=offsets_max) for log in facts}
            _read(settings, group_id, question, rest, known, now_ms, stall_timeout_s)
            last = {log.tp: tail(log, known[log.tp]) for log in facts}
            _read(quick, group_id, question, last, known, now_ms, stall_timeout_s)
            break
        except RecordsLostError as error:
            # If no round succeeds, unread offsets leave a partition undecided.
            _log.info("liveness: the facts are gathered again: %s", error)
    return [(log, known[log.tp]) for log in facts]


def log_facts(lookup: LookupDoor, question: LivenessQuestion) -> list[LogFacts]:
    """Return the broker's facts about every partition of the topics; raise `UnknownTopicError` or `BrokerError`."""
    topics = lookup.selected(question.topics, question.exclude)
    partitions = [
        TopicPartition(name, number)
        for name, topic in topics.items()
        for number in topic.partitions
    ]

    def gather() -> _Ends:
        starts = lookup.log_starts(partitions)
        # The time first, so that the offset it points to is below the ends, and is read.
        index_answers = _index_answers(lookup, question, partitions, starts)
        # The high watermark before the last stable offset: if the end is at or above it, no transaction holds back
        # records written by that time.
        tops = lookup.end_offsets(partitions, Isolation.READ_UNCOMMITTED)
        return _Ends(
            starts, index_answers, tops, lookup.end_offsets(partitions, question.isolation)
        )

    starts, index_answers, high_watermarks, ends = agreed(
        "looking up where logs begin and end", gather, _contradictions
    )
    return [
        LogFacts(
            tp=tp,
            topic_id=topics[tp.topic].topic_id,
            log_start=starts[tp],
            end_offset=ends[tp],
            # Requested first, and the log may have grown since.
            high_watermark=max(high_watermarks[tp], ends[tp]),
            index_offset=index_answers[tp].offset,
            index_is_proven=index_answers[tp].is_proven,
        )
        for tp in partitions
    ]


class _Ends(NamedTuple):
    """The answers about all partitions, requested in this order."""

    starts: Mapping[TopicPartition, int]
    index_answers: Mapping[TopicPartition, IndexAnswer]
    high_watermarks: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def _contradictions(ends: _Ends) -> dict[TopicPartition, str]:
    """Return the partitions with contradicting answers: they were requested in order, and logs only grow."""
    wrong: dict[TopicPartition, str] = {}
    for tp, start in ends.starts.items():
        index_offset, top, end = (
            ends.index_answers[tp].offset,
            ends.high_watermarks[tp],
            ends.ends[tp],
        )
        if not start <= min(top, end) or (
            index_offset is not None and not start <= index_offset <= top
        ):
            wrong[tp] = (
                f"the log starts at {start}, its readable end is {end}, it ends at {top}, and its index points "
                f"at {index_offset}"
            )
    return wrong


def _index_answers(
    lookup: LookupDoor,
    question: LivenessQuestion,
    partitions: Sequence[TopicPartition],
    starts: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, IndexAnswer]:
    time_ms = lookup_time_ms(question.rule.live_from_ms)
    if time_ms is None:
        return {tp: IndexAnswer(start, is_proven=False) for tp, start in starts.items()}
    # If the index proves nothing, such a record may be anywhere from the log start on.
    return first_at_or_after(lookup, {tp: starts[tp] for tp in partitions}, [time_ms])[time_ms]


def _read(
    settings: ClientSettings,
    group_id: str,
    question: LivenessQuestion,
    to_read: Mapping[TopicPartition, OffsetSet],
    known: dict[TopicPartition, Seen],
    now_ms: int,
    stall_timeout_s: float,
) -> None:
    """Read timestamps into `known` until each partition is decided or its share is read."""
    to_read = {
        tp: offsets for tp, offsets in to_read.items() if offsets and not known[tp].decides(now_ms)
    }
    folds = {tp: SeenFold(known[tp], question.rule, now_ms=now_ms) for tp in to_read}
    positions: dict[TopicPartition, int] = {}
    unreadable: Mapping[TopicPartition, OffsetSet] = {}
    try:
        with open_reader(
            settings, group_id, question.isolation, to_read, stall_timeout_s=stall_timeout_s
        ) as reader:
            # Unreadable records prove nothing.
            skipping = Skipping(reader, to_read)
            unreadable = skipping.unreadable
            for batch in skipping.through(reader.timestamps):
                fold = folds[batch.tp]
                fold.feed(batch.offsets, batch.timestamps_ms)
                positions[batch.tp] = batch.position
                if fold.decides():
                    reader.stop(batch.tp)
    finally:
        for tp, offsets in unreadable.items():
            positions[tp] = max(positions.get(tp, 0), offsets.end)
        # Also after a failed read, so that its results are not read again.
        for tp, position in positions.items():
            known[tp] = folds[tp].finish(to_read[tp].within(0, position))
