"""Plan, the Apache Spark provider's operator, commit; the job holds until its test lets it go."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from kafka_ordered_ops import Window
from kafka_ordered_ops.airflow import CommitWindowOperator, PlanWindowOperator

NAME = f"submitted-{os.environ['SCENARIO_RUN']}"
OUTPUT = f"{os.environ['SCENARIO_OUTPUT']}/submitted"

with DAG(
    "submitted",
    schedule=None,
    start_date=datetime(2025, 3, 1, tzinfo=UTC),
    default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
):
    plan = PlanWindowOperator(
        mode="auto", task_id="plan", window=Window(NAME, starting_offsets="earliest"), group_id=NAME
    )
    job = SparkSubmitOperator(
        task_id="job",
        application=str(Path(__file__).parent / "jobs" / "held_orders.py"),
        application_args=[
            os.environ["KAFKA_BOOTSTRAP"],
            NAME,
            "{{ ti.xcom_pull('plan')['window_id'] }}",
            "{{ ti.xcom_pull('plan')['attempt'] }}",
            OUTPUT,
            f"{OUTPUT}.signals",
            "{{ ti.try_number }}",
        ],
        env_vars={"PYSPARK_PYTHON": sys.executable},
        durable=False,
    )
    plan >> job >> CommitWindowOperator(task_id="commit", window=plan.output, output=OUTPUT)
