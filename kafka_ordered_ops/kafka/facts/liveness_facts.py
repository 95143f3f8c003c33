"""Gathers the facts for liveness: a few batched requests, and timestamps where the index does not suffice."""

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

#: Offsets read from one partition in one check, after the first few: a fraction of a second. A partition that needs
#: more is undecided, and the next check continues.
LOOK_OFFSETS_MAX: Final = 100_000
#: A fetch of the first few offsets: with the client's own 1 MiB, a thousand partitions would be a gigabyte
#: of which almost nothing is read.
NEAR_FETCH_BYTES: Final = 65_536
#: Retention may remove offsets before they are read; then the facts are gathered again, this often in one check.
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

    Reads on behalf of `group` without joining it; at most `offsets_max` offsets of a partition, and the few
    that the index points at. Creates and writes nothing.

    Raises:
        UnknownTopicError: a topic does not exist, or no topic matches.
        BrokerError, ReadError: the cluster refuses, or cannot be reached or read.
    """
    known: dict[TopicPartition, Seen] = {}
    facts: list[LogFacts] = []
    for _ in range(_ROUNDS_MAX):
        facts = log_facts(lookup, question)
        known = {
            one.tp: (known.get(one.tp) or seen.get(one.tp) or Seen(one.topic_id)).kept_for(one)
            for one in facts
        }
        try:
            first = {one.tp: near(one, known[one.tp]) for one in facts}
            quick = settings.merged({"fetch.message.max.bytes": NEAR_FETCH_BYTES})
            _read(quick, group_id, question, first, known, now_ms, stall_timeout_s)
            rest = {one.tp: far(one, known[one.tp], offsets_max=offsets_max) for one in facts}
            _read(settings, group_id, question, rest, known, now_ms, stall_timeout_s)
            last = {one.tp: tail(one, known[one.tp]) for one in facts}
            _read(quick, group_id, question, last, known, now_ms, stall_timeout_s)
            break
        except RecordsLostError as error:
            # Unread offsets then make a partition undecided, if no round succeeds.
            _log.info("liveness: the facts are gathered again: %s", error)
    return [(one, known[one.tp]) for one in facts]


def log_facts(lookup: LookupDoor, question: LivenessQuestion) -> list[LogFacts]:
    """Return what the broker reports about every partition of the topics; raise `UnknownTopicError`, `BrokerError`."""
    topics = lookup.selected(question.topics, question.exclude)
    partitions = [
        TopicPartition(name, number) for name, one in topics.items() for number in one.partitions
    ]

    def gather() -> _Ends:
        starts = lookup.log_starts(partitions)
        # The time first: whatever it points at is below the ends, and is read.
        found = _found(lookup, question, partitions, starts)
        # The high watermark before the last stable offset: an end at or above it then means that no transaction
        # holds back anything that was written by that time.
        tops = lookup.end_offsets(partitions, Isolation.READ_UNCOMMITTED)
        return _Ends(starts, found, tops, lookup.end_offsets(partitions, question.isolation))

    starts, found, high_watermarks, ends = agreed(
        "looking up where logs begin and end", gather, _contradictions
    )
    return [
        LogFacts(
            tp=tp,
            topic_id=topics[tp.topic].topic_id,
            log_start=starts[tp],
            end_offset=ends[tp],
            # Asked first, and the log may have grown since.
            high_watermark=max(high_watermarks[tp], ends[tp]),
            found=found[tp].offset,
            found_is_proven=found[tp].is_proven,
        )
        for tp in partitions
    ]


class _Ends(NamedTuple):
    """The requests about all partitions, in this order."""

    starts: Mapping[TopicPartition, int]
    found: Mapping[TopicPartition, IndexAnswer]
    high_watermarks: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def _contradictions(asked: _Ends) -> dict[TopicPartition, str]:
    """Return each question was asked after the one before it, and logs only grow."""
    wrong: dict[TopicPartition, str] = {}
    for tp, start in asked.starts.items():
        found, top, end = asked.found[tp].offset, asked.high_watermarks[tp], asked.ends[tp]
        if not start <= min(top, end) or (found is not None and not start <= found <= top):
            wrong[tp] = (
                f"the log starts at {start}, its readable end is {end}, it ends at {top}, and its index points "
                f"at {found}"
            )
    return wrong


def _found(
    lookup: LookupDoor,
    question: LivenessQuestion,
    partitions: Sequence[TopicPartition],
    starts: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, IndexAnswer]:
    time_ms = lookup_time_ms(question.rule.live_from_ms)
    if time_ms is None:
        return {tp: IndexAnswer(start, is_proven=False) for tp, start in starts.items()}
    # Where the index proves nothing, everything from the log start on may hold such a record.
    return first_at_or_after(lookup, {tp: starts[tp] for tp in partitions}, [time_ms])[time_ms]


def _read(
    settings: ClientSettings,
    group_id: str,
    question: LivenessQuestion,
    wanted: Mapping[TopicPartition, OffsetSet],
    known: dict[TopicPartition, Seen],
    now_ms: int,
    stall_timeout_s: float,
) -> None:
    """Read timestamps into `known` until each partition is decided or its share is read."""
    wanted = {
        tp: offsets for tp, offsets in wanted.items() if offsets and not known[tp].decides(now_ms)
    }
    folds = {tp: SeenFold(known[tp], question.rule, now_ms=now_ms) for tp in wanted}
    positions: dict[TopicPartition, int] = {}
    unreadable: Mapping[TopicPartition, OffsetSet] = {}
    try:
        with open_reader(
            settings, group_id, question.isolation, wanted, stall_timeout_s=stall_timeout_s
        ) as reader:
            # What cannot be read proves nothing.
            skipping = Skipping(reader, wanted)
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
        # Also after a failed read: its results need not be read again.
        for tp, position in positions.items():
            known[tp] = folds[tp].finish(wanted[tp].within(0, position))
