"""Write the last full hour with columns that are inferred: python infer_columns.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.decoding import Json

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
windows = OrderedWindows(bootstrap, group_id=f"{topic}-inferred")

# [start infer]
orders = Window(
    topic,
    cutoff=hour,
    starting_offsets="earliest",
    values=Json(infer="evolve"),
    flatten=True,
)
result = windows.run(orders, "lake/inferred")
print(*result.notes, sep="\n")
# [end infer]
