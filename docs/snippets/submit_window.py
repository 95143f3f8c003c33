"""The hour that has passed, by an application of its own: python submit_window.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from kafka_ordered_ops import Earliest, OrderedWindows, StagedOutput, Window
from kafka_ordered_ops.spark import SparkSubmit, submit

bootstrap, topic = sys.argv[1:3]
application = Path(__file__).with_name("order_amounts.py")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
window = Window([topic], cutoff=hour, starting_offsets=Earliest())

# [start window]
how = SparkSubmit(master="local[2]", conf={"spark.driver.memory": "1g"})

with OrderedWindows({"bootstrap.servers": bootstrap}, group_id=f"{topic}-submit") as windows:
    plan = windows.plan(window, window_id=f"{hour:%Y-%m-%dT%H}")
    delivery = windows.deliver(
        plan,
        lambda plan: submit(plan, application, windows.settings, "out/by-job", how=how),
        StagedOutput.found,
    )
# [end window]

print(delivery.plan.window_id, delivery.plan.status, delivery.record.result)
