"""``offsets show`` as a person meets it: a new process, from its start to its end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Final

from benchmarks.backlog import DAY_START, make_quiet_topic
from benchmarks.values import Comparison, Contender, Outcome, Place, Work

OFFSETS_SHOW: Final = "offsets-show"

#: Two an hour, for 24 hours.
_RECORDS: Final = 48
_TIMEOUT_S: Final = 300.0


class Progress(StrEnum):
    """Whose group is shown."""

    WINDOWS = "windows"
    CONSUMER = "a consumer"
    PARALLEL_CONSUMER = "Parallel Consumer"


class ShowOffsets:
    """Shows a group with so many partitions, as JSON: all of them."""

    def __init__(self, progress: Progress, partitions: int) -> None:
        self._progress, self._partitions = progress, partitions

    def start(self, place: Place) -> Work:
        """Nothing to set up: every process connects."""
        group_id = _group(self._progress, self._partitions)
        words = ["-m", "kafka_ordered_ops.cli", "offsets", "show", "-b", place.bootstrap]

        def run(_round: int) -> Outcome:
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, *words, "-g", group_id, "--json"],
                stdout=subprocess.PIPE,
                text=True,
                timeout=_TIMEOUT_S,
                check=True,
            )
            seconds = time.perf_counter() - started
            return Outcome(seconds=seconds, records=len(json.loads(done.stdout)["partitions"]))

        return Work(run)


def offsets_show_comparison(partitions: Sequence[int]) -> Comparison:
    """Every kind of group over numbers of partitions."""
    contenders = [
        Contender(progress.value, count, ShowOffsets(progress, count))
        for count in partitions
        for progress in Progress
    ]
    return Comparison(OFFSETS_SHOW, tuple(contenders), partial(_prepare, tuple(partitions)))


def _prepare(partitions: Sequence[int], place: Place) -> None:
    from tests.support.wire import commit_offsets

    for count in partitions:
        topic = f"quiet-{count}"
        make_quiet_topic(place.bootstrap, topic, partitions=count, records_each=_RECORDS)
        _run_window(place.bootstrap, _group(Progress.WINDOWS, count), topic)
        for progress in (Progress.CONSUMER, Progress.PARALLEL_CONSUMER):
            metadata = None if progress is Progress.CONSUMER else _map_of_every_second()
            offsets = dict.fromkeys(range(count), (_RECORDS // 2, metadata))
            commit_offsets(place.bootstrap, _group(progress, count), topic, offsets)


def _run_window(bootstrap: str, group_id: str, topic: str) -> None:
    """One hour in the middle is committed, and the next one planned: every partition has a hole and a claim."""
    from kafka_ordered_ops import Earliest, OrderedWindows, Window

    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        if windows.state() is not None:
            return
        for hour in (12, 14):
            since = DAY_START + timedelta(hours=hour)
            cutoff = since + timedelta(hours=1)
            plan = windows.plan(Window([topic], cutoff, since=since, starting_offsets=Earliest()))
            if hour == 12:
                windows.commit(plan)


def _map_of_every_second() -> bytes:
    from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
    from kafka_ordered_ops.core.offset_set import OffsetSet

    base = _RECORDS // 2
    done = OffsetSet.from_ranges((offset, offset + 1) for offset in range(base + 1, _RECORDS, 2))
    return encode_parallel_consumer_map(base, done)


def _group(progress: Progress, partitions: int) -> str:
    return f"bench-show-{progress.name.lower()}-{partitions}"
