"""A process that plans and commits windows until it is killed: ``python -m tests.support.window_worker``.

Arguments: bootstrap, group, topic, first time in ms, last time in ms, number of windows, name. With the
name ``shared`` every worker works on the same windows; otherwise on its own. Every acknowledged commit is
printed as one JSON line.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

from kafka_ordered_ops import Earliest, Window, WindowSupersededError
from kafka_ordered_ops.windows import OrderedWindows

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def main() -> None:
    """Goes through the windows in order, again and again for those that are not committed."""
    bootstrap, group_id, topic, low, high, count, name = sys.argv[1:]
    step_ms = (int(high) - int(low)) // int(count)
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        for number in range(1, int(count) + 1):
            cutoff = _EPOCH + timedelta(milliseconds=int(low) + number * step_ms)
            window = Window([topic], cutoff, starting_offsets=Earliest())
            window_id = f"{name}-{number}"
            try:
                plan = windows.plan(window, window_id)
                if plan.status.is_open:
                    windows.commit(plan)
            except WindowSupersededError:
                # The other worker took this one over: it is the other's to commit.
                continue
            print(json.dumps({"window_id": window_id, "claim_id": plan.claim_id}), flush=True)


if __name__ == "__main__":
    main()
