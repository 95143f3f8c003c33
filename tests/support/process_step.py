"""A job whose step runs in its own process and writes down each call of its function. Run, it executes the job once."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import dagster as dg

from kafka_ordered_ops import Process, Window
from kafka_ordered_ops.dagster import KafkaResource, build_process_window_op
from kafka_ordered_ops.processing import Record, window_job
from tests.support.dagster_support import HOURLY, KEYS

process: Any = window_job.process_plan
# Tests do not wait ten seconds.
process.__kwdefaults__["commit_interval_s"] = 0.3

_log = os.open(os.environ["STEP_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


_first = threading.Lock()


def charge(record: Record) -> None:
    """The first line of the file is the process; then the offsets."""
    time.sleep(0.04)
    with _first:
        if not os.fstat(_log).st_size:
            os.write(_log, f"{os.getpid()}\n".encode())
    os.write(_log, f"{record.offset}\n".encode())


charges = build_process_window_op(
    name="charges",
    window=Window(os.environ["STEP_TOPIC"], starting_offsets="earliest"),
    group_id=os.environ["STEP_GROUP"],
    job=Process(charge, ordering="unordered", max_concurrency=2),
    partitions_def=HOURLY,
)


@dg.job(
    partitions_def=HOURLY,
    resource_defs={
        "kafka": KafkaResource(config={"bootstrap.servers": os.environ["STEP_BOOTSTRAP"]})
    },
)
def pipeline() -> None:
    """One op."""
    charges()


def main() -> None:
    """Execute the first hour."""
    with dg.DagsterInstance.get() as instance:
        result = dg.execute_job(
            dg.reconstructable(pipeline), instance=instance, tags={"dagster/partition": KEYS[0]}
        )
        sys.exit(not result.success)


if __name__ == "__main__":
    main()
