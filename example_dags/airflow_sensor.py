"""Waits until every partition has come to the cutoff, then takes the window: no record comes late to it.

The sensor waits in the triggerer and takes no worker's slot. A partition that stays silent for ten minutes
after the cutoff counts as idle.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG

from kafka_ordered_ops import Window
from kafka_ordered_ops.airflow import OrderedWindowOperator, PartitionsLiveSensor

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_ordered_ops import OpenWindow

TOPIC = os.environ.get("ORDERS_TOPIC", "orders")
GROUP = "orders-live"


def count_by_partition(window: OpenWindow) -> dict[str, int]:
    """Takes the records in order, without Spark."""
    counts: dict[str, int] = {}
    for batch in window.to_batches():
        for number, count in zip(*_counted(batch), strict=True):
            counts[str(number)] = counts.get(str(number), 0) + int(count)
    return counts


def _counted(batch: pa.RecordBatch) -> tuple[Any, Any]:
    counted = batch.column("partition").value_counts()
    return counted.field("values").to_pylist(), counted.field("counts").to_pylist()


with DAG(
    "orders_when_live",
    schedule="@hourly",
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    doc_md=__doc__,
):
    live = PartitionsLiveSensor(
        task_id="live",
        topics=TOPIC,
        group_id=GROUP,
        grace="PT10M",
        window_task_id="orders",
        deferrable=True,
        poke_interval=float(os.environ.get("ORDERS_POKE_S", "30")),
        timeout=3600,
    )
    live >> OrderedWindowOperator(
        task_id="orders",
        window=Window(TOPIC, starting_offsets="earliest"),
        group_id=GROUP,
        mode="catch_up",
        job=count_by_partition,
    )
