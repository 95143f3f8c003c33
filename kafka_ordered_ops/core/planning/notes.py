"""Notes for people about windows that have fewer records than their times suggest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kafka_ordered_ops.core.arguments import first_of
from kafka_ordered_ops.core.planning.planning import PartitionFacts
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.bounds import AtOffset, Bound

#: Partitions that a note names.
_NAMED_MAX: Final = 5


def hidden_notes(facts: Sequence[PartitionFacts], number: int) -> tuple[str, ...]:
    """Return a note if open transactions hide records that a window may ask for: those before its cutoff are not over.

    Args:
        facts: of each partition.
        number: of the window, in their `head_ends`.
    """
    hidden = [
        f"{one.tp} from offset {one.end:,} on"
        for one in facts
        if one.head_ends[number] >= one.end < one.high_watermark
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
    found: Mapping[TopicPartition, int | None],
) -> tuple[str, ...]:
    """Return a note if a group starts beyond the ends of logs: it then starts at their ends.

    Args:
        bound: where it starts.
        time_ms: the time that this means, if it means one.
        facts: of each partition that begins.
        found: the first record from the time on, if there is one.
    """
    if isinstance(bound, AtOffset):
        beyond = [f"{one.tp} at {one.end:,}" for one in facts if bound.offset > one.end]
        if beyond:
            return (
                f"starting offset {bound.offset:,} is beyond the end of {first_of(beyond, _NAMED_MAX)}: the group starts at the end",
            )
    elif (
        time_ms is not None
        and any(one.log_start < one.end for one in facts)
        and all(found[one.tp] is None for one in facts)
    ):
        return (
            f"no record is stamped at or after {time_text(time_ms)}, the starting offsets: the group starts at the ends of the logs",
        )
    return ()
