"""What readers on brokers and readers of the model have in common: a turn, and positions outside of a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa

from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    RecordsLostError,
    TopicRecreatedError,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition

#: Topics whose ids are not known before they are read.
NO_IDS: Final[Mapping[str, str]] = MappingProxyType({})

#: Ranges named in one error.
_RANGES_SHOWN_MAX = 8


def unreadable_in(
    error: KafkaOrderedOpsError, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetSet]:
    """Return the offsets of some partitions that an error of a read names as unreadable; none for any other error."""
    named = error.facts.get("unreadable", {})
    found = {tp: OffsetSet.from_ranges(named.get(str(tp), ())) for tp in partitions}
    return {tp: offsets for tp, offsets in found.items() if offsets}


def recreated_while_read(topic: str, *, expected: str, found: str) -> TopicRecreatedError:
    """Return the error for a topic that is not the one whose offsets are read."""
    return TopicRecreatedError(
        f"topic {topic} was deleted and created again while it was read: its offsets start over, and nothing of the new "
        f"topic was returned. It had the id {expected} and has the id {found} now. Read it with a new reader, or plan again",
        topic=topic,
        expected_id=expected,
        found_id=found,
    )


class Turn(NamedTuple):
    """What one round of reading brought for one partition."""

    tp: TopicPartition
    #: In offset order; None where only the position moved: over markers, aborted records, a hole.
    records: pa.RecordBatch | None
    #: Everything wanted below this offset has been returned.
    position: int


def position_in_log(
    tp: TopicPartition, wanted: OffsetSet, position: int, *, log_start: int, log_end: int
) -> int:
    """Return where to read on from when a position is outside of the log: behind a gap where nothing was wanted.

    Wanted offsets beyond the log end are lost as well, except those of a set with an open end: they are not written yet.

    Raises:
        RecordsLostError: wanted offsets are not in the log, or an open read is past its end; which.
    """
    left = wanted.within(position, wanted.end)
    is_open = left.end == INT64_MAX
    if is_open and left.first > log_end:
        raise RecordsLostError(
            f"{tp} ends at offset {log_end} now, and is to be read from offset {left.first}: its log was truncated, or "
            f"the topic was recreated. Find out which records are missing, and read on from offset {log_end} at most",
            lost={str(tp): [(log_end, left.first)]},
        )
    lost = left - OffsetSet.of((log_start, INT64_MAX if is_open else log_end))
    if not lost:
        return left.first
    shown = ", ".join(f"[{start}, {end})" for start, end in lost.ranges[:_RANGES_SHOWN_MAX])
    cure = (
        f"Accept the loss by reading on from offset {log_start}"
        if is_open
        else "Plan the window again, or accept the loss with on_data_loss='warn'"
    )
    raise RecordsLostError(
        f"{tp} holds offsets [{log_start}, {log_end}) now; the wanted offsets {shown} are gone: "
        f"retention or deletion removed them, or the topic was recreated. {cure}",
        lost={str(tp): lost.ranges},
    )
