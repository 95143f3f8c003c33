"""One window shared by twenty tasks, whatever the number of partitions, through servers of the relay.

Each task takes the next records until none is left. A task that dies holds up nobody: its records go to another one.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from kafka_ordered_ops import Window
from kafka_ordered_ops.airflow import (
    CommitWindowOperator,
    KafkaWindowsHook,
    PlanWindowOperator,
)

GROUP = "orders-by-relay"
RELAY = os.environ.get("ORDERS_RELAY", "http://localhost:8642").split(",")
TASKS = 20

with DAG(
    "orders_by_relay",
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

    @task
    def hand_out(planned: dict[str, Any]) -> str:
        """Let the relay hand out the window's records."""
        from kafka_ordered_ops.relay import RelayClient

        with (
            KafkaWindowsHook(group_id=GROUP).get_conn() as windows,
            RelayClient(RELAY) as relay,
        ):
            return relay.window(windows.show(planned["window_id"]).plan)

    @task
    def charge(group: str, worker: int) -> int:
        """Process records until the window is done."""
        from kafka_ordered_ops.relay import RelayClient

        count = 0
        with RelayClient(RELAY) as relay:
            for record in relay.records(group):
                print(
                    worker, record, record.value
                )  # here your code charges the customer
                count += 1
        return count

    charged = charge.partial(group=hand_out(plan.output)).expand(
        worker=list(range(TASKS))
    )
    charged >> CommitWindowOperator(task_id="commit", window=plan.output)
