"""Run missing hours in one pass over the log: python backfill.py BOOTSTRAP TOPIC."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from kafka_ordered_ops import (
    OrderedWindows,
    StagedOutput,
    Window,
    WindowPlan,
    stage_windows,
)

bootstrap, topic = sys.argv[1:3]
now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
hour = timedelta(hours=1)

# [start backfill]
starts = [now - 3 * hour, now - 2 * hour, now - hour]
asked = [
    Window(topic, since=one, cutoff=one + hour, starting_offsets="earliest")
    for one in starts
]
names = [f"{one:%Y-%m-%dT%H}" for one in starts]

with OrderedWindows(bootstrap, group_id=f"{topic}-backfill") as windows:

    def write(plans: Sequence[WindowPlan]) -> Sequence[StagedOutput]:
        """Run the job for the windows that still need it."""
        return stage_windows(plans, windows.settings, "out/orders-backfill")

    plans = windows.plan_many(asked, names)  # one scan, one transaction
    for one in windows.deliver_many(plans, write, StagedOutput.found):
        print(
            one.plan.window_id, one.plan.status, one.record.result["facts"]["records"]
        )
# [end backfill]
