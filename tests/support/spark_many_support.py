"""Windows in one pass: random plan lists on one log, and what reading and writing them must give."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import StagedOutput, WindowPlan
from kafka_ordered_ops.spark.read import edges, engines, order
from tests.support.spark_support import Case, Log, Row, plan_of, position
from tests.support.stages import stages_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: No broker.
NOWHERE = "127.0.0.1:1"

#: What a row of a result says: its window, the record, and whether it is late.
Told = tuple[str, Row, bool]


def told(frame: DataFrame) -> list[Told]:
    """The rows of a DataFrame, in its order."""
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS timestamp_ms").collect()
    return [(row.window_id, Row.of(row.asDict()), row.late) for row in rows]


def wanted(cases: Sequence[Case]) -> list[Told]:
    """What reading these windows together must give, in order."""
    return [
        (case.plan.window_id, row, (row.topic, row.partition, row.offset) in case.late)
        for case in cases
        for row in case.rows
    ]


def unordered(rows: Sequence[Told]) -> list[Told]:
    """The same rows in an order that does not depend on how they came."""
    return sorted(rows, key=lambda row: (row[0], position(row[1])))


def plans_of(cases: Sequence[Case]) -> list[WindowPlan]:
    """The plans to hand over."""
    return [case.plan for case in cases]


def staged_rows(output: StagedOutput) -> list[Row]:
    """The rows of a stage, file by file in the order of names."""
    rows = []
    for path in sorted(Path(output.stage_path).glob("part-*")):
        table = pq.read_table(path, partitioning=None)
        ms = table["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        rows += [Row.of(fields) for fields in table.append_column("timestamp_ms", ms).to_pylist()]
    return rows


def counted(output: StagedOutput) -> dict[str, int | None]:
    """The facts that do not depend on who wrote."""
    names = ("records", "late", "out_of_order", "timestamp_ms_min", "timestamp_ms_max")
    return {name: output.facts[name] for name in names}


def facts_of(case: Case) -> dict[str, int | None]:
    """What must be counted of a window."""
    return {
        "records": len(case.rows),
        "late": len(case.late),
        "out_of_order": case.out_of_order,
        "timestamp_ms_min": case.rows[0].timestamp_ms if case.rows else None,
        "timestamp_ms_max": case.rows[-1].timestamp_ms if case.rows else None,
    }


def left(root: Path) -> set[str]:
    """The stages below a root."""
    return {path.name for path in stages_of(root).glob("*/*")}


@pytest.fixture(scope="module")
def log(bootstrap: str) -> Log:
    """Random records with transactions and aborts in two topics."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = {f"{name}-{uuid.uuid4().hex}": partitions for name, partitions in (("a", 3), ("b", 1))}
    new = [NewTopic(*pair, 1, config={"retention.ms": "-1"}) for pair in topics.items()]
    for future in admin.create_topics(new).values():
        future.result(30)
    return Log.fill(bootstrap, topics, random.Random(17))


@pytest.fixture(scope="module")
def cases(log: Log) -> list[Case]:
    """Five windows; the third is empty."""
    found = log.cases(random.Random(5), windows=4)
    return [*found[:2], log.case(plan_of([], window_id="empty")), *found[2:]]


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of these tests is read by several tasks, and put in order by several."""
    monkeypatch.setattr(engines, "SLICE_OFFSETS_MIN", 50)
    monkeypatch.setattr(order, "ONE_TASK_OFFSETS_MAX", 0)
    monkeypatch.setattr(edges, "RUN_STEP_OFFSETS", 2)
    monkeypatch.setattr(order, "BUCKET_OFFSETS", 150)
