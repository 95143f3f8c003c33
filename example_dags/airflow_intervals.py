"""A window for each hour, planned in any order and side by side: made for backfills.

Each run takes what is stamped in its own hour. Records that come after their hour was planned are in the next
run's window, flagged as late. Nothing here is serialised: the group's ledger keeps the runs apart.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from kafka_ordered_ops import Window
from kafka_ordered_ops.airflow import OrderedWindowOperator

try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # before Airflow 3.2
    from airflow.timetables.interval import CronDataIntervalTimetable

with DAG(
    "orders_by_hour",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=16,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
):
    OrderedWindowOperator(
        task_id="orders",
        window=Window(
            os.environ.get("ORDERS_TOPIC", "orders"), starting_offsets="earliest"
        ),
        group_id="orders-by-hour",
        mode="interval",
        output=os.environ.get("ORDERS_OUTPUT", "/data") + "/by-hour",
    )
