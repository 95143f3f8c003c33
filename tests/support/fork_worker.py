"""A process that opens connections and forks; its children try to use, close and give up what is their parent's."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from kafka_ordered_ops import Earliest, KafkaOrderedOpsError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets.committed_offsets import OffsetsReader
from kafka_ordered_ops.kafka.read.reader import RangeReader
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.windows_support import before

CHILD_S = 20.0


def main(bootstrap: str, group_id: str, topic: str) -> None:
    """Prints what each child said, how long it took and how it ended."""
    tp = TopicPartition(topic, 0)
    # The only references: a child that clears it gives everything up.
    held: dict[str, Any] = {"windows": OrderedWindows({"bootstrap.servers": bootstrap}, group_id)}
    settings = held["windows"].settings
    plan = held["windows"].plan(before(topic, 12, Earliest()), "w")
    held["lookup"], held["offsets"] = Lookup(settings), OffsetsReader(settings, group_id)
    held["offsets"].read([tp])
    held["reader"] = RangeReader(
        settings, group_id, Isolation.READ_COMMITTED, plan.taken
    ).__enter__()
    works: dict[str, Callable[[], object]] = {
        "list": lambda: held["windows"].list(),
        "plan": lambda: held["windows"].plan(before(topic, 20), "other"),
        "commit": lambda: held["windows"].commit(plan),
        "look up": lambda: held["lookup"].end_offsets([tp], Isolation.READ_COMMITTED),
        "committed": lambda: held["offsets"].read([tp]),
        "read": lambda: list(held["reader"].batches()),
        "close": lambda: [one.close() for one in held.values()],
        "close and give up": lambda: _give_up(held, close=True),
        "give up": lambda: _give_up(held),
        "nothing": lambda: None,
    }
    print(json.dumps({name: _in_child(work) for name, work in works.items()}))
    assert len(held["windows"].list()) == 1, "the parent goes on"
    for one in held.values():
        one.close()


def _give_up(held: dict[str, Any], *, close: bool = False) -> None:
    for one in held.values() if close else ():
        one.close()
    held.clear()
    gc.collect()


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
