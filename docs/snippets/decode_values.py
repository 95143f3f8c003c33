"""Write the last full hour with typed columns: python decode_values.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
windows = OrderedWindows(bootstrap, group_id=f"{topic}-typed")

orders = Window(
    topic,
    cutoff=hour,
    starting_offsets="earliest",
    values="json:order int64, amount int32",
    flatten=True,
)
result = windows.run(orders, "lake/typed")

table = result.to_arrow()
print(table.num_rows, "orders, columns", ", ".join(table.schema.names[-5:]))
