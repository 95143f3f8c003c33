"""DAGs for tests of Celery's workers: each task holds when its records are staged."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from kafka_ordered_ops import Function, OpenWindow, Window
from kafka_ordered_ops.airflow import OrderedWindowOperator

RUN, OUTPUT = os.environ["SCENARIO_RUN"], Path(os.environ["SCENARIO_OUTPUT"])

#: A held task goes on when nobody lets it go: it would outlive the test.
HELD_S = 400.0


def say(folder: Path, name: str, text: str) -> None:
    """Write a file for the test, which appears as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{name}-{os.getpid()}"
    new.write_text(text)
    new.rename(folder / name)


def hold(window: OpenWindow, name: str) -> None:
    """Stage the records, and wait until the test lets this attempt go."""
    window.write(window.to_arrow())
    folder = OUTPUT / f"{name}.signals"
    say(folder, f"{window.plan.attempt}.ready", str(os.getpid()))
    deadline = time.monotonic() + HELD_S
    while not (folder / f"{window.plan.attempt}.go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody let {name} go on")
        time.sleep(0.05)


# What a worker does well needs no retry.
for name, retries in (("shut_down", 0), ("ended", 2), ("killed", 2), ("outlasting", 2)):
    with DAG(
        name,
        schedule=None,
        start_date=datetime(2025, 3, 1, tzinfo=UTC),
        default_args={"retries": retries, "retry_delay": timedelta(seconds=1)},
    ):
        OrderedWindowOperator(
            task_id="orders",
            mode="catch_up",
            window=Window(f"{name}-{RUN}", starting_offsets="earliest"),
            group_id=f"{name}-{RUN}",
            output=str(OUTPUT / name),
            job=Function(hold, {"name": name}),
        )
