"""Plan, any Spark operator, commit: here plain spark-submit, in a shell.

The planning task hands the window on by its id. The job stages its result, and the last task commits the window
and then makes the result visible. If the job fails, its retry takes the same window again; if it fails for
good, the teardown lets go of it.

Any operator that can hand five words to a job will do in the place of `job`. The Spark provider's, say, with
``application=JOB`` and ``application_args=list(ARGUMENTS.values())``; note that this provider brings
pyspark-client, which must not be installed beside pyspark.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from kafka_ordered_ops.airflow import (
    AbandonWindowOperator,
    CommitWindowOperator,
    PlanWindowOperator,
)

JOB = str(Path(__file__).parent / "jobs" / "planned_orders.py")
GROUP = "orders-any-operator"
OUTPUT = os.environ.get("ORDERS_OUTPUT", "/data") + "/any-operator"
ARGUMENTS = {
    "BOOTSTRAP": os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
    "GROUP": GROUP,
    "WINDOW_ID": "{{ ti.xcom_pull('plan')['window_id'] }}",
    "ATTEMPT": "{{ ti.xcom_pull('plan')['attempt'] }}",
    "OUTPUT": OUTPUT,
}

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
        topics=os.environ.get("ORDERS_TOPIC", "orders"),
        group_id=GROUP,
        mode="catch_up",
        start="earliest",
    )
    job = BashOperator(
        task_id="job",
        # As variables, the words need no quoting, whatever is in them.
        bash_command='spark-submit --master "$MASTER" "$JOB" "$BOOTSTRAP" "$GROUP" "$WINDOW_ID" "$ATTEMPT" "$OUTPUT"',
        env={
            "MASTER": os.environ.get("SPARK_MASTER", "local[2]"),
            # The Python that has PySpark, whichever comes first on the worker's path.
            "PYSPARK_PYTHON": sys.executable,
            "JOB": JOB,
            **ARGUMENTS,
        },
        append_env=True,
    )
    commit = CommitWindowOperator(task_id="commit", window=plan.output, output=OUTPUT)
    let_go = AbandonWindowOperator(task_id="let_go", window=plan.output, output=OUTPUT)
    plan >> job >> commit >> let_go.as_teardown(setups=plan)
