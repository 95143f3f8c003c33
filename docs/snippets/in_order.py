"""Read the last full hour in order, and key by key: python in_order.py BOOTSTRAP TOPIC."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

import pyarrow as pa

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.spark import map_by_key, read_output, read_window, write_window
from kafka_ordered_ops.spark.keyed import KeyGroup
from kafka_ordered_ops.spark.session import local_session

bootstrap, topic = sys.argv[1:3]
spark = local_session("orders")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
window = Window(topic, cutoff=hour, starting_offsets="earliest")
window_id = f"{hour:%Y-%m-%dT%H}"


# [start count]
def count(groups: Iterator[KeyGroup]) -> Iterator[pa.RecordBatch]:
    """Count the records of each key, and find the longest pause between two of them."""
    for key, batches in groups:
        records, pause, times = 0, 0, []
        for batch in batches:  # only of this key, in order
            # Compare with the last record of the previous batch.
            times = times[-1:] + batch.column("timestamp").cast(pa.int64()).to_pylist()
            pause = max([pause, *(after - before for before, after in pairwise(times))])
            records += batch.num_rows
        row = {"key": key, "records": records, "pause_us": pause}
        yield pa.RecordBatch.from_pylist([row])


# [end count]

with OrderedWindows(bootstrap, group_id=f"{topic}-in-order") as windows:
    plan = windows.plan(window, window_id)
    # [start order]
    orders = read_window(spark, plan, windows.settings, ordered=True)
    staged = write_window(orders, "out/orders", plan)  # as it is: not sorted again
    windows.commit(plan, staged)

    again = read_output(spark, "out/orders", [window_id])
    for row in again.select("timestamp", "key").take(3):  # the earliest ones
        print(row.timestamp, row.key)
    # [end order]

    # [start use]
    orders = read_window(spark, plan, windows.settings)
    pauses = map_by_key(orders, count, "key binary, records bigint, pause_us bigint")
    # [end use]
    print(pauses.count(), "keys")
spark.stop()
