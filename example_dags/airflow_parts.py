"""One window shared by four tasks side by side, and committed once when all of them are done.

Each part is a run of neighbouring offsets, of about the same weight, in order in itself.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from kafka_ordered_ops import Window
from kafka_ordered_ops.airflow import (
    CommitWindowOperator,
    PlanWindowOperator,
    WindowPartOperator,
)

OUTPUT = os.environ.get("ORDERS_OUTPUT", "/data") + "/parts"

with DAG(
    "orders_in_parts",
    schedule="@daily",
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
):
    plan = PlanWindowOperator(
        task_id="plan",
        window=Window(
            os.environ.get("ORDERS_TOPIC", "orders"), starting_offsets="earliest"
        ),
        group_id="orders-in-parts",
        mode="catch_up",
        parts=4,
    )
    part = WindowPartOperator.partial(task_id="part", output=OUTPUT).expand(
        window=plan.output
    )
    part >> CommitWindowOperator(task_id="commit", window=plan.output, output=OUTPUT)
