"""Run the last full hour with a Spark application: python submit_window.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from kafka_ordered_ops import Application, OrderedWindows, Window
from kafka_ordered_ops.spark import SparkSubmit

bootstrap, topic = sys.argv[1:3]
application = Path(__file__).with_name("order_amounts.py")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
question = Window(topic, cutoff=hour, starting_offsets="earliest")

# [start window]
how = SparkSubmit(master="local[2]", conf={"spark.driver.memory": "1g"})

with OrderedWindows(bootstrap, group_id=f"{topic}-submit") as windows:
    result = windows.run(
        question, "out/by-job", job=Application(application, submit=how)
    )
# [end window]

print(result)
