"""Columns and fields that a table does not have: added with the rows, for every format and mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    JobFailedError,
    OrderedWindows,
    Table,
    WindowPlan,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.decoding import Json
from kafka_ordered_ops.spark import TableSink
from kafka_ordered_ops.spark.write.table_output import TableOutput
from tests.support.both_worlds import broker as broker
from tests.support.spark_support import part_of, plan_of, spark
from tests.support.tables_support import Lake, lake_spark
from tests.support.worlds import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(600)]

#: One of them every day.
EACH = pytest.mark.parametrize(
    ("format_", "mode"),
    [
        pytest.param(one, mode, marks=() if mode == "append" else pytest.mark.long)
        for one in ("delta", "iceberg")
        for mode in ("append", "replace", "merge")
    ],
)

_COLUMNS = (
    "id bigint, c struct<a: int, l: array<struct<x: int>>, m: map<string, struct<x: int>>>, "
    "window_id string"
)
_OLD = "named_struct('a', 1, 'l', array(named_struct('x', 1)), 'm', map('k', named_struct('x', 1)))"
#: Other names in each struct, in another order.
_NEW = (
    "named_struct('b', named_struct('n', 'deep'), 'a', 2, "
    "'l', array(named_struct('y', 'why', 'x', 2)), 'm', map('k', named_struct('y', 3L)))"
)


def _plan(window_id: str, attempt: int = 1) -> WindowPlan:
    part = part_of("orders", 0, OffsetSet.of((0, 9)))
    return plan_of([part], window_id=window_id, attempt=attempt)


def _sink(lake: Lake, evolution: str = "add") -> TableSink:
    keys = ["id"] if lake.mode == "merge" else ()
    return lake.sink_for(lake.mode, keys=keys, schema_evolution=evolution)


def _staged(lake: Lake, window_id: str, columns: str, evolution: str = "add") -> TableOutput:
    frame = lake.spark.sql(f"SELECT {columns}")
    return _sink(lake, evolution).write(frame, _plan(window_id))


def _made(lake: Lake, output: TableOutput) -> None:
    """Publishes from the JSON in the ledger, as a new process does."""
    found = _sink(lake).found(json.loads(json.dumps(output.to_json())))
    assert found is not None
    found.check_ready()
    found.publish()
    found.publish()


def _rows(lake: Lake) -> list[dict[str, Any]]:
    rows = lake.spark.sql(f"SELECT * EXCEPT (window_id) FROM {lake.table} ORDER BY id").collect()
    return [row.asDict(recursive=True) for row in rows]


@EACH
def test_columns_and_fields_come_with_the_rows(
    lake_spark: SparkSession, tmp_path: Path, format_: str, mode: str
) -> None:
    """Down to structs in lists and maps; older rows have nulls, and so has a window that was staged before."""
    lake = Lake.make(lake_spark, format_, tmp_path, mode=mode, columns=_COLUMNS, partitions="")
    before = _staged(lake, "before", f"1L AS id, {_OLD} AS c")
    output = _staged(lake, "w", f"2L AS id, {_NEW} AS c, 'x' AS flat")
    columns = lake.spark.table(lake.table).columns
    # Iceberg's writer commits a schema before the rows.
    assert ("flat" in columns) is (format_ == "iceberg")
    _made(lake, output)
    _made(lake, before)
    old = {
        "a": 1,
        "l": [{"x": 1, "y": None}],
        "m": {"k": {"x": 1, "y": None}},
        "b": None,
    }
    new = {
        "a": 2,
        "l": [{"x": 2, "y": "why"}],
        "m": {"k": {"x": None, "y": 3}},
        "b": {"n": "deep"},
    }
    assert _rows(lake) == [
        {"id": 1, "c": old, "flat": None},
        {"id": 2, "c": new, "flat": "x"},
    ]
    assert lake.staged_count() == 0
    if format_ == "delta":
        history = lake.spark.sql(f"DESCRIBE HISTORY {lake.table}")
        assert history.where("operation LIKE '%COLUMN%'").count() == 0


@EACH
def test_a_window_that_lacks_columns_leaves_them_null(
    lake_spark: SparkSession, tmp_path: Path, format_: str, mode: str
) -> None:
    """An older schema, in a later window; a key, or what must not be null, is not left out."""
    columns = "id bigint, must string NOT NULL, may string, window_id string"
    lake = Lake.make(lake_spark, format_, tmp_path, mode=mode, columns=columns, partitions="")
    for lacks in ["1L AS id, 'x' AS may", *(["'x' AS must"] if mode == "merge" else [])]:
        with pytest.raises(ConfigError, match=r"Missing: (must|id)"):
            _staged(lake, "w", lacks)
    _made(lake, _staged(lake, "w", "1L AS id, 'x' AS must"))
    assert _rows(lake) == [{"id": 1, "must": "x", "may": None}]


@pytest.mark.parametrize("format_", [pytest.param("delta", marks=pytest.mark.long), "iceberg"])
def test_types_never_change(lake_spark: SparkSession, tmp_path: Path, format_: str) -> None:
    """A value of another type is refused, or cast if it fits, as without new columns; nothing is added for it."""
    columns = "id int, c struct<n: int>, window_id string"
    lake = Lake.make(lake_spark, format_, tmp_path, mode="append", columns=columns, partitions="")
    good = "named_struct('n', 1)"
    for id_, c in ("'x'", good), ("1", "named_struct('n', 'x')"), ("1", "1"):
        # Delta finds out by the value.
        with pytest.raises((ConfigError, JobFailedError)):
            _staged(lake, "w", f"{id_} AS id, {c} AS c, 1 AS added")
    with pytest.raises(ConfigError, match="without a type"):
        _staged(lake, "w", f"1 AS id, {good} AS c, null AS added")
    _made(lake, _staged(lake, "w", "2L AS id, named_struct('n', 2L) AS c"))
    assert _rows(lake) == [{"id": 2, "c": {"n": 2}}]
    assert lake.spark.table(lake.table).schema["id"].dataType.simpleString() == "int"


@pytest.mark.long
def test_columns_of_an_abandoned_window_are_not_added(
    lake_spark: SparkSession, tmp_path: Path
) -> None:
    """In Delta, where a stage keeps them: neither by a window without them, nor by one that adds others."""
    columns = "id bigint, c struct<a: int>, window_id string"
    lake = Lake.make(lake_spark, "delta", tmp_path, columns=columns, partitions="")
    abandoned = "1L AS id, named_struct('a', 1, 'tmp', 1) AS c, 1 AS tmp"
    _staged(lake, "abandoned", abandoned).discard()
    _made(lake, _staged(lake, "plain", "2L AS id, named_struct('a', 2) AS c", "none"))
    _made(lake, _staged(lake, "other", "3L AS id, named_struct('b', 3) AS c"))
    assert _rows(lake) == [
        {"id": 2, "c": {"a": 2, "b": None}},
        {"id": 3, "c": {"a": None, "b": 3}},
    ]
    with pytest.raises(ConfigError, match="with another type"):
        _staged(lake, "again", "4L AS id, named_struct('a', 4) AS c, 'x' AS tmp")


@pytest.mark.long
def test_two_windows_add_the_same(lake_spark: SparkSession, tmp_path: Path) -> None:
    """Staged beside one another: the second one finds the column, and adds what the first one did not have in it."""
    lake = Lake.make(
        lake_spark, "delta", tmp_path, mode="append", columns="id bigint", partitions=""
    )
    outputs = [
        _staged(lake, name, f"{number}L AS id, named_struct('{name}', {number}) AS c")
        for number, name in enumerate("ab")
    ]
    for output in outputs:
        _made(lake, output)
    rows = lake.spark.sql(f"SELECT id, c.a, c.b FROM {lake.table} ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(0, 0, None), (1, None, 1)]


_INFERRED = "json-inferred:evolve"


def _lake_of_values(spark: SparkSession, format_: str, folder: Path, *, flatten: bool) -> Lake:
    """A table with the one field of the values of the tests below."""
    columns = "id bigint, offset bigint" if flatten else "value struct<id: bigint>, offset bigint"
    return Lake.make(spark, format_, folder, mode="append", columns=columns, partitions="")


def _run(
    broker: World,
    windows: OrderedWindows,
    lake: Lake,
    number: int,
    to: Table,
    *,
    values: Json | str,
    flatten: bool,
) -> None:
    """Run the window that ends after so many seconds."""
    asked = broker.window(number + 0.5, starting_offsets=Earliest(), values=values, flatten=flatten)
    windows.run(asked, to, spark=lake.spark, window_id=f"w{number}")


def _extended_rows(lake: Lake, *, flatten: bool) -> list[tuple[Any, ...]]:
    """The rows of a table that has got a second field."""
    prefix = "" if flatten else "value."
    rows = lake.spark.sql(f"SELECT {prefix}id, {prefix}extra FROM {lake.table} ORDER BY offset")
    return [tuple(row) for row in rows.collect()]


@pytest.mark.parametrize("flatten", [pytest.param(False, marks=pytest.mark.long), True])
def test_inferred_columns_are_added(
    broker: World, lake_spark: SparkSession, tmp_path: Path, flatten: bool
) -> None:
    """With the rows of the window that has them; without `add`, the window is refused before it is claimed."""
    broker.create("orders")
    windows = OrderedWindows(broker.settings, broker.named("g"))
    lake = _lake_of_values(lake_spark, "iceberg", tmp_path, flatten=flatten)

    def run(number: int, evolution: str = "add") -> None:
        to = Table(lake.table, schema_evolution=evolution)
        _run(broker, windows, lake, number, to, values=_INFERRED, flatten=flatten)

    broker.write_content("orders", 0, [(1, None, b'{"id": 1}', ())])
    broker.write_content("orders", 0, [(2, None, b'{"id": 2, "extra": "x"}', ())])
    broker.write_content("orders", 0, [(3, None, b'{"id": 3}', ())])
    run(1, "none")
    with pytest.raises(ConfigError, match=r"extra.*Nothing was planned"):
        run(2, "none")
    assert [record.plan.window_id for record in windows.list()] == ["w1"]
    run(2)
    run(3)
    assert _extended_rows(lake, flatten=flatten) == [(1, None), (2, "x"), (3, None)]


@pytest.mark.parametrize("flatten", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("format_", [pytest.param("delta", marks=pytest.mark.long), "iceberg"])
def test_a_first_window_of_tombstones_leaves_the_columns_open(
    broker: World, lake_spark: SparkSession, tmp_path: Path, format_: str, flatten: bool
) -> None:
    """Its rows have nulls, and the next window with values decides; so does one that has no records at all."""
    broker.create("orders")
    windows = OrderedWindows(broker.settings, broker.named("g"))
    lake = _lake_of_values(lake_spark, format_, tmp_path, flatten=flatten)

    def run(number: int) -> None:
        to = Table(lake.table, schema_evolution="add")
        _run(broker, windows, lake, number, to, values=_INFERRED, flatten=flatten)

    broker.write_content("orders", 0, [(1, b"k", None, ()), (3, b"k", b'{"id": 3}', ())])
    for number in (0, 1):
        run(number)
        state = windows.state()
        assert state is not None
        assert state.columns == {}
    broker.write_content("orders", 0, [(4, b"k", b'{"id": 4, "extra": "x"}', ())])
    for number in (3, 4):
        run(number)
    assert _extended_rows(lake, flatten=flatten) == [(None, None), (3, None), (4, "x")]


def _values(*names: str) -> Json:
    fields: dict[str, pa.DataType] = {"id": pa.int64(), **dict.fromkeys(names, pa.string())}
    return Json(pa.schema(fields))


@pytest.mark.parametrize("flatten", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("format_", [pytest.param("delta", marks=pytest.mark.long), "iceberg"])
def test_windows_with_a_newer_schema_are_copied(
    broker: World, lake_spark: SparkSession, tmp_path: Path, format_: str, flatten: bool
) -> None:
    """Refused before a window is planned, unless columns are added; then an older schema leaves them null."""
    broker.create("orders")
    windows = OrderedWindows(broker.settings, broker.named("g"))
    lake = _lake_of_values(lake_spark, format_, tmp_path, flatten=flatten)
    table = Table(lake.table, schema_evolution="add")

    def run(number: int, to: Table, *names: str) -> None:
        _run(broker, windows, lake, number, to, values=_values(*names), flatten=flatten)

    for number in (1, 2, 3):
        value = b'{"id": %d, "extra": "e%d"}' % (number, number)
        broker.write_content("orders", 0, [(number, None, value, ())])
    run(1, table)
    with pytest.raises(ConfigError, match="extra"):
        run(2, Table(lake.table), "extra")
    assert [record.plan.window_id for record in windows.list()] == ["w1"]
    run(2, table, "extra")
    run(3, table)
    assert _extended_rows(lake, flatten=flatten) == [(1, None), (2, "e2"), (3, None)]
