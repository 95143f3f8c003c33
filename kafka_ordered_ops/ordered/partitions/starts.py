"""Where an ordered read starts on each partition."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.cluster.out_of_range import OnOutOfRange, offset_in_log
from kafka_ordered_ops.core.errors import CommittedOffsetMissingError, ConfigError
from kafka_ordered_ops.core.planning.planning import bound_time_ms, resolve_start
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.core.window.bounds import AtOffset, Bound, Earliest
from kafka_ordered_ops.kafka.facts.time_index import first_at_or_after
from kafka_ordered_ops.kafka.ports import LookupDoor

#: The maximum number of partitions that one error names.
_NAMED_MAX: Final = 8
NO_BOUNDS: Final[Mapping[TopicPartition, Bound]] = MappingProxyType({})
NO_OFFSETS: Final[Mapping[TopicPartition, CommittedOffset | None]] = MappingProxyType({})

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Starts:
    """Where partitions start: at the committed offset if there is one, otherwise at one of these bounds.

    Args:
        bound_of: returns the bound of a topic's partitions.
        isolation: the isolation of the read, which decides where a log ends.
        exact: the bounds of single partitions, which take precedence over those of their topics.
        on_data_loss: what to do about an offset out of range. Under `FAIL`, a committed offset is returned unchanged: its
            reader then raises an error with advice for the group.
    """

    bound_of: Callable[[str], Bound]
    isolation: Isolation
    exact: Mapping[TopicPartition, Bound] = field(default_factory=lambda: NO_BOUNDS)
    on_data_loss: OnOutOfRange = OnOutOfRange.FAIL

    def of(
        self,
        lookup: LookupDoor,
        partitions: list[TopicPartition],
        *,
        now_ms: int,
        committed: Mapping[TopicPartition, CommittedOffset | None] = NO_OFFSETS,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return for each partition the first offset to read, and the current end of its log.

        `Relative` counts back from `now_ms`.

        Raises:
            CommittedOffsetMissingError: the start is the committed offset, and there is none.
            RecordsLostError: the bound of a single partition is out of range, under `FAIL`.
            BrokerError: the cluster refuses the request or cannot be reached.
        """
        exact = self.exact
        if not partitions:
            return {}
        bounds = {tp: exact.get(tp) or self.bound_of(tp.topic) for tp in partitions}
        log_starts = lookup.log_starts(partitions)
        ends = lookup.end_offsets(partitions, self.isolation)
        has_exact = any(committed.values()) or exact
        high = lookup.log_ends(partitions) if has_exact else {}
        times = {tp: bound_time_ms(bounds[tp], now_ms) for tp in partitions}
        lookup_times = {time_ms for time_ms in times.values() if time_ms is not None}
        answers = first_at_or_after(lookup, log_starts, lookup_times) if lookup_times else {}
        starts: dict[TopicPartition, tuple[int, int]] = {}
        missing: list[TopicPartition] = []
        for tp in partitions:
            commit, time_ms = committed.get(tp), times[tp]
            bound = bounds[tp]
            offset = commit.offset if commit is not None else None
            if offset is None and tp in exact and isinstance(bound, AtOffset):
                offset = bound.offset
            if offset is not None:
                if commit is None or self.on_data_loss is not OnOutOfRange.FAIL:
                    offset = in_log(tp, offset, self.on_data_loss, log_starts[tp], high[tp].offset)
                starts[tp] = offset, ends[tp]
                continue
            start = resolve_start(
                bound,
                log_start=log_starts[tp],
                end=ends[tp],
                committed=None,
                index_offset=None if time_ms is None else answers[time_ms][tp].offset,
            )
            if start is None:
                missing.append(tp)
                continue
            starts[tp] = start, ends[tp]
            if isinstance(bound, AtOffset) and bound.offset != start:
                _log.warning("%s starts at offset %d: it has no offset %d", tp, start, bound.offset)
        if missing:
            names = ", ".join(map(str, missing[:_NAMED_MAX]))
            raise CommittedOffsetMissingError(
                f"{len(missing)} partitions must start at the committed offset, and have none: {names}. Choose "
                "other starting offsets, such as 'earliest'",
                partitions=tuple(map(str, missing)),
            )
        return starts

    def of_new(
        self,
        lookup: LookupDoor,
        partitions: list[TopicPartition],
        existed: Collection[TopicPartition],
        *,
        now_ms: int,
        committed: Mapping[TopicPartition, CommittedOffset | None],
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the result of `of` for partitions that a running read finds or gains.

        Partitions that did not exist when the read started are read from their beginning, with any starting offsets: all
        of their records are new.
        """
        whole = replace(self, bound_of=_earliest, exact=NO_BOUNDS)
        old = [tp for tp in partitions if tp in existed]
        new = [tp for tp in partitions if tp not in existed]
        return self.of(lookup, old, now_ms=now_ms, committed=committed) | whole.of(
            lookup, new, now_ms=now_ms, committed=committed
        )


def check_exist(bounds: Collection[TopicPartition], existing: Collection[TopicPartition]) -> None:
    """Raise `ConfigError` for starting offsets of partitions that do not exist."""
    if absent := sorted(set(bounds) - set(existing)):
        names = ", ".join(map(str, absent[:_NAMED_MAX]))
        raise ConfigError(
            f"starting_offsets has {names}: no such partitions among the topics of the read"
        )


def in_log(
    tp: TopicPartition, offset: int, policy: OnOutOfRange, log_start: int, log_end: int
) -> int:
    """Return the offset to read from, and log it if it differs; raise `RecordsLostError` under `FAIL`."""
    start, note = offset_in_log(tp, offset, policy, log_start=log_start, log_end=log_end)
    if note is not None:
        _log.warning("%s", note)
    return start


def _earliest(_: str) -> Bound:
    return Earliest()
