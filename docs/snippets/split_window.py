"""Split a window among three tasks: python split_window.py BOOTSTRAP TOPIC."""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from kafka_ordered_ops import (
    OrderedWindows,
    StagedOutput,
    Window,
    WindowPlan,
    stage_window,
)

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
window = Window(topic, cutoff=hour, starting_offsets="earliest")
group_id = f"{topic}-split"

# [start split]
with OrderedWindows(bootstrap, group_id) as windows:
    plan = windows.plan(window, window_id=f"{hour:%Y-%m-%dT%H}")
    texts = [part.to_text() for part in windows.split(plan, 3)]


def task(text: str) -> None:
    """Run one of three parts on any machine; it needs only the text."""
    part = WindowPlan.from_text(text)
    with OrderedWindows(bootstrap, group_id) as windows:
        windows.report(part, stage_window(part, windows.settings, "out/orders-split"))


with ThreadPoolExecutor() as pool:
    list(pool.map(task, texts))

with OrderedWindows(bootstrap, group_id) as windows:
    record = windows.show(plan.window_id)  # written, once all parts have reported
    done = windows.commit(record.plan, StagedOutput.found(record.result))
# [end split]
print(done.window_id, done.status)
