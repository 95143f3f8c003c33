"""Times in another unit than the one they are read in: seconds where milliseconds belong, for example.

A number counts as a time in a unit if it means a time from September 2001 to a year from now. These ranges of the units are far
apart, so a number fits one unit at most. Older times, zeros and placeholders fit none, and are never reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import TopicPartition

#: Seconds since 1970; a number of ten digits.
_LEAST_S: Final = 1_000_000_000
_AHEAD_S: Final = 366 * 86_400

#: What to do about timestamps of records.
RECORD_CURE: Final = (
    "Set milliseconds in the producer: for a cutoff, and for retention, seconds are times of 1970, and no cutoff is as late as "
    "microseconds"
)


class TimeUnit(IntEnum):
    """A unit of times; its value is how many there are in a second."""

    SECONDS = 1
    MILLISECONDS = 1_000
    MICROSECONDS = 1_000_000
    NANOSECONDS = 1_000_000_000

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class WrongUnit:
    """Times in another unit than their own."""

    own: TimeUnit
    unit: TimeUnit
    #: How many, of how many.
    count: int
    total: int
    #: One of them.
    value: int

    def __str__(self) -> str:
        return (
            f"{self.count:,} of {self.total:,} are {self.unit}, and {self.own} are expected: {self.value:,} is "
            f"{_time(self.value, self.own)}, and in {self.unit} {_time(self.value, self.unit)}"
        )


def wrong_units(values: Int64Array, own: TimeUnit, *, now_ms: int) -> list[WrongUnit]:
    """Return the units other than their own that values fit."""
    found = []
    for unit in TimeUnit:
        fits = (values >= _LEAST_S * unit) & (values <= (now_ms // 1000 + _AHEAD_S) * unit)
        if unit is not own and fits.any():
            count, value = int(fits.sum()), int(values[np.argmax(fits)])
            found.append(WrongUnit(own, unit, count, values.size, value))
    return found


def unit_notes(
    values: Mapping[TopicPartition, Int64Array],
    own: TimeUnit,
    what: str,
    *,
    now_ms: int,
    share: float = 0.0,
) -> list[str]:
    """Return a note for each topic and unit in which times are wrong.

    Args:
        values: the times of each partition.
        own: the unit that they are read in.
        what: what they are.
        now_ms: the time.
        share: of a partition's times, the least share that is reported.
    """
    found = defaultdict[tuple[str, TimeUnit], list[tuple[TopicPartition, WrongUnit]]](list)
    for tp, times in sorted(values.items()):
        for wrong in wrong_units(times, own, now_ms=now_ms):
            if wrong.count >= share * wrong.total:
                found[tp.topic, wrong.unit].append((tp, wrong))
    notes = []
    for (_, unit), wrongs in found.items():
        (first, one), more = wrongs[0], len(wrongs) - 1
        count, total = (
            sum(wrong.count for _, wrong in wrongs),
            sum(wrong.total for _, wrong in wrongs),
        )
        where = f"{first} and {more} more partitions" if more else f"{first}"
        notes.append(f"{where}: of {what}, {WrongUnit(own, unit, count, total, one.value)}")
    return notes


def record_notes(
    timestamps_ms: Mapping[TopicPartition, Int64Array], what: str, *, now_ms: int
) -> list[str]:
    """Return notes about timestamps of records that are not in milliseconds, as Kafka's are."""
    notes = unit_notes(timestamps_ms, TimeUnit.MILLISECONDS, what, now_ms=now_ms)
    return [f"{note}. {RECORD_CURE}" for note in notes]


def _time(value: int, unit: TimeUnit) -> str:
    text = time_text(value * 1000 // unit)
    return "after the year 9999" if text.startswith("@") else text
