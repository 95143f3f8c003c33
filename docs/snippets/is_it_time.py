"""Wait until all records before the cutoff are written, then plan: python is_it_time.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime, timedelta

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.core.liveness.liveness import Liveness
from kafka_ordered_ops.windows.queries.live import wait_live

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
window = Window(topic, cutoff=hour, starting_offsets="earliest")
group_id = f"{topic}-live"

# [start live]
with OrderedWindows(bootstrap, group_id) as windows:

    def look(before: Liveness | None = None) -> Liveness:
        """Check once; an earlier answer saves reading again."""
        return windows.live(window, grace=timedelta(minutes=5), before=before)

    answer = look()
    print(answer)  # for example: 4 of 4 partitions live
    for one in answer.partitions:
        print(one.tp, one.state, one.verdict)

    answer = wait_live(look, timeout_s=1_800)
    if answer.is_live:
        plan = windows.plan(window, window_id=f"{hour:%Y-%m-%dT%H}")
# [end live]
