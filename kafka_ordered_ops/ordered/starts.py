"""Where an ordered read starts on each partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from kafka_ordered_ops.core.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import CommittedOffsetMissingError
from kafka_ordered_ops.core.planning.planning import bound_time_ms, resolve_start
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound, Earliest
from kafka_ordered_ops.kafka.facts.time_index import first_at_or_after
from kafka_ordered_ops.kafka.ports import LookupDoor

#: Partitions named in one error.
_NAMED_MAX: Final = 8


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
    missing: list[TopicPartition] = []
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
            missing.append(tp)
        else:
            found[tp] = start, ends[tp]
    if missing:
        names = ", ".join(map(str, missing[:_NAMED_MAX]))
        raise CommittedOffsetMissingError(
            f"{len(missing)} partitions are to be read from the committed offset, and there is none: {names}. Choose "
            "other starting offsets, such as 'earliest'",
            partitions=tuple(map(str, missing)),
        )
    return found


def starts_of_new(
    lookup: LookupDoor,
    partitions: list[TopicPartition],
    existed: Collection[TopicPartition],
    bound_of: Callable[[str], Bound],
    isolation: Isolation,
    *,
    now_ms: int,
    committed: Mapping[TopicPartition, CommittedOffset | None],
) -> dict[TopicPartition, tuple[int, int]]:
    """Return what `starts_and_ends` does for partitions that a read finds or gains on its way.

    Those that did not exist when it began are read whole, whatever starting offsets say: their first records are as new
    as those of the others.
    """
    found: dict[TopicPartition, tuple[int, int]] = {}
    old = [tp for tp in partitions if tp in existed]
    for some, bounds in ((old, bound_of), (partitions, _earliest)):
        left = [tp for tp in some if tp not in found]
        found |= starts_and_ends(
            lookup, left, bounds, isolation, now_ms=now_ms, committed=committed
        )
    return found


def _earliest(_: str) -> Bound:
    return Earliest()
