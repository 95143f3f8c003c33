"""What a reader of a plan is handed, through the package's own door to files."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ordered_ops.core.plan import WindowPlan
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.spark.stage import stage_window
from tests.oracle.journal import DeliveredRow

_COLUMNS = ["topic", "partition", "offset", "timestamp", "late"]


def staged_rows(
    plan: WindowPlan, settings: ClientSettings, folder: str | os.PathLike[str]
) -> list[DeliveredRow]:
    """The rows of a plan in the order of its files, as `stage_window` writes them; the stage is removed."""
    output = stage_window(plan, settings, folder)
    rows: list[DeliveredRow] = []
    names = sorted(name for name in os.listdir(output.stage_path) if name.endswith(".parquet"))
    for name in names:
        table = pq.read_table(os.path.join(output.stage_path, name), columns=_COLUMNS)
        columns = [
            column.cast(pa.int64()) if column.type == pa.timestamp("ms", "UTC") else column
            for column in table.select(_COLUMNS).columns
        ]
        rows += list(zip(*(column.to_pylist() for column in columns), strict=True))
    output.discard()
    return rows
