"""DAGs whose task calls a function for each record, which writes down each call: its process, partition and offset."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG

from kafka_ordered_ops import Process, Window
from kafka_ordered_ops.airflow import ProcessWindowOperator

if TYPE_CHECKING:
    from kafka_ordered_ops.processing import Record

RUN = os.environ["SCENARIO_RUN"]
OUTPUT = Path(os.environ["SCENARIO_OUTPUT"])


class OftenKept(ProcessWindowOperator):
    """Keeps what is done so often that a test need not wait."""

    def execute(self, context: Any) -> dict[str, Any]:
        """As the operator."""
        from kafka_ordered_ops.processing import window_job

        process: Any = window_job.process_plan
        process.__kwdefaults__["commit_interval_s"] = 0.5
        return super().execute(context)


def note(record: Record, name: str) -> None:
    """Take a tenth of a second, and note the call."""
    time.sleep(0.1)
    with (OUTPUT / f"{name}.calls").open("a") as file:
        file.write(f"{os.getpid()} {record.partition} {record.offset}\n")


for name in ("processed_killed", "processed_ended"):
    with DAG(name, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)}):
        OftenKept(
            task_id="orders",
            window=Window(f"{name}-{RUN}", starting_offsets="earliest"),
            group_id=f"{name}-{RUN}",
            mode="auto",
            job=Process(note, {"name": name}, max_concurrency=1),
        )
