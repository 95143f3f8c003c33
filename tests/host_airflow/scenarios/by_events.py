"""A DAG that a watcher starts, hour by hour of its records; its job is a decorated function."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from kafka_ordered_ops.airflow import CutoffReachedTrigger

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_ordered_ops import WindowPlan

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
        job="batches",
        topics=NAME,
        group_id=NAME,
        mode="catch_up",
        starting_offsets="earliest",
        on_covered="skip",
    )
    def load(
        batches: Iterator[pa.RecordBatch], plan: WindowPlan, root: Any, suffix: str
    ) -> dict[str, int]:
        """A file for each window, which another attempt writes anew."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if found := list(batches):
            Path(root).mkdir(exist_ok=True)
            pq.write_table(pa.Table.from_batches(found), f"{root}/{plan.cutoff_ms}{suffix}")
        return {"rows": sum(batch.num_rows for batch in found)}

    # By that name type checkers do not know what the task itself gives; by `kafka_window_task` they do.
    load(folder(), suffix=".parquet")  # type: ignore[call-arg, arg-type, misc]
