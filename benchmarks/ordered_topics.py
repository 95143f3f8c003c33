"""The topics of ordered reads: the same records and times, in a log that is more or less out of order.

No two records have the same time, so that a reader that sorts by time alone makes no order breaks by ties.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Final

import numpy as np

from benchmarks.backlog import DAY, DAY_START, DISORDER_RECORDS, PARTITIONS, make_topic, shares
from kafka_ordered_ops.core.times import time_ms

_DAY_MS: Final = DAY // timedelta(milliseconds=1)


class Arrangement(StrEnum):
    """How times run through the log of each partition."""

    #: They rise.
    IN_ORDER = "in order"
    #: 500 records at a time change places among one another.
    SHUFFLED = "shuffled"
    #: They fall, from the first record to the last.
    REVERSED = "reversed"


def ordered_topic(arrangement: Arrangement, records: int) -> str:
    """The name of the topic with so many records."""
    return f"{arrangement.replace(' ', '-')}-{records}"


def make_ordered_topic(bootstrap: str, arrangement: Arrangement, records: int) -> None:
    """Makes and fills the topic, unless it is there: a day of records, one partition's turn after the other's."""
    stamps_of = partial(arranged_stamps, arrangement, shares(records, PARTITIONS))
    make_topic(
        bootstrap, ordered_topic(arrangement, records), stamps_of, records, partitions=PARTITIONS
    )


def arranged_stamps(arrangement: Arrangement, counts: list[int], partition: int) -> list[int]:
    """The timestamps of a partition, in the order of its log; `counts` has the records of each."""
    count = counts[partition]
    turns = np.arange(count, dtype=np.int64) * len(counts) + partition
    stamps = time_ms(DAY_START, what="day") + turns * _DAY_MS // (max(counts) * len(counts))
    if arrangement is Arrangement.SHUFFLED:
        random = np.random.default_rng(partition)
        for first in range(0, count, DISORDER_RECORDS):
            random.shuffle(stamps[first : first + DISORDER_RECORDS])
    elif arrangement is Arrangement.REVERSED:
        stamps = stamps[::-1]
    found: list[int] = stamps.tolist()
    return found
