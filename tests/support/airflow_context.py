"""What a task is given by Airflow, for operators that a test executes itself; and what the tests of operators share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors

from kafka_ordered_ops import OpenWindow, WindowPlan
from kafka_ordered_ops.airflow import OrderedWindowOperator
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.offsets.committed_offsets import read_committed_offsets
from kafka_ordered_ops.output.filesystem import data_names
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.host_words import job_words
from tests.support.windows_support import TIMEOUT_S, at


@dataclass
class Ti:
    """A task instance, as far as the package looks at it."""

    dag_id: str = "dag"
    task_id: str = "task"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 0
    pushed: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        """Keeps the value, as JSON would."""
        self.pushed[key] = json.loads(json.dumps(value))


@dataclass
class DagRun:
    """A run."""

    conf: Mapping[str, Any] = field(default_factory=dict)
    run_after: datetime | None = None
    partition_key: str | None = None


def context_of(
    until: float | None = None,
    *,
    since: float | None = None,
    task_id: str = "task",
    run_id: str = "run",
    try_number: int = 1,
    map_index: int = -1,
    max_tries: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """The context of a run whose interval ends at a moment of the tests' time, and has a length with `since`."""
    context: dict[str, Any] = {
        "ti": Ti(task_id=task_id, try_number=try_number, map_index=map_index, max_tries=max_tries),
        "dag_run": DagRun(),
        "run_id": run_id,
        "outlet_events": OutletEventAccessors(),
    }
    if until is not None:
        start = until if since is None else since
        context |= {"data_interval_start": at(start), "data_interval_end": at(until)}
    return {**context, **more}


@pytest.fixture(autouse=True)
def kafka_connection(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ``kafka_default``, and a Java for Spark where the machine has none."""
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    if shutil.which("java") is None:
        from kafka_ordered_ops.embedded import java_home_for_spark

        monkeypatch.setenv("JAVA_HOME", str(java_home_for_spark()))


def rows_in(folder: str | Path) -> list[tuple[int, int]]:
    """Partition and offset of each record of an output, in the order of its files and rows."""
    names = data_names(files_for(str(folder)), str(folder))
    return [
        (row["partition"], row["offset"])
        for name in names
        for row in pq.read_table(f"{folder}/{name}").select(["partition", "offset"]).to_pylist()
    ]


def offsets_in(folder: str | Path) -> list[int]:
    """Offsets of an output of one partition."""
    return [offset for _, offset in rows_in(folder)]


def outputs_of(root: Path) -> list[str]:
    """The windows that readers see below a folder."""
    return sorted(path.name for path in root.glob("window_id=*"))


def committed(windows: OrderedWindows, topic: str, partitions: int = 1) -> list[int | None]:
    """The group's committed offsets, as any tool sees them."""
    every = [TopicPartition(topic, number) for number in range(partitions)]
    found = read_committed_offsets(windows.settings, windows.group_id, every, timeout_s=TIMEOUT_S)
    return [None if (one := found[tp]) is None else one.offset for tp in every]


def small_json(value: Any) -> int:
    """The size of what goes into an XCom; fails for what is no JSON."""
    return len(json.dumps(value, allow_nan=False))


Make = Callable[..., OrderedWindowOperator]


class Sink:
    """A job with a sink of its own: what it was given, try by try; it fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.taken: list[list[int]] = []
        self.plans: list[WindowPlan] = []

    def __call__(self, window: OpenWindow) -> dict[str, int]:
        self.plans.append(window.plan)
        columns: list[list[Any]] = [one["offset"].to_pylist() for one in window.to_batches()]
        self.taken.append([offset for column in columns for offset in column])
        if len(self.taken) <= self.failures:
            raise OSError("the sink's disk is full")
        return {"rows": len(self.taken[-1])}


def operator_for(topic: str, group_id: str, folder: Path, **more: Any) -> OrderedWindowOperator:
    """An operator: in catch-up, from the earliest record, a copy below `folder`; as one task of one DAG."""
    given: dict[str, Any] = {
        "task_id": "task",
        "topics": topic,
        "group_id": group_id,
        "mode": "catch_up",
        "starting_offsets": "earliest",
    }
    if not {"function", "job"} & more.keys():
        given["output"] = str(folder / "out")
    return OrderedWindowOperator(**job_words(**{**given, **more}))


@pytest.fixture
def make(orders: str, group_id: str, tmp_path: Path) -> Make:
    """Operators for `orders`."""
    return partial(operator_for, orders, group_id, tmp_path)
