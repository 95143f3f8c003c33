"""Records in total order, however little memory there is for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import SpillError
from kafka_ordered_ops.core.release import held
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA
from kafka_ordered_ops.output.writing.in_order import in_total_order
from kafka_ordered_ops.output.writing.stage_files import Batch

#: (topic, partition) and the timestamps of its records, by offset.
Logs = dict[tuple[str, int], list[int]]

#: Few times, so that many are equal, and those at the ends of 64 bits, which no calendar has.
_TIMES = st.sampled_from([INT64_MIN, -1, 0, 5, 6, 7, INT64_MAX])
_LOGS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b", "B", "a.a"]), st.integers(0, 2)),
    st.lists(_TIMES, min_size=1, max_size=30),
    max_size=5,
)


def batches_of(logs: Logs, size: int, seed: int) -> Iterator[Batch]:
    """The logs as a reader gives them: batches of one partition, partitions in any turn."""
    left = dict.fromkeys(logs, 0)
    chance = random.Random(seed)
    while left:
        tp = chance.choice(sorted(left))
        start, times = left[tp], logs[tp][left[tp] : left[tp] + size]
        rows = [
            {
                "topic": tp[0],
                "partition": tp[1],
                "offset": start + n,
                "timestamp": time,
                "value": b"v" * 10,
                "late": False,
            }
            for n, time in enumerate(times)
        ]
        yield Batch(_batch(rows), np.zeros(len(rows), dtype=np.int64))
        left[tp] = start + len(times)
        if left[tp] == len(logs[tp]):
            del left[tp]


def _batch(rows: list[dict[str, object]]) -> pa.RecordBatch:
    columns = []
    for field in STAGE_SCHEMA:
        values = [row.get(field.name) for row in rows]
        is_time = pa.types.is_timestamp(field.type)
        made = pa.array(values, pa.int64() if is_time else field.type)
        columns.append(made.view(field.type) if is_time else made)
    return pa.RecordBatch.from_arrays(columns, schema=STAGE_SCHEMA)


def order_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, str, int, int]]:
    """(timestamp, topic, partition, offset) of all rows, as they come."""
    found = []
    for batch in batches:
        assert batch.schema == STAGE_SCHEMA
        assert batch.num_rows
        times = batch.column("timestamp").view(pa.int64()).to_pylist()
        rest = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        found += list(zip(times, *rest, strict=True))
    return found


@pytest.mark.slow
@given(
    logs=_LOGS,
    size=st.integers(1, 7),
    seed=st.integers(0, 99),
    run=st.sampled_from([1, 400, 1 << 30]),
)
def test_the_order_is_total_whatever_fits_memory(
    tmp_path_factory: pytest.TempPathFactory, logs: Logs, size: int, seed: int, run: int
) -> None:
    """Sorted runs in files, in several rounds of merging, give the rows that sorting all of them gives."""
    expected = sorted(
        (time, topic, partition, offset)
        for (topic, partition), times in logs.items()
        for offset, time in enumerate(times)
    )
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held, "SPILL_BATCH_BYTES", 300)
        patch.setattr(held, "SPILLED_RUNS_MAX", 2)
        patch.setattr(held, "RUNS_MERGED", 2)
        found = order_of(
            in_total_order(batches_of(logs, size, seed), lambda: str(folder), held_bytes_max=run)
        )
    assert found == expected
    assert run != 1 << 30 or not list(folder.iterdir())


def test_what_fits_memory_makes_no_folder() -> None:
    """The folder is asked for when the first run is written, and not before."""
    logs: Logs = {("t", 0): [3, 1, 2]}
    found = order_of(in_total_order(batches_of(logs, 2, 0), lambda: pytest.fail("asked")))
    assert [one[0] for one in found] == [1, 2, 3]


def test_a_folder_that_fails_is_a_named_error(tmp_path: Path) -> None:
    """A full or missing disk is told as such."""
    logs: Logs = {("t", 0): [3, 1, 2]}
    batches = in_total_order(
        batches_of(logs, 1, 0), lambda: str(tmp_path / "gone"), held_bytes_max=1
    )
    with pytest.raises(SpillError, match="cannot be written"):
        next(batches)
