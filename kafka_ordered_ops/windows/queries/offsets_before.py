"""List offsets before a time, newest first, as getOffsetsBefore of Kafka's first API did.

It listed where the files of a log begin, which no broker reports since Kafka 4.0. Here equal steps of time take the
place of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core.arguments import check_count
from kafka_ordered_ops.core.times import SPAN_MS_MAX
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Times of one call: each is a look-up in every partition.
LIMIT_MAX: Final = 1_000

#: Times that are looked up together.
_TIMES_AT_ONCE: Final = 20


@dataclass(frozen=True, slots=True)
class OffsetAtTime:
    """The first offset stamped at or after a time; for a time after all records, the end of the log."""

    time_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class OffsetsBefore:
    """Offsets of one partition before a time."""

    tp: TopicPartition
    log_start: int
    #: Where reading ends.
    end_offset: int
    #: Newest first; each below the one before it.
    offsets: tuple[OffsetAtTime, ...]


def offsets_before(
    settings: ClientSettings,
    topics: Sequence[str],
    time_ms: int,
    *,
    every_ms: int,
    limit: int,
    timeout_s: float = TIMEOUT_S,
) -> list[OffsetsBefore]:
    """Return, for each partition, the first offsets stamped at or after a time and after equal steps back from it.

    A step in which no record is stamped adds no offset.

    Args:
        settings: how to reach the cluster.
        topics: names, or patterns that begin with ``^``.
        time_ms: the newest time.
        every_ms: the step.
        limit: how many times, from 1 to 1,000: at most so many offsets for each partition.
        timeout_s: bound for all questions.

    Raises:
        ConfigError: a number is out of range.
        UnknownTopicError: a topic does not exist.
        BrokerError: the cluster refuses, or cannot be reached.
    """
    check_count(time_ms, what="time", least=0, greatest=INT64_MAX)
    check_count(every_ms, what="every", least=1, greatest=SPAN_MS_MAX)
    check_count(limit, what="limit", least=1, greatest=LIMIT_MAX)
    # A look-up by a negative time would mean something else; nothing is stamped before zero by a clock.
    times = [time_ms - n * every_ms for n in range(limit) if time_ms >= n * every_ms]
    with (
        calls.call("listing offsets before a time", timeout_s),
        open_lookup(settings, timeout_s=timeout_s) as lookup,
    ):
        partitions = [
            TopicPartition(name, number)
            for name, facts in sorted(lookup.selected(topics).items())
            for number in facts.partitions
        ]
        before = log_spans(lookup, partitions, Isolation.READ_COMMITTED)
        # Of empty logs no time finds an offset.
        starts = {tp: span.start for tp, span in before.items() if span.start < span.end}
        found: dict[int, dict[TopicPartition, int | None]] = {}
        for some in _batches(times):
            found |= lookup.first_at_or_after_each(partitions, some, Isolation.READ_COMMITTED)
            if all(found[some[-1]][tp] == start for tp, start in starts.items()):
                # Nothing is before the logs' starts.
                break
        spans = log_spans(lookup, partitions, Isolation.READ_COMMITTED)
    return [
        OffsetsBefore(
            tp,
            spans[tp].start,
            spans[tp].end,
            _falling(
                OffsetAtTime(
                    time_ms, spans[tp].end if (offset := found[time_ms][tp]) is None else offset
                )
                for time_ms in found
            ),
        )
        for tp in partitions
    ]


def _batches(times: list[int]) -> Iterable[list[int]]:
    """Return the times in their order, some at once."""
    return (times[at : at + _TIMES_AT_ONCE] for at in range(0, len(times), _TIMES_AT_ONCE))


def _falling(offsets: Iterable[OffsetAtTime]) -> tuple[OffsetAtTime, ...]:
    """Return the offsets that are below all before them."""
    kept: list[OffsetAtTime] = []
    for one in offsets:
        if not kept or one.offset < kept[-1].offset:
            kept.append(one)
    return tuple(kept)
