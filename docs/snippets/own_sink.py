"""Write a window to your own sink, at least once: python own_sink.py BOOTSTRAP TOPIC."""

import sqlite3
import sys
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.spark.session import local_session

bootstrap, topic = sys.argv[1:3]
spark = local_session("orders")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
question = Window(topic, cutoff=hour, starting_offsets="earliest")
database = sqlite3.connect(":memory:")
database.execute("create table hours (window_id text primary key, orders integer)")
replace = "insert or replace into hours values (?, ?)"

# [start window]
windows = OrderedWindows(bootstrap, group_id=f"{topic}-own")

# Commits if the block does not raise; an exception leaves the window planned.
with windows, windows.open(question, spark=spark) as window:
    count = window.read().count()
    with database:  # replaces rows by window id, so another attempt changes nothing
        database.execute(replace, (window.window_id, count))
# [end window]

print(database.execute("select * from hours").fetchall())
spark.stop()
