"""A process that opens connections and forks; its children try to use, close and give up what is their parent's."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

from kafka_ordered_ops.core.bounds import Earliest
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets import OffsetsReader
from kafka_ordered_ops.kafka.reader import RangeReader
from kafka_ordered_ops.windows import OrderedWindows
from tests.windows_support import before

CHILD_S = 20.0


def main(bootstrap: str, group: str, topic: str) -> None:
    """Prints what each child said, how long it took and how it ended."""
    windows = OrderedWindows({"bootstrap.servers": bootstrap}, group)
    plan = windows.plan(before(topic, 12, Earliest()), "w")
    lookup, offsets = Lookup(windows.settings), OffsetsReader(windows.settings, group)
    tp = TopicPartition(topic, 0)
    offsets.read([tp])
    with RangeReader(windows.settings, group, Isolation.READ_COMMITTED, plan.taken) as reader:
        works: dict[str, Callable[[], object]] = {
            "list": windows.list,
            "plan": lambda: windows.plan(before(topic, 20), "other"),
            "commit": lambda: windows.commit(plan),
            "close": windows.close,
            "look up": lambda: lookup.end_offsets([tp], Isolation.READ_COMMITTED),
            "committed": lambda: offsets.read([tp]),
            "read": lambda: list(reader.batches()),
            "close all": lambda: [one.close() for one in (lookup, offsets, reader)],
            "nothing": lambda: None,
        }
        print(json.dumps({name: _in_child(work) for name, work in works.items()}))
        assert len(windows.list()) == 1, "the parent goes on"
    windows.close()


def _in_child(work: Callable[[], object]) -> list[str]:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            told = repr(work())
        except KafkaOrderedOpsError as error:
            told = f"{type(error).__name__}: {error}"
        os.write(write, told.encode()[:4000])
        # As any program ends: all that Python holds is given up.
        sys.exit(0)
    os.close(write)
    deadline = time.monotonic() + CHILD_S
    ended = "ended"
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            ended = "hung"
            break
        time.sleep(0.02)
    with os.fdopen(read, "rb") as pipe:
        return [pipe.read().decode(), ended]


if __name__ == "__main__":
    main(*sys.argv[1:])
