"""What a table requires is known before Kafka's commit: values to the leaves, columns to the leaves, names, and its stage."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import ConfigError, SinkError, Table, WindowPlan
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.spark import TableSink
from kafka_ordered_ops.spark.write.table_output import TableOutput
from tests.support.spark_support import part_of, plan_of, spark
from tests.support.tables_support import CATALOG, Lake, lake_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(600)]

FORMATS = pytest.mark.parametrize(
    "format_", [pytest.param("delta", marks=pytest.mark.long), "iceberg"]
)


def _modes(daily: str) -> pytest.MarkDecorator:
    """Every mode, one of them every day."""
    return pytest.mark.parametrize(
        "mode",
        [
            pytest.param(mode, marks=() if mode == daily else pytest.mark.long)
            for mode in ("append", "replace", "merge")
        ],
    )


MODES = _modes("replace")


def _plan(window_id: str = "w", *, attempt: int = 1) -> WindowPlan:
    return plan_of(
        [part_of("orders", 0, OffsetSet.of((0, 9)))], window_id=window_id, attempt=attempt
    )


def _make(
    spark: SparkSession, format_: str, folder: Path, mode: str, columns: str, **more: Any
) -> tuple[Lake, TableSink]:
    """A table with a key `id`, and its sink."""
    given: dict[str, Any] = {"partitions": "", **more}
    lake = Lake.make(
        spark,
        format_,
        folder,
        mode=mode,
        columns=f"id bigint, {columns}, window_id string",
        **given,
    )
    return lake, lake.sink_for(mode, keys=["id"] if mode == "merge" else ())


#: A column with something required in it; a good value, and one that the table refuses; which rule that is.
_NESTED = {
    "struct": (
        "struct<n: int NOT NULL>",
        "named_struct('n', 1)",
        "named_struct('n', int(null))",
        "c.n",
    ),
    "in a struct": (
        "struct<s: struct<n: int NOT NULL>>",
        "named_struct('s', named_struct('n', int(null)))",
        "named_struct('s', named_struct('n', int(null)))",
        "c.s.n",
    ),
    "array": (
        "array<struct<n: int NOT NULL, `o p`: string>>",
        "array(named_struct('n', 1, 'o p', 'x'), null)",
        "array(named_struct('n', 1, 'o p', 'x'), named_struct('n', int(null), 'o p', 'x'))",
        "c.element.n",
    ),
    "map": (
        "map<string, array<struct<n: int NOT NULL>>>",
        "map('a', array(named_struct('n', 1)), 'b', null)",
        "map('a', array(named_struct('n', int(null))))",
        "c.value.element.n",
    ),
}
_NESTED["in a struct"] = (
    _NESTED["in a struct"][0],
    "named_struct('s', named_struct('n', 2))",
    *_NESTED["in a struct"][2:],
)


@_modes("append")
@pytest.mark.parametrize(
    "where", ["array", *(pytest.param(k, marks=pytest.mark.long) for k in _NESTED if k != "array")]
)
def test_a_null_that_the_table_refuses_is_found_before_the_commit(
    lake_spark: SparkSession, tmp_path: Path, mode: str, where: str
) -> None:
    """At any depth, and in every mode with the same error; what is null above it is fine. Nothing is left in the stage."""
    kind, good, bad, path = _NESTED[where]
    lake, sink = _make(lake_spark, "iceberg", tmp_path, mode, f"c {kind}, r string NOT NULL")
    with pytest.raises(
        SinkError, match=rf"refuses at least one row: {path} NOT NULL\. Nothing was committed"
    ) as told:
        sink.write(
            lake_spark.sql(f"SELECT 1L id, {good} c, 'r' r UNION ALL SELECT 2L, {bad}, 'r'"),
            _plan(),
        )
    assert type(told.value) is SinkError
    with pytest.raises(
        SinkError, match=r"refuses at least one row: r NOT NULL\. Nothing was committed"
    ):
        sink.write(lake_spark.sql(f"SELECT id, {good} c, string(null) r FROM range(2)"), _plan())
    assert lake.staged_count() == 0
    rows = lake_spark.sql(f"SELECT 1L id, {good} c, 'r' r UNION ALL SELECT 2L, null, 'r'")
    sink.write(rows, _plan()).publish()
    shown = lake_spark.sql(f"SELECT id, c IS NULL, window_id FROM {lake.table} ORDER BY id")
    assert [tuple(row) for row in shown.collect()] == [(1, False, "w"), (2, True, "w")]


@MODES
def test_fields_are_compared_to_the_leaves(
    lake_spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Missing ones, unknown ones and other kinds are named by their paths; another order is fine."""
    columns = "s struct<a: int, b: string>, l array<struct<a: int>>, m map<string, struct<a: int>>"
    lake, sink = _make(lake_spark, "iceberg", tmp_path, mode, columns)
    good = {
        "id": "1L id",
        "s": "named_struct('b', 'x', 'A', 1) s",
        "l": "array(named_struct('a', 1)) l",
        "m": "map('k', named_struct('a', 1)) m",
    }
    cases = {
        r"s\.b is missing": {"s": "named_struct('a', 1) s"},
        r"s\.c is not in the table": {"s": "named_struct('a', 1, 'b', 'x', 'c', 3) s"},
        r"l\.element\.b is not in the table": {"l": "array(named_struct('a', 1, 'b', 2)) l"},
        r"m\.value\.a is missing. m\.value\.b is not": {"m": "map('k', named_struct('b', 1)) m"},
        r"l is string instead of array<struct<a:int>>": {"l": "'x' l"},
        r"does not fit .*`id`.*STRING.*BIGINT": {"id": "'x' id"},
    }
    for told, changed in cases.items():
        with pytest.raises(ConfigError, match=told):
            sink.write(lake_spark.sql(f"SELECT {', '.join({**good, **changed}.values())}"), _plan())
    assert lake.staged_count() == 0
    sink.write(lake_spark.sql(f"SELECT {', '.join(good.values())}"), _plan()).publish()
    [row] = lake_spark.table(lake.table).collect()
    assert (row.s.a, row.s.b, row.l[0].a, row.m["k"].a) == (1, "x", 1, 1)


@FORMATS
def test_a_table_of_the_user_s_own_is_not_taken_for_the_stage(
    lake_spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    """It has the staging table's name and was created by somebody else: refused before anything, and left as it is."""
    lake, sink = _make(lake_spark, format_, tmp_path, "append", "v string")
    lake_spark.sql(f"CREATE TABLE {lake.staging} USING {format_} AS SELECT 'precious' mine")
    for mode, keys in (("replace", ()), ("merge", ("id",))):
        with pytest.raises(ConfigError, match=r"__koo_staging.*did not create"):
            lake.sink_for(mode, keys=keys)
    assert [row.mine for row in lake_spark.table(lake.staging).collect()] == ["precious"]
    if format_ == "iceberg":
        # Its rows wait in a branch.
        sink.write(lake_spark.sql("SELECT 1L id, 'x' v"), _plan()).publish()
        return
    with pytest.raises(ConfigError, match="did not create"):
        lake.sink_for("append")


def test_columns_that_cannot_be_told_apart_are_refused(
    lake_spark: SparkSession, tmp_path: Path
) -> None:
    """By their case in a session that does not look at it; and a staging table as the table itself."""
    session = lake_spark.newSession()
    for key, value in {**lake_spark.conf.getAll, "spark.sql.caseSensitive": "true"}.items():
        if session.conf.isModifiable(key) or key.startswith("spark.sql.catalog."):
            session.conf.set(key, value)
    lake, sink = _make(session, "iceberg", tmp_path, "replace", "v string, V string")
    with pytest.raises(ConfigError, match="differ from others by their case only"):
        TableSink(lake_spark, lake.table, "replace")
    sink.write(session.sql("SELECT 1L id, 'x' v, 'X' V"), _plan()).publish()
    assert session.table(lake.table).select("v", "V").collect() == [("x", "X")]
    with pytest.raises(ConfigError, match=r"has the column _koo_deleted, whose name"):
        TableSink(session, lake.staging, "replace")


@MODES
def test_what_a_table_is_partitioned_by_may_change(
    lake_spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Files of before hold rows of several windows: a window of theirs is replaced row by row, not file by file."""
    lake, _ = _make(lake_spark, "iceberg", tmp_path, mode, "`v w` string, s struct<`a b`: int>")
    lake_spark.sql(
        f"INSERT INTO {lake.table} SELECT /*+ COALESCE(1) */ id, 'old', null, if(id < 2, 'w', 'other') FROM range(4)"
    )
    lake_spark.sql(f"ALTER TABLE {lake.table} ADD PARTITION FIELD window_id")
    rows = lake_spark.sql("SELECT id, 'new' `v w`, named_struct('a b', 1) s FROM range(1, 3)")
    sink = lake.sink_for(mode, keys=["id"] if mode == "merge" else ())
    for attempt in (1,) if mode == "append" else (1, 2):
        plan = replace(_plan("w", attempt=attempt), replaces=("old",), allow_fewer=True)
        sink.write(rows, plan).publish()
    found = [
        (row[0], row[1], row[3])
        for row in lake_spark.table(lake.table).orderBy("id", "v w").collect()
    ]
    news = [(1, "new", "w"), (2, "new", "w")]
    olds = [(0, "old", "w"), (1, "old", "w"), (2, "old", "other"), (3, "old", "other")]
    wanted = {"append": news + olds, "replace": news + olds[2:], "merge": [olds[0], *news, olds[3]]}
    assert sorted(found) == sorted(wanted[mode])


@MODES
def test_a_short_name_is_the_table_that_the_session_means(
    lake_spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """After USE: with one part or two; the ledger has the full name, so in another schema it is another table."""
    lake, _ = _make(lake_spark, "iceberg", tmp_path, mode, "v string")
    keys = ["id"] if mode == "merge" else ()
    name = lake.table.rpartition(".")[2]
    rows = lake_spark.sql("SELECT 1L id, 'x' v")
    lake_spark.sql(f"USE {CATALOG}.db")
    try:
        short = TableSink(lake_spark, name, mode, keys=keys)
        output = short.write(rows, _plan())
        assert Table(name, mode, keys).may_be(output.entry.target)
        two = TableSink(lake_spark, f"db.{name}", mode, keys=keys)
        assert short.target.name == two.target.name == f"`{CATALOG}`.db.{name}"
        found = two.found(output.to_json())
        assert found is not None
        found.publish()
        lake_spark.sql(f"CREATE TEMPORARY VIEW {name} AS SELECT 1 a")
        with pytest.raises(ConfigError, match="neither a Delta nor an Iceberg table"):
            TableSink(lake_spark, name, mode, keys=keys)
        lake_spark.sql(f"DROP VIEW {name}")
        lake_spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.elsewhere")
        lake_spark.sql(f"USE {CATALOG}.elsewhere")
        with pytest.raises(ConfigError, match="there is no table"):
            TableSink(lake_spark, name, mode, keys=keys)
        lake_spark.sql(f"CREATE TABLE {name} (id bigint, v string, window_id string) USING iceberg")
        assert TableSink(lake_spark, name, mode, keys=keys).found(output.to_json()) is None
    finally:
        lake_spark.sql("USE spark_catalog.default")
    [row] = lake_spark.table(lake.table).collect()
    assert (row.id, row.v, row.window_id) == (1, "x", "w")


@MODES
def test_another_publisher_may_end_between_two_looks(
    lake_spark: SparkSession, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the look at the table's commits, and before that at the stage: the window is there, and nothing is called lost."""
    lake, sink = _make(lake_spark, "iceberg", tmp_path, mode, "v string")
    rows = lake_spark.sql("SELECT 1L id, 'x' v")
    for number, call in enumerate(("check_ready", "publish", "check_place")):
        output = sink.write(rows, _plan(f"w{number}"))
        other = sink.found(output.to_json())
        assert other is not None
        look, looks = type(output.format).look, list[int]()

        def looked(
            *given: Any,
            other: TableOutput = other,
            look: Any = look,
            looks: list[int] = looks,
            **more: Any,
        ) -> Any:
            state = look(*given, **more)
            looks.append(1)
            if len(looks) == 1:
                other.publish()
            return state

        with monkeypatch.context() as patch:
            patch.setattr(type(output.format), "look", looked)
            if call == "check_place":
                output.check_place(is_first=True)
            else:
                getattr(output, call)()
        output.publish()
    assert lake_spark.table(lake.table).count() == (1 if mode == "merge" else 3)


def test_a_table_that_lets_two_writers_overlook_each_other_is_warned_of(
    lake_spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its MERGE is validated against deletions only."""
    with caplog.at_level(logging.WARNING):
        properties = "'write.merge.isolation-level'='snapshot'"
        _make(lake_spark, "iceberg", tmp_path, "merge", "v string", properties=properties)
    assert any("isolation-level=snapshot" in one.getMessage() for one in caplog.records)


@MODES
@FORMATS
def test_new_types_and_odd_names_wait_as_they_are(
    lake_spark: SparkSession, tmp_path: Path, format_: str, mode: str
) -> None:
    """Variants, which Iceberg has from version 3 on; names with blanks and backticks within a struct."""
    properties = (
        "'format-version'='3'" if format_ == "iceberg" else "'delta.columnMapping.mode'='name'"
    )
    columns = "j variant, s struct<`a b`: int, `c``d`: string>"
    lake, sink = _make(lake_spark, format_, tmp_path, mode, columns, properties=properties)
    rows = lake_spark.sql(
        """SELECT id, parse_json(concat('{"a":', id, '}')) j, named_struct('a b', 1, 'c`d', 'x') s FROM range(2)"""
    )
    sink.write(rows, _plan()).publish()
    if mode != "append":
        sink.write(rows.where("id > 0"), replace(_plan(attempt=2), allow_fewer=True)).publish()
    shown = lake_spark.sql(
        f"SELECT id, variant_get(j, '$.a', 'int'), s.`a b`, window_id FROM {lake.table} ORDER BY id"
    )
    wanted = [(n, n, 1, "w") for n in range(2)]
    assert [tuple(row) for row in shown.collect()] == (wanted[1:] if mode == "replace" else wanted)


@pytest.mark.long
@MODES
def test_lengths_are_known_before_the_commit(
    lake_spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Of Delta's char and varchar, which count blanks at the end."""
    lake, sink = _make(lake_spark, "delta", tmp_path, mode, "v varchar(3)")
    for value in ("abcd", "abc  "):
        with pytest.raises(SinkError, match=r"refuses at least one row: v varchar\(3\)"):
            sink.write(
                lake_spark.sql(f"SELECT 1L id, '{value}' v UNION ALL SELECT 2L, 'x'"), _plan()
            )
    sink.write(lake_spark.sql("SELECT 1L id, 'ab ' v UNION ALL SELECT 2L, null"), _plan()).publish()
    shown = lake_spark.sql(f"SELECT id, v FROM {lake.table} ORDER BY id").collect()
    assert [tuple(row) for row in shown] == [(1, "ab "), (2, None)]


@pytest.mark.long
def test_a_field_that_delta_s_merge_cannot_fill_is_refused(
    lake_spark: SparkSession, tmp_path: Path
) -> None:
    """One that is NOT NULL within a column: staged and committed, its rows could never be merged. Other modes take them."""
    columns = "r struct<n: int NOT NULL>"
    with pytest.raises(ConfigError, match=r"r\.n, which is NOT NULL within a column.*'replace'"):
        _make(lake_spark, "delta", tmp_path, "merge", columns)
    lake, sink = _make(lake_spark, "delta", tmp_path / "other", "replace", columns)
    sink.write(lake_spark.sql("SELECT 1L id, named_struct('n', 2) r"), _plan()).publish()
    assert [row.n for row in lake_spark.sql(f"SELECT r.n FROM {lake.table}").collect()] == [2]


@pytest.fixture(autouse=True)
def _no_schema_is_left(lake_spark: SparkSession) -> Iterator[None]:
    yield
    assert lake_spark.catalog.currentCatalog() == "spark_catalog"
