"""What the broker's time index proves, and what it does not.

An offset is a proof: everything below it is stamped before the requested time. "No such record" proves nothing: the broker
searches only the first segment of the log whose greatest timestamp reaches the time, from the log start on. The record
with that timestamp may be below a log start that was moved into the segment (``kafka-delete-records.sh``, a stream
processor's clean-up). Then the broker answers "no such record", whatever later segments hold (seen on Kafka 4.3). The
greatest timestamp of the log is an upper bound over all segments, and distinguishes the two cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.facts.log_spans import agreed
from kafka_ordered_ops.kafka.ports import LookupDoor


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """The first offset of records from a time on in one partition."""

    #: Every record below it is stamped before the time; None if every record is. It may be at or above the last stable
    #: offset.
    offset: int | None
    #: False if the index has no answer, which proves nothing: the offset is then the log start.
    is_proven: bool = True


def first_at_or_after(
    lookup: LookupDoor,
    log_starts: Mapping[TopicPartition, int],
    times_ms: Iterable[int],
) -> dict[int, dict[TopicPartition, IndexAnswer]]:
    """Return the first offsets of records stamped at or after times, by time and partition.

    Requested under read_uncommitted: an answer above the last stable offset proves as much, and read_committed would
    hide it.
    """
    partitions: Sequence[TopicPartition] = list(log_starts)
    times = sorted(set(times_ms))
    index = agreed(
        "looking up offsets by time",
        lambda: lookup.first_at_or_after_each(partitions, times, Isolation.READ_UNCOMMITTED),
        lambda index: {
            tp: f"the log starts at {log_starts[tp]}, and its index points at {offset}"
            for offsets in index.values()
            for tp, offset in offsets.items()
            if offset is not None and offset < log_starts[tp]
        },
    )
    silent = sorted(
        {tp for by_tp in index.values() for tp, offset in by_tp.items() if offset is None}
    )
    greatest = _greatest(lookup, {tp: log_starts[tp] for tp in silent})
    answers: dict[int, dict[TopicPartition, IndexAnswer]] = {}
    for time_ms, offsets in index.items():
        answers[time_ms] = {}
        for tp, offset in offsets.items():
            answer = IndexAnswer(offset)
            if offset is None and not (tp in greatest and greatest[tp] < time_ms):
                answer = IndexAnswer(log_starts[tp], is_proven=False)
            answers[time_ms][tp] = answer
    return answers


def _greatest(
    lookup: LookupDoor, log_starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the greatest timestamps, if the broker supports it; for an empty log, a timestamp below all times."""
    partitions = list(log_starts)
    if not partitions:
        return {}
    ends = agreed(
        "looking up end offsets",
        lambda: lookup.end_offsets(partitions, Isolation.READ_UNCOMMITTED),
        lambda ends: {
            tp: f"the log starts at {log_starts[tp]} and ends at {end}"
            for tp, end in ends.items()
            if end < log_starts[tp]
        },
    )
    timestamps = lookup.greatest_timestamps(partitions)
    greatest = {tp: time_ms for tp, time_ms in timestamps.items() if time_ms is not None}
    # An empty log has no greatest timestamp, and needs no proof.
    return {**greatest, **{tp: -1 for tp in partitions if ends[tp] == log_starts[tp]}}
