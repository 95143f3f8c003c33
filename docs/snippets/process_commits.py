"""Wait for each commit, and look at what failed: python process_commits.py BOOTSTRAP TOPIC."""

import sys

from kafka_ordered_ops.processing import Processor

bootstrap, topic = sys.argv[1:3]


def charge(record):
    """Charge one order."""
    return record.offset


# [start commits]
processor = Processor(bootstrap, max_concurrency=64)
results = processor.subscribe(
    topic, charge, group_id=f"{topic}-sync", commit="periodic_sync"
)
for count, _ in enumerate(results, start=1):
    if count % 1_000 == 0:
        [state] = processor.state()
        print(
            f"{count:,} done, {state.held:,} held, commit error: {state.commit_error}"
        )
    # [end commits]
    if count == 10_000:
        processor.stop()
