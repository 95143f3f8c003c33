"""A task that may be retried, cleared or killed: python only_what_is_left.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

from kafka_ordered_ops import (
    Earliest,
    OrderedWindows,
    StagedOutput,
    Window,
    WindowPlan,
    stage_window,
)

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
window = Window([topic], cutoff=hour, starting_offsets=Earliest())

# [start window]
with OrderedWindows({"bootstrap.servers": bootstrap}, group_id=f"{topic}-again") as windows:

    def write(plan: WindowPlan) -> StagedOutput:
        """The job."""
        return stage_window(plan, windows.settings, "out/orders-again")

    for _ in range(2):  # the second time stands for a retry
        plan = windows.plan(window, window_id=f"{hour:%Y-%m-%dT%H}")
        delivery = windows.deliver(plan, write, StagedOutput.found)
        print(delivery.plan.status, "by this call" if delivery.ran else "already")
# [end window]
