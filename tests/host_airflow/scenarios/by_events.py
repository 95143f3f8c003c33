"""A DAG that a watcher starts, hour by hour of its records; its job is a decorated function."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from kafka_ordered_ops import OpenWindow, Policy, Window
from kafka_ordered_ops.airflow import CutoffReachedTrigger

if TYPE_CHECKING:
    pass

NAME = f"by_events-{os.environ['SCENARIO_RUN']}"

reached = CutoffReachedTrigger(
    topics=NAME, group_id=NAME, every=timedelta(hours=1), poke_interval=2
)
hour = Asset(name="an hour is in", watchers=[AssetWatcher(name="hours", trigger=reached)])

with DAG(
    "by_events",
    schedule=[hour],
    start_date=datetime(2025, 3, 1, tzinfo=UTC),
    max_active_runs=1,
):

    @task
    def folder() -> str:
        """Where the job writes."""
        return f"{os.environ['SCENARIO_OUTPUT']}/by_events"

    @task.kafka_window(
        window=Window(NAME, starting_offsets="earliest"),
        group_id=NAME,
        mode="catch_up",
        policy=Policy(on_covered="skip"),
    )
    def load(window: OpenWindow, root: Any, suffix: str) -> dict[str, int]:
        """A file for each window, which another attempt writes anew."""
        import pyarrow.parquet as pq

        if (found := window.to_arrow()).num_rows:
            Path(root).mkdir(exist_ok=True)
            pq.write_table(found, f"{root}/{window.plan.cutoff_ms}{suffix}")
        return {"rows": found.num_rows}

    # By that name type checkers do not know what the task itself gives; by `kafka_window_task` they do.
    load(folder(), suffix=".parquet")  # type: ignore[call-arg, arg-type, misc]
