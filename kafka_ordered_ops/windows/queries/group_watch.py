"""Query a group and its logs for a host that waits for windows. Nothing is planned or changed."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.liveness.liveness import Liveness
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.ports import open_ledger, open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.windows.queries.live import check_live

#: A host's sensor has a minute for all of its checks: one request may take a part of it.
LOOK_TIMEOUT_S: Final = 10.0


class GroupWatch:
    """Which windows a group must still deliver, and whether their partitions are live.

    Args:
        settings: how to reach the cluster.
        group_id: the consumer group; not joined.
        ledger_topic: the topic that stores its plans and progress; None means the default topic. It is not created.
        timeout_s: time limit for each call's requests, and for a read whose position does not move.
        clock: returns the time in seconds since the epoch; for tests.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        *,
        ledger_topic: str | None = None,
        timeout_s: float = LOOK_TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._group = group_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._lookup = open_lookup(settings, timeout_s=timeout_s)
        self._ledger = open_ledger(
            settings, self._lookup, topic=ledger_topic or LEDGER_TOPIC, timeout_s=timeout_s
        )

    def __enter__(self) -> GroupWatch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._ledger.close()
        self._lookup.close()

    def undelivered(self, windows: Mapping[str, TimeRange]) -> dict[str, int]:
        """Return the windows that are not committed, by id, with the number of attempts of rewound ones.

        The times of a window also count as delivered if other windows have committed them, or if the ledger has forgotten
        the window.

        Raises:
            BrokerError, LedgerError: the cluster refuses a request, or cannot be reached.
        """
        with calls.call(f"group {self._group}: finding undelivered windows", self._timeout_s):
            return self._undelivered(windows)

    def _undelivered(self, windows: Mapping[str, TimeRange]) -> dict[str, int]:
        # The group's state decides nearly all windows, and most partitions cover the same times. For the other windows,
        # plans are read: a partition of a topic that is no longer requested covers no new times.
        state = self._ledger.read(self._group).state
        covered = {partition.late.times for _, partition in state or ()}
        left = [
            name
            for name, times in windows.items()
            if not covered or not all(_holds(frozen, times) for frozen in covered)
        ]
        if not left:
            return {}
        records = self._ledger.read(self._group, left).windows
        attempts = {}
        for name in left:
            if (record := records.get(name)) is None:
                attempts[name] = 0
            elif not record.status.is_done:
                is_rewound = record.status is WindowStatus.REWOUND
                attempts[name] = record.plan.attempt if is_rewound else 0
        return attempts

    def live(
        self, window: Window, *, grace: timedelta | None = None, before: Liveness | None = None
    ) -> Liveness:
        """Return the answer of `OrderedWindows.live`, without the ledger's facts.

        Raises:
            ConfigError: a negative grace.
            UnknownTopicError, BrokerError, ReadError: the cluster refuses a request, or cannot be reached or read.
        """
        with calls.call(f"group {self._group}: looking at partitions", self._timeout_s):
            return check_live(
                self._lookup,
                self._settings,
                self._group,
                window,
                grace=grace,
                now_ms=int(self._clock() * 1000),
                before=before,
                stall_timeout_s=self._timeout_s,
            )


def _holds(frozen: Sequence[TimeRange], times: TimeRange) -> bool:
    """Return whether one of several sorted, disjoint ranges contains all of these times."""
    at = bisect_right(frozen, times.since_ms, key=lambda range_: range_.since_ms)
    return at > 0 and frozen[at - 1].holds(times)
