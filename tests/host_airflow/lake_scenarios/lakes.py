"""DAGs whose windows go into an object store, and whose processes are killed, once for each window."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable

from kafka_ordered_ops import Application, Window
from kafka_ordered_ops.airflow import OrderedWindowOperator
from tests.support import host_kills, killed_copy

RUN, OUTPUT = os.environ["SCENARIO_RUN"], Path(os.environ["SCENARIO_OUTPUT"])
#: Spark's settings for the store.
STORE_CONF = json.loads(os.environ["SCENARIO_STORE_CONF"])


def dag(dag_id: str) -> DAG:
    """A DAG of one hour a run, for backfills."""
    return DAG(
        dag_id,
        schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
        start_date=datetime(2025, 3, 1, tzinfo=UTC),
        end_date=datetime(2025, 3, 2, tzinfo=UTC),
        catchup=False,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
    )


def own(dag_id: str) -> dict[str, Any]:
    """What a DAG has of its own."""
    return {
        "task_id": "orders",
        "mode": "interval",
        "window": Window(f"{dag_id}-{RUN}", starting_offsets="earliest"),
        "group_id": f"{dag_id}-{RUN}",
    }


def in_store(dag_id: str) -> dict[str, Any]:
    """An output in the store, by its connection."""
    return {**own(dag_id), "output": f"s3://lake@bucket/lake/{dag_id}"}


class KilledOperator(OrderedWindowOperator):
    """Kills itself or the store between two of its writes."""

    def execute(self, context: Any) -> dict[str, Any]:
        """As the operator."""
        signals = OUTPUT / f"{self.dag_id}.signals"
        host_kills.killing_between_writes(signals, context["dag_run"].logical_date.hour)
        return super().execute(context)


with dag("to_store"):
    KilledOperator(**in_store("to_store"))

with dag("by_spark"):
    OrderedWindowOperator(
        job=Application(
            killed_copy.__file__,
            arguments=[
                str(OUTPUT / "by_spark.signals"),
                "{{ dag_run.logical_date.hour }}",
            ],
            submit={
                "master": "local[1]",
                "conf": STORE_CONF,
                "environment": {"PYSPARK_PYTHON": sys.executable},
            },
        ),
        max_active_tis_per_dag=2,
        **in_store("by_spark"),
    )
