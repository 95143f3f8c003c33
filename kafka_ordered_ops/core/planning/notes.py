"""Notes for people about windows that have fewer records than their times suggest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kafka_ordered_ops.core.arguments import first_of
from kafka_ordered_ops.core.planning.planning import PartitionFacts
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.bounds import AtOffset, Bound

#: Partitions listed in a note.
_NAMED_MAX: Final = 5


def hidden_notes(facts: Sequence[PartitionFacts], number: int) -> tuple[str, ...]:
    """Return a note if open transactions hide records that a window may ask for, before its cutoff.

    Args:
        facts: the facts of each partition.
        number: the index of the window in their `head_ends`.
    """
    hidden = [
        f"{partition.tp} from offset {partition.end:,} on"
        for partition in facts
        if partition.head_ends[number] >= partition.end < partition.high_watermark
    ]
    if not hidden:
        return ()
    return (
        f"open transactions hide records of {first_of(hidden, _NAMED_MAX)}: the window ends there, and a later one takes them",
    )


def beyond_notes(
    bound: Bound,
    time_ms: int | None,
    facts: Sequence[PartitionFacts],
    first_at_time: Mapping[TopicPartition, int | None],
) -> tuple[str, ...]:
    """Return a note if the starting offsets of a group are past the ends of logs: it then starts at their ends.

    Args:
        bound: the starting offsets.
        time_ms: the time of the starting offsets, if they are given by a time.
        facts: the facts of each partition where the group starts.
        first_at_time: by partition, the offset of the first record at or after the time, if there is one.
    """
    if isinstance(bound, AtOffset):
        beyond = [
            f"{partition.tp} at {partition.end:,}"
            for partition in facts
            if bound.offset > partition.end
        ]
        if beyond:
            return (
                f"starting offset {bound.offset:,} is beyond the end of {first_of(beyond, _NAMED_MAX)}: the group starts at the end",
            )
    elif (
        time_ms is not None
        and any(partition.log_start < partition.end for partition in facts)
        and all(first_at_time[partition.tp] is None for partition in facts)
    ):
        return (
            f"no record is stamped at or after {time_text(time_ms)}, the starting offsets: the group starts at the ends of the logs",
        )
    return ()
