"""Every hour: exactly the orders stamped before the hour, once, in order, into a Spark application.

A run that failed, or that was late, loses nothing: the next one takes what is left before its own cutoff.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from kafka_ordered_ops import Application, Window
from kafka_ordered_ops.airflow import OrderedWindowOperator

HERE = Path(__file__).parent

with DAG(
    "orders_with_spark",
    schedule="@hourly",
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    doc_md=__doc__,
):
    OrderedWindowOperator(
        task_id="orders",
        window=Window(
            os.environ.get("ORDERS_TOPIC", "orders"), starting_offsets="earliest"
        ),
        group_id="orders-with-spark",
        mode="catch_up",
        job=Application(
            str(HERE / "jobs" / "orders.py"),
            submit={"master": os.environ.get("SPARK_MASTER", "local[2]")},
        ),
        output=os.environ.get("ORDERS_OUTPUT", "/data") + "/with_spark",
    )
