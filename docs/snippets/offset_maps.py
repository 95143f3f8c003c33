"""List offsets before a time, and read and write offset maps: python offset_maps.py BOOTSTRAP TOPIC."""

import sys
import time

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_map.reading import DecodePolicy, read_committed_progress
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.windows.queries.offsets_before import offsets_before

bootstrap, topic = sys.argv[1:3]
now_ms = int(time.time() * 1000)

# [start maps]
hour_ms = 3_600_000
for one in offsets_before(
    ClientSettings.of(bootstrap), [topic], now_ms, every_ms=hour_ms, limit=24
):
    print(one.tp, [(at.time_ms, at.offset) for at in one.offsets])

# Offsets 101 to 110 and 120 are done; 100 is the committed offset.
metadata = encode_parallel_consumer_map(100, OffsetSet.of((101, 111), (120, 121)))
progress = read_committed_progress(
    100, metadata, end=None, policy=DecodePolicy.FAIL, where="group billing"
)
print(metadata, progress.encoding, progress.done.ranges)
# [end maps]
