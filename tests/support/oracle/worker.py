"""One of several that plan, read, commit and abandon windows of a group: ``python -m tests.support.oracle.worker``.

One argument, a JSON object: `bootstrap`, `group`, `topics`, `in_intervals`, `seed`, `low_ms`, `high_ms`, `seconds` to
go on, and `journal`, the file that its calls are written to. Some windows are its own, some are everybody's. It may be
killed at any moment; now and then it forks, and the child does the same for a while with a service of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from kafka_ordered_ops import Earliest, KafkaOrderedOpsError, Window, WindowPlan
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.oracle.journal import Recorder
from tests.support.oracle.reading import quick_rows

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Windows that everybody works on.
SHARED: Final = 12


def main() -> None:
    """Goes on until the time is over."""
    told = json.loads(sys.argv[1])
    work(told, told["seconds"])


def work(told: dict[str, Any], seconds: float) -> None:
    """Takes step after step; the journal keeps what each call came to."""
    random = Random(told["seed"])
    over = time.monotonic() + seconds
    with (
        Path(told["journal"]).open("a") as lines,
        OrderedWindows({"bootstrap.servers": told["bootstrap"]}, told["group"]) as service,
    ):
        recorder = Recorder(service, Path(told["journal"]).stem, lines=lines)
        number = 0
        while time.monotonic() < over:
            number += 1
            # The journal has it, and the verdict says whether it may be.
            with suppress(KafkaOrderedOpsError):
                _step(recorder, random, told, number)
            if random.random() < 0.03 and "is_child" not in told:
                _fork(told, number)


def _step(recorder: Recorder, random: Random, told: dict[str, Any], number: int) -> None:
    plans = _planned(recorder, random, told, number)
    for plan in plans:
        if plan.content is not PlanContent.COVERED and random.random() < 0.5:
            recorder.delivered(plan, quick_rows(plan, recorder.service.settings))
    chance = random.random()
    still_open = [plan for plan in plans if plan.status.is_open]
    if chance < 0.15 and still_open:
        recorder.abandon(random.choice(still_open))
    elif chance < 0.25 and still_open:
        for part in recorder.split(still_open[0], 2):
            recorder.report(part, {"by": recorder.actor})
        recorder.commit(still_open[0])
    elif chance < 0.85:
        recorder.commit(*plans)


def _planned(
    recorder: Recorder, random: Random, told: dict[str, Any], number: int
) -> list[WindowPlan]:
    low, high = told["low_ms"], told["high_ms"]
    if random.random() < 0.4:
        which = random.randrange(SHARED)
        edges = [low + (high - low) * n // SHARED for n in (which, which + 1)]
        return [recorder.plan(_window(told, *edges), f"shared {which}")]
    count = random.choice([1, 1, 3])
    cuts = sorted(random.sample(range(low, high), count + 1))
    windows = [_window(told, *cuts[n : n + 2]) for n in range(count)]
    names = [f"{recorder.actor} {number} {n}" for n in range(count)]
    return recorder.plan_many(windows, names)


def _window(told: dict[str, Any], since_ms: int, cutoff_ms: int) -> Window:
    out_of_orderness_ms = told["out_of_orderness_ms"]
    return Window(
        told["topics"],
        _EPOCH + timedelta(milliseconds=cutoff_ms),
        since=_EPOCH + timedelta(milliseconds=since_ms) if told["in_intervals"] else None,
        max_out_of_orderness=None
        if out_of_orderness_ms is None
        else timedelta(milliseconds=out_of_orderness_ms),
        starting_offsets=Earliest(),
    )


def _fork(told: dict[str, Any], number: int) -> None:
    """A child with clients of its own; it never touches its parent's."""
    if os.fork():
        return
    journal = f"{told['journal'].removesuffix('.jsonl')}-fork{number}.jsonl"
    code = 1
    try:
        work({**told, "journal": journal, "seed": f"{told['seed']}/{number}", "is_child": True}, 3)
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
