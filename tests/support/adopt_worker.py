"""Dry runs of adopt while brokers are lost, in a process of their own: ``python -m tests.support.adopt_worker``.

Arguments: a file, bootstrap, group, topic, the end of each partition's log. Each answer and each look at the ends is
printed as one line; it ends once the file is there. An answer that is not exact ends it with an error.

librdkafka can abort the process that asks for a group's members while the coordinator's connection drops
(https://github.com/confluentinc/librdkafka/issues/4605), so the tests do not ask in theirs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kafka_ordered_ops import ClientSettings, KafkaOrderedOpsError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.windows import OrderedWindows


def main() -> None:
    """Ask until the file is there."""
    over, bootstrap, group_id, topic, *given = sys.argv[1:]
    ends = {TopicPartition(topic, partition): int(end) for partition, end in enumerate(given)}
    settings = {"bootstrap.servers": bootstrap}
    lookup = Lookup(ClientSettings.from_mapping(settings))
    while not Path(over).exists():
        with OrderedWindows(settings, group_id, timeout_s=20, lookup_timeout_s=10) as windows:
            try:
                moved = windows.adopt(dry_run=True).moved
                if moved:
                    sys.exit(f"moved: {moved}")
                print("answer", flush=True)
                for isolation in Isolation:
                    found = lookup.end_offsets(ends, isolation)
                    if found != ends:
                        sys.exit(f"{isolation}: {found} instead of {ends}")
                    print("look", flush=True)
            except KafkaOrderedOpsError as error:
                if not error.retriable:
                    raise


if __name__ == "__main__":
    main()
