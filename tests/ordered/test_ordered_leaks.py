"""Readers that are closed leave nothing behind in their process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.broker_world import BrokerWorld

pytestmark = pytest.mark.long

#: Uses readers in a process of its own, again and again, and prints threads and descriptors before and after.
_SCRIPT = """
import gc, os, sys, time
from kafka_ordered_ops import Member, OrderedReader, UnknownTopicError

how, bootstrap, topic, group = sys.argv[1:]

def use():
    try:
        with OrderedReader(bootstrap, topic if how != "unknown" else topic + "-nowhere", **options) as reader:
            if how == "early":
                next(iter(reader))
            elif how == "group":
                reader.poll(0.1)
            elif how == "raises":
                raise ZeroDivisionError
            else:
                assert sum(batch.num_rows for batch in reader) == 20
    except (ZeroDivisionError, UnknownTopicError):
        pass

def left():
    gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

options = {"group_id": Member(group), "follow": True} if how == "group" else {}
for _ in range(3):  # What the process itself opens once.
    use()
time.sleep(1)
threads, files = left()
for _ in range(10):
    use()
ends_at = time.monotonic() + 20
while (left()[0] > threads or left()[1] > files) and time.monotonic() < ends_at:
    time.sleep(0.1)
assert left()[0] <= threads and left()[1] <= files, (threads, files, left())
"""


@pytest.mark.parametrize("how", ["whole", "early", "raises", "unknown", "group"])
def test_no_thread_and_no_connection_is_left(broker: BrokerWorld, how: str) -> None:
    """However it ended, ten times in a row."""
    broker.create("orders")
    broker.write("orders", 0, *range(20))
    bootstrap = broker.settings.bootstrap_servers
    names = (broker.named("orders"), broker.named("live"))
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT, how, bootstrap, *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
