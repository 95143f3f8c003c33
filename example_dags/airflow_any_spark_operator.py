"""Plan, any Spark operator, commit: here the Apache Spark provider's SparkSubmitOperator.

The planning task hands the window on by its id. The job stages its result, and the last task commits the window
and then makes the result visible. If the job fails, its retry takes the same window again; if it fails for
good, the teardown lets go of it.

Any operator that can hand five words to a job will do in the place of `job`. This one needs a connection of type
``spark``, whose host is the master, and the provider without what it brings along:

    pip install --no-deps apache-airflow-providers-apache-spark

It asks for pyspark-client, which has the same files as pyspark: whichever comes last overwrites the other.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from kafka_ordered_ops import Window
from kafka_ordered_ops.airflow import (
    AbandonWindowOperator,
    CommitWindowOperator,
    PlanWindowOperator,
)

try:
    from airflow.providers.apache.spark.operators.spark_submit import (
        SparkSubmitOperator,
    )
except ImportError as error:
    raise ImportError(
        "this DAG submits its job with the Apache Spark provider. "
        "Beside pyspark it is installed with "
        "`pip install --no-deps apache-airflow-providers-apache-spark`"
    ) from error

JOB = str(Path(__file__).parent / "jobs" / "planned_orders.py")
GROUP = "orders-any-operator"
OUTPUT = os.environ.get("ORDERS_OUTPUT", "/data") + "/any-operator"

with DAG(
    "orders_any_spark_operator",
    schedule="@hourly",
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
        group_id=GROUP,
        mode="catch_up",
    )
    job = SparkSubmitOperator(
        task_id="job",
        conn_id="spark_default",
        application=JOB,
        application_args=[
            os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
            GROUP,
            "{{ ti.xcom_pull('plan')['window_id'] }}",
            "{{ ti.xcom_pull('plan')['attempt'] }}",
            OUTPUT,
        ],
        # The Python that has PySpark, whichever comes first on the worker's path.
        env_vars={"PYSPARK_PYTHON": sys.executable},
        # Cleared, the job runs again: not the driver of the previous plan.
        durable=False,
    )
    commit = CommitWindowOperator(task_id="commit", window=plan.output, output=OUTPUT)
    let_go = AbandonWindowOperator(task_id="let_go", window=plan.output, output=OUTPUT)
    plan >> job >> commit >> let_go.as_teardown(setups=plan)
