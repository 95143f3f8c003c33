"""Run missing hours with one Spark job: python spark_backfill.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime, timedelta

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.spark import read_windows, write_windows
from kafka_ordered_ops.spark.session import local_session

bootstrap, topic = sys.argv[1:3]
spark = local_session("backfill")
now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
hour = timedelta(hours=1)
starts = [now - 3 * hour, now - 2 * hour, now - hour]
asked = [
    Window(topic, since=one, cutoff=one + hour, starting_offsets="earliest")
    for one in starts
]
names = [f"{one:%Y-%m-%dT%H}" for one in starts]

with OrderedWindows(bootstrap, group_id=f"{topic}-spark-backfill") as windows:
    # [start backfill]
    plans = windows.plan_many(asked, names)
    orders = read_windows(
        spark, plans, windows.settings
    )  # window_id names the window of each record
    staged = write_windows(orders, "out/orders-backfill", plans)
    plans = windows.commit_many(plans, staged)  # all or none
    # [end backfill]

for plan, output in zip(plans, staged, strict=True):
    print(plan.window_id, plan.status, output.facts["records"])
spark.stop()
