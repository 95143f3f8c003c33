"""List offsets before a time, and read and write offset maps: python offset_maps.py BOOTSTRAP TOPIC."""

import sys

from kafka_ordered_ops import offsets_before
from kafka_ordered_ops.core.offset_map.parallel_consumer import (
    encode_parallel_consumer_map,
)
from kafka_ordered_ops.core.offset_map.reading import (
    DecodePolicy,
    read_committed_progress,
)
from kafka_ordered_ops.core.offset_set import OffsetSet

bootstrap, topic = sys.argv[1:3]

# [start maps]
for partition in offsets_before(
    bootstrap, topic, "latest", max_offsets=24, every="PT1H"
):
    print(partition.tp, [(at.time_ms, at.offset) for at in partition.offsets])

# Offsets 101 to 110 and 120 are done; 100 is the committed offset.
metadata = encode_parallel_consumer_map(100, OffsetSet.of((101, 111), (120, 121)))
progress = read_committed_progress(
    100, metadata, end=None, policy=DecodePolicy.FAIL, where="group billing"
)
print(metadata, progress.encoding, progress.done.ranges)
# [end maps]
