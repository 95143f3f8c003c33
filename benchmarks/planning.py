"""Planning and committing without a job: over partitions, and over what the ledger holds already.

A group works through the hours of a topic, one window a round, as a schedule would. *Warm* is a process that
stays; *cold* is a process that is started for the round, imports the package, plans, commits and ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from benchmarks.backlog import DAY_START
from benchmarks.values import Outcome, Place, Work

_HOUR: Final = timedelta(hours=1)
_COLD_TIMEOUT_S: Final = 900.0


@dataclass(frozen=True)
class PlanAndCommit:
    """One hour's window of a group: planned and committed."""

    topic: str
    group_id: str
    #: Whether a new process does it.
    cold: bool

    def start(self, place: Place) -> Work:
        """Connects, when warm."""
        return self._cold(place) if self.cold else self._warm(place)

    def _warm(self, place: Place) -> Work:
        from kafka_ordered_ops import OrderedWindows

        windows = OrderedWindows({"bootstrap.servers": place.bootstrap}, self.group_id)

        def run(round_: int) -> Outcome:
            return plan_and_commit(windows, self.topic, hour_of(round_, cold=False))

        return Work(run)

    def _cold(self, place: Place) -> Work:
        def run(round_: int) -> Outcome:
            started = time.perf_counter()
            hour = hour_of(round_, cold=True)
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    __name__,
                    place.bootstrap,
                    self.group_id,
                    self.topic,
                    str(hour),
                ],
                stdout=subprocess.PIPE,
                text=True,
                timeout=_COLD_TIMEOUT_S,
                check=True,
            )
            seconds = time.perf_counter() - started
            told: dict[str, Any] = json.loads(done.stdout)
            return Outcome(seconds=seconds, **told)

        return Work(run)


def hour_of(round_: int, *, cold: bool) -> int:
    """Which hour a round takes: the cold and the warm process of a group take turns."""
    return 2 * round_ + (not cold)


def plan_and_commit(windows: Any, topic: str, hour: int) -> Outcome:
    """The window of one hour."""
    from kafka_ordered_ops import Earliest, Window

    since: datetime = DAY_START + hour * _HOUR
    window = Window([topic], cutoff=since + _HOUR, since=since, starting_offsets=Earliest())
    started = time.perf_counter()
    plan = windows.plan(window, f"hour-{hour:02}")
    planned = time.perf_counter()
    windows.commit(plan)
    committed = time.perf_counter()
    return Outcome(
        seconds=committed - started,
        records=plan.offsets,
        beyond_s={"plan": planned - started, "commit": committed - planned},
    )


def main() -> None:
    """The cold process: prints what it did, as JSON."""
    bootstrap, group_id, topic, hour = sys.argv[1:]
    started = time.perf_counter()
    from benchmarks.usage import peak_memory_bytes
    from kafka_ordered_ops import OrderedWindows

    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        opened = time.perf_counter()
        done = plan_and_commit(windows, topic, int(hour))
    told = {
        "records": done.records,
        # Importing and connecting belong to the first thing that is asked for.
        "beyond_s": {**done.beyond_s, "plan": done.beyond_s["plan"] + opened - started},
        "memory_bytes": peak_memory_bytes(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
