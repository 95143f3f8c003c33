"""What a reader of a plan is handed: through the package's door to files, or as it comes from the reader."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ordered_ops import ClientSettings, WindowPlan, stage_window
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.ordered.records.columns import judged, partition_of
from kafka_ordered_ops.ordered.records.pieces import pieces_of
from tests.support.oracle.journal import DeliveredRow

_COLUMNS = ["topic", "partition", "offset", "timestamp", "late"]


def staged_rows(
    plan: WindowPlan,
    settings: ClientSettings,
    folder: str | os.PathLike[str],
    *,
    stall_timeout_s: float = 60,
) -> list[DeliveredRow]:
    """The rows of a plan in the order of its files, as `stage_window` writes them; the stage is removed."""
    output = stage_window(plan, settings, folder, stall_timeout_s=stall_timeout_s)
    rows: list[DeliveredRow] = []
    names = sorted(name for name in os.listdir(output.stage_path) if name.endswith(".parquet"))
    for name in names:
        rows += _rows_of(pq.read_table(os.path.join(output.stage_path, name), columns=_COLUMNS))
    output.discard()
    return rows


def quick_rows(
    plan: WindowPlan, settings: ClientSettings, *, stall_timeout_s: float = 60
) -> list[DeliveredRow]:
    """The same rows without the files, put in order here."""
    pieces = {piece.tp: piece for piece in pieces_of([plan])}
    wanted = {tp: piece.wanted for tp, piece in pieces.items()}
    rows: list[DeliveredRow] = []
    with open_reader(
        settings, plan.group_id, plan.isolation, wanted, stall_timeout_s=stall_timeout_s
    ) as reader:
        for batch in reader.batches():
            if batch.num_rows:
                flagged, _ = judged(batch, pieces[partition_of(batch)])
                rows += _rows_of(pa.Table.from_batches([flagged]))
    return sorted(rows, key=lambda row: (row[3], *row[:3]))


def _rows_of(table: pa.Table) -> list[DeliveredRow]:
    columns = [
        column.cast(pa.int64()) if column.type == pa.timestamp("ms", "UTC") else column
        for column in table.select(_COLUMNS).columns
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
