"""Which threads destroy clients."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

#: A request that was given up refers to its client only from garbage, which is collected while its answer arrives.
_GIVEN_UP: Final = """
import gc, threading
from confluent_kafka.admin import AdminClient
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client

gc.disable()
is_over = threading.Event()

def open_one():
    return open_client(AdminClient, {"bootstrap.servers": "127.0.0.1:9"}, FaultReasons())

def give_up():
    client = open_one()
    garbage = [client]
    garbage.append(garbage)
    answer = client.list_consumer_groups(request_timeout=0.2)
    def collect(_):
        gc.collect()
        is_over.set()
    answer.add_done_callback(collect)

give_up()
assert is_over.wait(30)
open_one()
print("alive")
"""


def test_no_thread_of_the_library_destroys_a_client() -> None:
    """The library ends the process otherwise, in the middle of whatever else it does."""
    ended = subprocess.run(
        [sys.executable, "-c", _GIVEN_UP], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr
