"""Where an ordered read starts on each partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kafka_ordered_ops.core.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import CommittedOffsetMissingError
from kafka_ordered_ops.core.planning.planning import bound_time_ms, resolve_start
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.kafka.facts.time_index import first_at_or_after
from kafka_ordered_ops.kafka.ports import LookupDoor


def starts_and_ends(
    lookup: LookupDoor,
    partitions: list[TopicPartition],
    bound_of: Callable[[str], Bound],
    isolation: Isolation,
    *,
    now_ms: int,
    committed: Mapping[TopicPartition, CommittedOffset | None],
) -> dict[TopicPartition, tuple[int, int]]:
    """Return for each partition the first offset to read, and where its log ends now.

    A committed offset wins over starting offsets. `Relative` counts back from `now_ms`.

    Raises:
        CommittedOffsetMissingError: the start is the committed offset, and there is none.
        BrokerError: the cluster refuses, or cannot be reached.
    """
    if not partitions:
        return {}
    log_starts = lookup.log_starts(partitions)
    ends = lookup.end_offsets(partitions, isolation)
    times = {tp: bound_time_ms(bound_of(tp.topic), now_ms) for tp in partitions}
    asked = {time_ms for time_ms in times.values() if time_ms is not None}
    answers = first_at_or_after(lookup, log_starts, asked) if asked else {}
    found: dict[TopicPartition, tuple[int, int]] = {}
    for tp in partitions:
        mine, time_ms = committed.get(tp), times[tp]
        if mine is not None:
            found[tp] = mine.offset, ends[tp]
            continue
        start = resolve_start(
            bound_of(tp.topic),
            log_start=log_starts[tp],
            end=ends[tp],
            committed=None,
            found=None if time_ms is None else answers[time_ms][tp].offset,
        )
        if start is None:
            raise CommittedOffsetMissingError(
                f"{tp} is to be read from the committed offset, and there is none: choose other starting offsets, such "
                "as 'earliest'",
                partition=str(tp),
            )
        found[tp] = start, ends[tp]
    return found
