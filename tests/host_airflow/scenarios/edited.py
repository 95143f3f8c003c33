"""A DAG that its test edits between two attempts of the same run."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from kafka_ordered_ops import Window
from kafka_ordered_ops.airflow import OrderedWindowOperator

NAME = f"edited-{os.environ['SCENARIO_RUN']}"
TOPICS = [NAME]

with DAG(
    "edited",
    schedule=None,
    start_date=datetime(2025, 3, 1, tzinfo=UTC),
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
):
    OrderedWindowOperator(
        mode="auto",
        task_id="orders",
        window=Window(TOPICS, starting_offsets="earliest"),
        group_id=NAME,
        output=f"{os.environ['SCENARIO_OUTPUT']}/edited",
    )
