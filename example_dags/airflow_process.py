"""Every hour: each order stamped before the hour through a function, many at a time, in order by key.

What is done is kept in Kafka as it goes. A task that was killed goes on where it stopped: its next attempt calls the
function only for the orders that are left.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG

from kafka_ordered_ops import Process, Window
from kafka_ordered_ops.airflow import ProcessWindowOperator

if TYPE_CHECKING:
    from kafka_ordered_ops.processing import Record


async def charge(record: Record) -> None:
    """Charge one order; it may be called again, so its place in Kafka identifies it."""
    _order_id = f"{record.topic}/{record.partition}/{record.offset}"
    await asyncio.sleep(0.01)  # a call to another service, with this id


with DAG(
    "orders_one_by_one",
    schedule="@hourly",
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
):
    ProcessWindowOperator(
        task_id="charge",
        window=Window(
            os.environ.get("ORDERS_TOPIC", "orders"), starting_offsets="earliest"
        ),
        group_id="orders-one-by-one",
        mode="catch_up",
        job=Process(charge, max_concurrency=64, timeout_s=30),
    )
