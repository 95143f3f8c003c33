"""Quiet reads: check whether their topics still exist, and detect stalls."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Final

from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.kafka.read.explain import check_led, check_topics, stalled
from kafka_ordered_ops.kafka.read.progress import Progress
from kafka_ordered_ops.kafka.settings import ClientSettings

#: If no position of a topic moves for this long, a request checks whether the topic still exists.
QUIET_S: Final = 5.0
#: The interval of further checks: an endless read may be quiet for hours, and each check opens a connection.
STILL_QUIET_S: Final = 60.0
#: The limit of the check: an unavailable cluster must not block a turn for long.
LOOK_TIMEOUT_S: Final = 2.0
#: The interval between two looks for topics to check.
_EVERY_S: Final = 0.5
#: The limit of the requests that explain a failed read.
EXPLAIN_TIMEOUT_S: Final = 10.0


class Quiet:
    """Tracks how long no position has moved in a read, by partition, by topic and overall."""

    def __init__(
        self,
        settings: ClientSettings,
        isolation: Isolation,
        topics: Iterable[str],
        *,
        stall_timeout_s: float,
    ) -> None:
        self._settings = settings
        self._isolation = isolation
        self._stall_timeout_s = stall_timeout_s
        self._moved_at = self._next_look = time.monotonic()
        #: The time of the next check, by topic.
        self._look_at = dict.fromkeys(topics, self._moved_at + QUIET_S)
        #: Seconds of reading, without those in which the owner was busy, and when they were counted.
        self._read_s, self._counted_at = 0.0, self._moved_at
        #: Positions of partitions, and since when, in seconds of reading.
        self._positions: dict[TopicPartition, tuple[int, float]] = {}

    def begin(self) -> None:
        """Reset the stall time: the owner was busy, which is not a stall."""
        self._moved_at = time.monotonic()

    def add(self, topic: str) -> None:
        """Track a topic whose partition is read from now on."""
        self._look_at[topic] = time.monotonic() + QUIET_S

    def moved(self, topics: Iterable[str]) -> None:
        """Record that positions in these topics have moved."""
        self._moved_at = time.monotonic()
        self._look_at.update(dict.fromkeys(topics, self._moved_at + QUIET_S))

    def look(self, topics: Iterable[str]) -> None:
        """Raise if a quiet topic is deleted, or if a right is missing."""
        if (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + _EVERY_S
        due = {topic for topic in topics if self._look_at[topic] <= now}
        if due:
            self.check(due)
            self._look_at.update(dict.fromkeys(due, time.monotonic() + STILL_QUIET_S))

    def check(self, topics: Collection[str]) -> None:
        """Raise now if topics are deleted, or if a right is missing."""
        check_topics(self._settings, topics, timeout_s=LOOK_TIMEOUT_S)

    def check_not_stalled(self, unfinished: Collection[Progress], throttled: str | None) -> None:
        """Raise `ReadTimeoutError`, or the error that explains it, if no position moved for the stall time.

        Also if one partition of a bounded read did not move for the stall time, and its leader does not answer, while others moved:
        a partition that only waits for its turn has a leader. `throttled` describes that a broker throttles the client, and for how long.
        """
        if unfinished and time.monotonic() - self._moved_at > self._stall_timeout_s:
            raise stalled(
                self._settings,
                unfinished,
                self._isolation,
                quiet_s=self._stall_timeout_s,
                throttled=throttled,
                timeout_s=EXPLAIN_TIMEOUT_S,
            )
        if not throttled:
            self._check_each(unfinished)

    def _check_each(self, unfinished: Collection[Progress]) -> None:
        """Raise `ReadTimeoutError` with the partitions that did not move, if the leader of one of them is away."""
        now = time.monotonic()
        if (passed_s := now - self._counted_at) < _EVERY_S:
            return
        self._counted_at = now
        self._read_s += min(passed_s, 2 * _EVERY_S)
        unmoved = []
        for progress in unfinished:
            position, since_s = self._positions.get(progress.tp, (None, 0.0))
            if position != progress.position:
                self._positions[progress.tp] = progress.position, self._read_s
            elif self._read_s - since_s > self._stall_timeout_s and progress.wanted.end < INT64_MAX:
                unmoved.append(progress)
        if unmoved:
            check_led(
                self._settings,
                unmoved,
                self._isolation,
                quiet_s=self._stall_timeout_s,
                timeout_s=EXPLAIN_TIMEOUT_S,
            )
            for progress in unmoved:
                self._positions[progress.tp] = progress.position, self._read_s
