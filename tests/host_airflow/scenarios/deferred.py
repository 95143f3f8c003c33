"""Tasks that are deferred while their driver runs on a YARN of the test's, which is there before they are triggered."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from kafka_ordered_ops import Application, Window
from kafka_ordered_ops.airflow import OrderedWindowOperator
from kafka_ordered_ops.spark import SparkSubmit

RUN, OUTPUT = os.environ["SCENARIO_RUN"], Path(os.environ["SCENARIO_OUTPUT"])

for name in ("deferred", "deferred_cleared", "deferred_marked", "deferred_killed"):
    with DAG(
        name,
        schedule=None,
        start_date=datetime(2025, 3, 1, tzinfo=UTC),
        default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
    ):
        OrderedWindowOperator(
            task_id="orders",
            mode="catch_up",
            window=Window(f"{name}-{RUN}", starting_offsets="earliest"),
            group_id=f"{name}-{RUN}",
            output=str(OUTPUT / name),
            job=Application(
                str(Path(__file__).parent / "jobs" / "copy_window.py"),
                submit=SparkSubmit(
                    master="yarn",
                    deploy_mode="cluster",
                    program=OUTPUT / f"{name}.yarn" / "spark-submit",
                    environment={"HADOOP_CONF_DIR": str(OUTPUT / f"{name}.yarn" / "hadoop")},
                    timeout_s=3_600,
                ),
            ),
            deferrable=True,
        )
