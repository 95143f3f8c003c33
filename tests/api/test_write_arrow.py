"""A result of any library with Arrow data, written by `OpenWindow.write` without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import ConfigError, Folder, OpenWindow, OrderedWindows, Window
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.spark_support import spark
from tests.support.windows_support import BASE_MS, at

__all__ = ["spark"]  # a fixture

#: Of the records before second 25, by time.
IN_ORDER = [0, 3, 1, 5, 2]


@pytest.fixture
def windows() -> Iterator[OrderedWindows]:
    """A fresh group, and a topic of one partition that is out of order."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for second in (0, 10, 20, 5, 30, 15):
            kafka.produce("orders", value=b"x", timestamp_ms=BASE_MS + second * 1000)
        with OrderedWindows(kafka.bootstrap, "g") as made:
            yield made


def asked() -> Window:
    """Five of the six records."""
    return Window("orders", cutoff=at(25), starting_offsets="earliest")


def written(windows: OrderedWindows, root: Path, result: object) -> pa.Table:
    """What readers see of a window whose function writes a result."""
    done = windows.run(asked(), root, job=lambda window: window.write(result))
    return pq.read_table(str(done.output))


def _duckdb(window: OpenWindow) -> Any:
    orders = window.to_arrow()
    return duckdb.from_arrow(orders).filter("value is not null")


RESULTS: dict[str, Callable[[OpenWindow], Any]] = {
    "pyarrow": lambda window: window.to_arrow(),
    "reader": lambda window: pa.table(window).to_reader(max_chunksize=2),
    "the window": lambda window: window,
    "polars": lambda window: pl.from_arrow(window),
    "pandas": lambda window: window.to_arrow().to_pandas(),
    "duckdb": _duckdb,
}


@pytest.mark.parametrize("library", RESULTS)
def test_a_result_is_hidden_until_the_commit_and_then_shows(
    windows: OrderedWindows, tmp_path: Path, library: str
) -> None:
    """In its own order, as a copy of the records would be; a failed attempt leaves nothing to see."""

    def fails(window: OpenWindow) -> None:
        window.write(RESULTS[library](window))
        assert not [*tmp_path.glob("out/window_id=*")]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        windows.run(asked(), tmp_path / "out", job=fails)
    assert not [*tmp_path.glob("out/window_id=*")]
    done = windows.run(
        asked(), tmp_path / "out", job=lambda window: window.write(RESULTS[library](window))
    )
    again = windows.run(asked(), tmp_path / "out", job=lambda _: 1 / 0)
    assert (done.records, done.status, again.ran) == (5, WindowStatus.PUBLISHED, False)
    table = pq.read_table(str(done.output))
    assert table["offset"].to_pylist() == IN_ORDER
    assert table["key"].type == pa.binary()
    assert [row["value"] for row in table.to_pylist()] == [b"x"] * 5


def test_a_result_without_rows_has_its_columns(windows: OrderedWindows, tmp_path: Path) -> None:
    """One file that readers take; of records, also those columns whose values told no type."""
    empty = pa.table({"n": pa.array([], pa.int32()), "value": pa.nulls(0)})
    table = written(windows, tmp_path, empty)
    assert table.num_rows == 0
    assert table.schema.field("n").type == pa.int32()
    assert table.schema.field("value").type == pa.binary()


def test_a_long_stream_is_several_files_in_order(windows: OrderedWindows, tmp_path: Path) -> None:
    """Each of a bounded size, whatever the sizes of the stream's batches."""
    total, each = 1_200_000, 700_001
    numbers = np.arange(total, dtype=np.int32)
    batches = [
        pa.record_batch({"n": numbers[start : start + each]}) for start in range(0, total, each)
    ]
    stream = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    done = windows.run(asked(), tmp_path, job=lambda window: window.write(stream))
    files = sorted(Path(str(done.output)).glob("part-*.parquet"))
    sizes = [pq.read_metadata(file).num_rows for file in files]
    assert (sum(sizes), max(sizes)) == (total, 500_000)
    read = np.concatenate([pq.read_table(file)["n"].to_numpy() for file in files])
    assert np.array_equal(read, numbers)


_NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)

#: Columns that some library makes, with the type in which they are written.
PLAIN: dict[str, tuple[Any, pa.DataType]] = {
    "nanoseconds": (pa.array([_NOON], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC")),
    "category": (pa.array(["a"]).dictionary_encode(), pa.string()),
    "view": (pa.array(["a"], pa.string_view()), pa.string()),
    "bytes": (pa.array([b"a"], pa.binary_view()), pa.binary()),
    "large": (pa.array(["a"], pa.large_string()), pa.large_string()),
    "half": (pa.array(np.array([0.5], np.float16)), pa.float32()),
    "price": (pa.array([Decimal("1.25")], pa.decimal128(38, 2)), pa.decimal128(38, 2)),
    "nested": (
        pa.array([{"t": [_NOON]}], pa.struct([("t", pa.list_(pa.timestamp("ns", "UTC")))])),
        pa.struct([("t", pa.list_(pa.timestamp("us", "UTC")))]),
    ),
}


def test_types_of_libraries_are_written_as_readers_know_them(
    windows: OrderedWindows, tmp_path: Path
) -> None:
    """With the same values; the index of pandas is no column, and the window's id is in the folder's name."""
    given = pa.table({name: column for name, (column, _) in PLAIN.items()})
    given = given.append_column("__index_level_0__", pa.array([7]))
    given = given.append_column("window_id", pa.array(["w"]))
    done = windows.run(asked(), tmp_path, job=lambda window: window.write(given))
    [file] = Path(str(done.output)).glob("part-*.parquet")
    with pq.ParquetFile(file) as parquet:
        found = parquet.read()
    for name, (column, kind) in PLAIN.items():
        assert found.schema.field(name).type == kind, name
        assert found[name].to_pylist() == column.to_pylist(), name
    assert found.column_names == [*PLAIN]


@pytest.mark.spark
def test_spark_reads_what_another_library_wrote(
    windows: OrderedWindows, tmp_path: Path, spark: Any
) -> None:
    """Each of the types above."""
    given = pa.table({name: column for name, (column, _) in PLAIN.items()})
    done = windows.run(asked(), tmp_path, job=lambda window: window.write(given))
    [row] = spark.read.parquet(str(done.output)).collect()
    assert (row["category"], row["half"], row["price"]) == ("a", 0.5, Decimal("1.25"))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (pa.table({"a": pa.array([timedelta(1)])}), "a is duration"),
        (pa.table({"a": pa.nulls(1)}), "a is null"),
        (pa.table({"a": pa.array([None], pa.time64("us"))}), "a is time64"),
        (pa.table({"a": pa.array([None], pa.decimal256(50))}), "a is decimal256"),
        (pa.table({"a": pa.array([[None]], pa.list_(pa.null()))}), "a is list"),
        (pa.table({"Total": [1], "total": [2]}), "total is there twice"),
        (pa.table({"DATE": [1]}), "DATE is a column that partition_by adds"),
        (pa.table({"window_id": ["w"]}), "no columns"),
    ],
)
def test_columns_that_readers_could_not_take_are_refused(
    windows: OrderedWindows, tmp_path: Path, result: pa.Table, words: str
) -> None:
    """By name, before anything is committed."""
    with pytest.raises(ConfigError, match=words):
        windows.run(
            asked(),
            Folder(tmp_path, partition_by="date"),
            job=lambda one: one.write(result),
            window_id="w",
        )
    assert windows.show("w").status is WindowStatus.PLANNED


@pytest.mark.parametrize("result", [[1], None, iter([]), pd.DataFrame, pl.LazyFrame({"a": [1]})])
def test_what_is_no_result_is_a_programmer_s_error(
    windows: OrderedWindows, tmp_path: Path, result: Any
) -> None:
    """Named with what is taken instead."""
    with pytest.raises(TypeError, match="write takes a Spark DataFrame"):
        windows.run(asked(), tmp_path, job=lambda window: window.write(result))
