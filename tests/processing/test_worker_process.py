"""A worker process, and the process that it works for."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PARENT = """
import pickle, time
from multiprocessing import get_context
from kafka_ordered_ops.core.processing.record import Record
from kafka_ordered_ops.processing.workers.worker_process import serve
from tests.support.work_functions import answer
context = get_context("spawn")
ours, theirs = context.Pipe()
context.Process(target=serve, args=(theirs, pickle.dumps((answer, None)), False, False)).start()
# As its owner does: then the end of a process ends the wait for it.
theirs.close()
ours.recv_bytes()
ours.send_bytes(pickle.dumps([Record("orders", 0, 0, 0, None, b"hang")]))
print("at work", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_process_ends_with_its_parent() -> None:
    """Whatever it is at: after ``kill -9``, somebody else goes on with its record."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"at work\n"
        parent.kill()
        # The process has it open as well.
        assert parent.stdout.read() == b""
