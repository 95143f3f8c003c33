"""DAGs for what a person on call sees: tasks that end in the middle, fail, or wait in vain."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from kafka_ordered_ops import KafkaOrderedOpsError, OpenWindow, Policy, Window
from kafka_ordered_ops.airflow import (
    CheckWindowsOperator,
    OrderedWindowOperator,
    PartitionsLiveSensor,
)

RUN = os.environ["SCENARIO_RUN"]
OUTPUT = Path(os.environ["SCENARIO_OUTPUT"])

#: A held task goes on when nobody lets it go: it would outlive the test.
HELD_S = 200.0


def hold_first(window: OpenWindow) -> None:
    """Stage the records, and wait in the window that began the test."""
    window.write(window.to_arrow())
    first = OUTPUT / "marked.first"
    if first.exists():
        return
    first.write_text(window.window_id)
    deadline = time.monotonic() + HELD_S
    while not (OUTPUT / "marked.go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody let the task go")
        time.sleep(0.05)


def misspelled(window: OpenWindow) -> None:
    """Fail as people's functions do."""
    window.to_arrow()["vlaue"]


def told(context: Any) -> None:
    """Write down what a callback is given."""
    error = context["exception"]
    retriable = error.retriable if isinstance(error, KafkaOrderedOpsError) else None
    kinds = ", ".join(kind.__name__ for kind in type(error).__mro__)
    name = f"{context['ti'].dag_id}.{context['ti'].task_id}.told"
    (OUTPUT / name).write_text(f"{kinds}\n{retriable}\n{error}")


def own(name: str) -> dict[str, Any]:
    """What a DAG has of its own."""
    return {
        "window": Window(f"{name}-{RUN}", starting_offsets="earliest"),
        "group_id": f"{name}-{RUN}",
        "on_failure_callback": told,
    }


with DAG("marked"):
    OrderedWindowOperator(
        task_id="orders",
        mode="interval",
        job=hold_first,
        output=str(OUTPUT / "marked"),
        policy=Policy(claim_age="PT1S"),
        **own("marked"),
    )

with DAG("marked_check"):
    CheckWindowsOperator(
        task_id="check", group_id=f"marked-{RUN}", age="PT1S", on_failure_callback=told
    )

with DAG("failing"):
    OrderedWindowOperator(task_id="function", mode="catch_up", job=misspelled, **own("failing"))

with DAG("refused"):
    OrderedWindowOperator(
        task_id="orders",
        mode="interval",
        output=str(OUTPUT / "refused"),
        **own("failing"),
    )

for mode in ("poke", "reschedule"):
    with DAG(f"waiting_{mode}"):
        PartitionsLiveSensor(
            task_id="live",
            mode=mode,
            poke_interval=1,
            timeout=timedelta(seconds=2),
            **own("failing"),
        )

with DAG("away_now"):
    OrderedWindowOperator(
        task_id="orders",
        mode="catch_up",
        output=str(OUTPUT / "away"),
        kafka_conn_id="kafka_away",
        **own("away_now"),
    )
