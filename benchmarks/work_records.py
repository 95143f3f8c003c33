"""The records of the comparison ``processing``: how long each is worked on, and what became of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.backlog import DAY_START, make_topic_of
from benchmarks.values import Outcome
from kafka_ordered_ops.core.processing.scheduling import Ordering
from kafka_ordered_ops.core.times import time_ms

#: Of every contender.
CONCURRENCY: Final = 16
#: The longest work of a record. Whole milliseconds: neither `Thread.sleep` nor asyncio's timers know less.
WORK_MS_MAX: Final = 5

Int64Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WorkTopic:
    """A topic of one partition, with the same number of records for each key, in a random order.

    A record's value is how many milliseconds it is worked on.
    """

    records: int
    keys: int

    @property
    def name(self) -> str:
        """What the topic is called."""
        return f"work-{self.records}-{self.keys}"

    @cached_property
    def key_numbers(self) -> list[int]:
        """The key of each record, by offset."""
        numbers = [n % self.keys for n in range(self.records)]
        random.Random(self.keys).shuffle(numbers)
        return numbers

    @cached_property
    def work_ms(self) -> list[int]:
        """The work of each record, by offset; the same for every number of keys."""
        return random.Random(self.records).choices(range(WORK_MS_MAX + 1), k=self.records)

    def make(self, bootstrap: str) -> None:
        """Makes and fills the topic, unless it is there."""
        start_ms = time_ms(DAY_START, what="day")
        make_topic_of(
            bootstrap,
            self.name,
            (
                (self.name, b"%d" % key, b"%d" % ms, start_ms + n)
                for n, (key, ms) in enumerate(zip(self.key_numbers, self.work_ms, strict=True))
            ),
        )

    def outcome(
        self, ordering: Ordering, began_ns: Sequence[int], ended_ns: Sequence[int]
    ) -> Outcome:
        """What a run took, from the first record's start to the last one's end; both are given by offset.

        The ideal is of how long the function's calls took, as they were measured: a sleep takes longer than asked for.
        """
        began, ended = np.asarray(began_ns, np.int64), np.asarray(ended_ns, np.int64)
        at_once = CONCURRENCY
        if ordering is not Ordering.UNORDERED:
            at_once = min(at_once, 1 if ordering is Ordering.PARTITION else self.keys)
        return Outcome(
            seconds=float(ended.max() - began.min()) / 1e9,
            records=int(np.count_nonzero(ended)),
            beyond_s={"ideal": float((ended - began).sum()) / 1e9 / at_once},
            order_breaks=self._order_breaks(ordering, began, ended),
        )

    def _order_breaks(self, ordering: Ordering, began: Int64Array, ended: Int64Array) -> int | None:
        """How many records began before the one ahead of them ended."""
        if ordering is Ordering.UNORDERED:
            return None
        keys = np.asarray(self.key_numbers if ordering is Ordering.KEY else [0] * self.records)
        by_key: Any = np.argsort(keys, kind="stable")
        same = keys[by_key][1:] == keys[by_key][:-1]
        return int(np.count_nonzero(same & (began[by_key][1:] < ended[by_key][:-1])))
