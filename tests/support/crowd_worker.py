"""One of a crowd that plans and commits windows of one group: ``python -m tests.support.crowd_worker``.

Arguments: bootstrap, group, topic, first time in ms, last time in ms, seconds to go on, bound in seconds,
name. Each window has a random cutoff and an id of its own. A change of the group that does not get through
within the bound ends the process with an error. Every acknowledged step is printed as one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from random import Random

from kafka_ordered_ops import Earliest, Window
from kafka_ordered_ops.windows import OrderedWindows

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def main() -> None:
    """Plans and commits until the time is over."""
    bootstrap, group_id, topic, low, high, seconds, bound, name = sys.argv[1:]
    random, over = Random(name), time.monotonic() + float(seconds)
    number = 0
    with OrderedWindows(
        {"bootstrap.servers": bootstrap}, group_id, timeout_s=float(bound)
    ) as windows:
        while time.monotonic() < over:
            number += 1
            cutoff = _EPOCH + timedelta(milliseconds=random.randrange(int(low), int(high)))
            window = Window([topic], cutoff, starting_offsets=Earliest())
            started = time.monotonic()
            plan = windows.plan(window, f"{name}-{number}")
            planned = time.monotonic()
            windows.commit(plan)
            told = {
                "window_id": plan.window_id,
                "offsets": plan.offsets,
                "plan_s": round(planned - started, 3),
                "commit_s": round(time.monotonic() - planned, 3),
            }
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
