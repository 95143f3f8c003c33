"""Execute a task that writes down each call of its function, with Airflow's way to end it: TOPIC GROUP LOG."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from kafka_ordered_ops import Process, Window
from kafka_ordered_ops.airflow import ProcessWindowOperator
from kafka_ordered_ops.processing import Record, window_job
from tests.support.airflow_context import context_of


def main() -> None:
    """Execute the task; SIGTERM calls its `on_kill`, as in Airflow's task runner."""
    topic, group_id, path = sys.argv[1:]
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    process: Any = window_job.process_plan
    # Tests do not wait ten seconds.
    process.__kwdefaults__["commit_interval_s"] = 0.3

    def call(record: Record) -> None:
        time.sleep(0.04)
        os.write(log, f"{record.offset}\n".encode())

    task = ProcessWindowOperator(
        task_id="task",
        window=Window(topic, starting_offsets="earliest"),
        group_id=group_id,
        mode="catch_up",
        window_id="w",
        job=Process(call, ordering="unordered", max_concurrency=2),
    )
    signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    task.execute(context_of(1_000))


if __name__ == "__main__":
    main()
