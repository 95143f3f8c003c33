"""The demo's script as data: its windows, when each is planned, and what happens to it.

This module and the source alone determine the window of every flight. The output is checked against this oracle,
which uses neither Kafka nor the rest of this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from kafka_ordered_ops.cli.demo.data import Flights, Int64Array
from kafka_ordered_ops.core.times import time_ms

TOPIC: Final = "departures"
PARTITIONS: Final = 6
GROUP: Final = "new-york-departures"

#: A window is planned this long after its cutoff: late enough for most delayed flights of a usual evening, and early
#: enough that some are missing and become late records of the next window.
PLANNED_AFTER: Final = timedelta(minutes=30)

#: The last window waits for all flights: the longest delay of the year is 1,301 minutes.
LAST_PLANNED_AFTER: Final = timedelta(days=1)

BLIZZARD_START: Final = datetime(2013, 2, 4, tzinfo=UTC)
BLIZZARD_DAYS: Final = 7
YEAR_END: Final = datetime(2014, 1, 2, tzinfo=UTC)

BoolArray = npt.NDArray[np.bool_]


class Twist(StrEnum):
    """A special treatment of a window."""

    NONE = ""
    #: A first attempt is killed (SIGKILL) while it writes; the next call resumes its plan.
    KILLED = "killed, retried"
    #: It is run again after it is published.
    TWICE = "run twice"


@dataclass(frozen=True, slots=True)
class Step:
    """One window, and the time of its planning."""

    window_id: str
    cutoff: datetime
    #: Flights that left before this moment are in the topic by then.
    planned_at: datetime
    twist: Twist = Twist.NONE

    @property
    def cutoff_ms(self) -> int:
        """The cutoff in milliseconds since the epoch."""
        return time_ms(self.cutoff, what="cutoff")

    @property
    def planned_at_ms(self) -> int:
        """The time of planning in milliseconds since the epoch."""
        return time_ms(self.planned_at, what="planning time")


@dataclass(frozen=True, slots=True)
class Story:
    """The windows in the order of their runs; cutoffs rise."""

    steps: tuple[Step, ...]

    @property
    def ids(self) -> list[str]:
        """The windows' ids."""
        return [step.window_id for step in self.steps]

    def reached(self, flights: Flights) -> Flights:
        """Return the flights of the story: those that some window takes."""
        return flights.where(self.window_of(flights) < len(self.steps))

    def produced_up_to(self, flights: Flights) -> list[int]:
        """Return for each step the number of flights that are in the topic when it is planned."""
        ends = np.searchsorted(flights.departed_ms, self._planned_at_ms, side="left")
        return [int(end) for end in ends]

    def step_of(self, flights: Flights) -> Int64Array:
        """Return for each flight the first step whose planning finds it in the topic."""
        steps: Int64Array = np.searchsorted(self._planned_at_ms, flights.departed_ms, side="right")
        return steps

    def window_of(self, flights: Flights) -> Int64Array:
        """Return for each flight the index of its window; `len(steps)` if it has none.

        It is the first one planned after the flight left, and with a cutoff above the scheduled time.
        """
        first_above = np.searchsorted(self._cutoffs_ms, flights.scheduled_ms, side="right")
        windows: Int64Array = np.maximum(self.step_of(flights), first_above)
        return windows

    def late_of(self, flights: Flights) -> BoolArray:
        """Return for each flight whether it left after the window of its scheduled time was planned."""
        first_above = np.searchsorted(self._cutoffs_ms, flights.scheduled_ms, side="right")
        late: BoolArray = self.step_of(flights) > first_above
        return late

    @property
    def _cutoffs_ms(self) -> Int64Array:
        return np.array([step.cutoff_ms for step in self.steps], dtype=np.int64)

    @property
    def _planned_at_ms(self) -> Int64Array:
        return np.array([step.planned_at_ms for step in self.steps], dtype=np.int64)


def story(end: datetime = YEAR_END) -> Story:
    """Return the story: a catch-up window, the seven days of the February blizzard, and the rest up to `end`."""
    # Nemo reached New York on the 8th and closed its airports until the 9th.
    twists = {8: Twist.KILLED, 9: Twist.TWICE}
    steps = [_step("catch-up", BLIZZARD_START)]
    for n in range(BLIZZARD_DAYS):
        day = BLIZZARD_START + timedelta(days=n)
        steps.append(
            _step(f"{day:%Y-%m-%d}", day + timedelta(days=1), twists.get(day.day, Twist.NONE))
        )
    steps.append(Step("rest", end, end + LAST_PLANNED_AFTER))
    return Story(tuple(steps))


def _step(window_id: str, cutoff: datetime, twist: Twist = Twist.NONE) -> Step:
    return Step(window_id, cutoff, cutoff + PLANNED_AFTER, twist)
