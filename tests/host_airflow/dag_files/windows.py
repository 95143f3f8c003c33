"""DAGs that are run by ``dag.test()``, as people try theirs: ``python windows.py FILE`` writes what became of them.

The topic has records at seconds 0, 10, 20, 5, 30 and 15 after `BASE`, in this order.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from kafka_ordered_ops import Function, Process, Window
from kafka_ordered_ops.airflow import (
    AbandonWindowOperator,
    CommitWindowOperator,
    OrderedWindowOperator,
    PartitionsLiveSensor,
    PlanWindowOperator,
    ProcessWindowOperator,
    WindowPartOperator,
)

BASE = datetime.fromisoformat(os.environ["RECORDS_FROM"])
TOPIC, OUTPUT = os.environ["RECORDS_TOPIC"], os.environ["RECORDS_OUTPUT"]


def text(seconds: float) -> str:
    """A time as a run's parameter has it."""
    return (BASE + timedelta(seconds=seconds)).isoformat()


def dag_of(name: str, until: float) -> DAG:
    """A DAG whose runs are told their cutoff."""
    return DAG(name, schedule=None, params={"cutoff": Param(text(until), type="string")})


#: What every window here has in common; its group is the DAG's.
WINDOW: dict[str, Any] = {
    "window": Window([TOPIC], starting_offsets="earliest"),
    "group_id": f"{TOPIC}-{{{{ dag.dag_id }}}}",
    "cutoff": "{{ params.cutoff }}",
    "window_id": "{{ dag.dag_id }}",
}
CATCH_UP: dict[str, Any] = {**WINDOW, "mode": "catch_up"}


def output(name: str) -> str:
    """The folder of a DAG's windows."""
    return f"{OUTPUT}/{name}"


@task
def written(told: Any) -> str:
    """A job of the user's, anywhere: it is told the window, and writes what it holds."""
    from kafka_ordered_ops import stage_window
    from kafka_ordered_ops.spark import planned_window

    cluster = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"]}
    plan, settings = planned_window(
        cluster, told["group"], told["window_id"], attempt=told["attempt"]
    )
    return stage_window(plan, settings, output("separate")).stage_path


with dag_of("separate", until=12) as separate:
    plan = PlanWindowOperator(task_id="plan", **CATCH_UP)
    commit = CommitWindowOperator(task_id="commit", window=plan.output, output=output("separate"))
    written(plan.output) >> commit

with dag_of("parts", until=25) as parts:
    plan = PlanWindowOperator(task_id="plan", parts=2, **CATCH_UP)
    part = WindowPartOperator.partial(task_id="part", output=output("parts")).expand(
        window=plan.output
    )
    part >> CommitWindowOperator(task_id="commit", window=plan.output, output=output("parts"))

with dag_of("empty", until=-1) as empty:
    plan = PlanWindowOperator(task_id="plan", on_empty="skip", **CATCH_UP)
    written(plan.output) >> CommitWindowOperator(task_id="commit", window=plan.output)


@task
def broken(_told: Any) -> None:
    """A job that fails."""
    raise ValueError("no")


with dag_of("let_go", until=12) as let_go:
    plan = PlanWindowOperator(task_id="plan", **CATCH_UP)
    failed = broken(plan.output)
    failed >> CommitWindowOperator(task_id="commit", window=plan.output)
    failed >> AbandonWindowOperator(task_id="let_go", window=plan.output).as_teardown(setups=plan)


@task
def factor() -> int:
    """What a job is told by another task."""
    return 10


def added_up(window: Any, factor: int) -> int:
    """A job without Spark: fails once, and is tried again."""
    first = Path(output("waits")) / "tried"
    offsets = window.to_arrow().column("offset").to_pylist()
    if not first.exists():
        first.parent.mkdir(parents=True, exist_ok=True)
        first.touch()
        raise OSError("the first try fails")
    return factor * int(sum(offsets))


with dag_of("waits", until=25) as waits:
    live = PartitionsLiveSensor(
        task_id="live",
        **WINDOW,
        poke_interval=1,
        timeout=60,
    )
    window = OrderedWindowOperator(
        task_id="window",
        job=Function(added_up, keywords={"factor": factor()}),
        retries=1,
        retry_delay=timedelta(0),
        **CATCH_UP,
    )
    live >> window


def charged(record: Any, cent: int) -> int:
    """A job for each record: one of them fails once, and the task is tried again."""
    folder = Path(output("processed"))
    folder.mkdir(parents=True, exist_ok=True)
    failed = folder / "failed"
    if record.offset == 3 and not failed.exists():
        failed.touch()
        raise OSError("the service is away")
    # Fails for a record that is processed twice.
    (folder / str(record.offset)).touch(exist_ok=False)
    return cent


with dag_of("processed", until=25) as processed:
    ProcessWindowOperator(
        task_id="charge",
        job=Process(charged, max_concurrency=1, retries=0, keywords={"cent": "{{ 1 + 1 }}"}),
        retries=1,
        retry_delay=timedelta(0),
        **CATCH_UP,
    )


def main() -> None:
    """Runs every DAG once."""
    told = {}
    for dag in (separate, parts, empty, let_go, waits, processed):
        run = dag.test(logical_date=datetime.now(UTC))
        tasks = {
            f"{ti.task_id}[{ti.map_index}]" if ti.map_index >= 0 else ti.task_id: ti
            for ti in run.get_task_instances()
        }
        told[dag.dag_id] = {
            "state": str(run.state),
            "tasks": {name: str(ti.state) for name, ti in tasks.items()},
            "returned": {
                name: ti.xcom_pull(task_ids=ti.task_id, map_indexes=ti.map_index)
                for name, ti in tasks.items()
            },
        }
    Path(sys.argv[1]).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
