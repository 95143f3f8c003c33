"""Shared by readers of brokers and readers of the in-memory model: a turn, and positions outside of a log."""

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

#: Records in a batch: 1,000 to 5,000 cost least each when they are taken from the client; more only miss the caches.
BATCH_RECORDS: Final = 2_000

#: Ranges named in one error.
_RANGES_SHOWN_MAX = 8


def unreadable_in(
    error: KafkaOrderedOpsError, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetSet]:
    """Return the offsets of these partitions that an error of a read reports as unreadable; none for other errors."""
    named = error.facts.get("unreadable", {})
    unreadable = {tp: OffsetSet.from_ranges(named.get(str(tp), ())) for tp in partitions}
    return {tp: offsets for tp, offsets in unreadable.items() if offsets}


def recreated_while_read(topic: str, *, expected: str, current: str) -> TopicRecreatedError:
    """Return the error for a topic that was recreated while its offsets were read."""
    return TopicRecreatedError(
        f"topic {topic} was deleted and created again while it was read: its offsets start over, and nothing of the new "
        f"topic was returned. Its id was {expected} and is {current} now. Read it with a new reader, or plan again",
        topic=topic,
        expected_id=expected,
        found_id=current,
    )


class Turn(NamedTuple):
    """The result of one round of reading for one partition."""

    tp: TopicPartition
    #: In offset order; None if only the position moved: over control records, aborted records, or a gap.
    records: pa.RecordBatch | None
    #: All wanted records below this offset have been returned.
    position: int


def position_in_log(
    tp: TopicPartition, wanted: OffsetSet, position: int, *, log_start: int, log_end: int
) -> int:
    """Return the offset to continue from if a position is outside of the log: the next wanted one, if none is lost.

    Wanted offsets past the log end are lost as well, except those of a set with an open end: they are not written yet.

    Raises:
        RecordsLostError: wanted offsets are not in the log, or an open read is past its end; the error has the offsets.
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
    lost_text = ", ".join(f"[{start}, {end})" for start, end in lost.ranges[:_RANGES_SHOWN_MAX])
    cure = (
        f"Accept the loss and continue from offset {log_start}"
        if is_open
        else "Plan the window again, or accept the loss with on_data_loss='warn'"
    )
    raise RecordsLostError(
        f"{tp} holds offsets [{log_start}, {log_end}) now; the wanted offsets {lost_text} are gone: "
        f"retention or deletion removed them, or the topic was recreated. {cure}",
        lost={str(tp): lost.ranges},
    )
