"""Write the last full hour with typed columns: python decode_values.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

import pyarrow as pa

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.decoding import Json, decode

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
windows = OrderedWindows(bootstrap, group_id=f"{topic}-typed")

# [start decode]
order = Json(pa.schema([("order", pa.int64()), ("amount", pa.int32())]))


def write_typed(window):
    window.write(decode(window, values=order, flatten=True))


question = Window(topic, cutoff=hour, starting_offsets="earliest")
result = windows.run(question, "lake/typed", job=write_typed)
# [end decode]

table = result.to_arrow()
print(table.num_rows, "orders, columns", ", ".join(table.schema.names[-5:]))
