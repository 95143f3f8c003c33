"""Tables that people have: any partitions and columns, and what each mode does to them."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import (
    ClientSettings,
    ConfigError,
    OutputOwnedError,
    SinkError,
    Table,
    WindowPlan,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.delivery.current import windows_of
from kafka_ordered_ops.spark.applications.protocol import Submission
from kafka_ordered_ops.spark.write.table_facts import TableFacts
from kafka_ordered_ops.spark.write.table_output import TableOutput
from kafka_ordered_ops.spark.write.table_windows import found_in_table
from kafka_ordered_ops.spark.write.write_session import session_with
from kafka_ordered_ops.spec.table import TableLocation
from tests.support.spark_support import part_of, plan_of, spark
from tests.support.tables_support import CATALOG, Lake, lake_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(600)]

#: Partitioned by something of the users' own, or not at all; and no column of ours.
_ORDERS = "id bigint, `what is it` string, timestamp timestamp"
_DAYS = {"delta": "", "iceberg": "days(timestamp)"}

FORMATS = pytest.mark.parametrize(
    "format_", [pytest.param("delta", marks=pytest.mark.long), "iceberg"]
)


def _plan(window_id: str = "its~e", *, attempt: int = 1, claim_id: str = "claim") -> WindowPlan:
    plan = plan_of(
        [part_of("orders", 0, OffsetSet.of((0, 9)))], window_id=window_id, attempt=attempt
    )
    return replace(plan, claim_id=claim_id)


def _make(spark: SparkSession, format_: str, folder: Path, mode: str, **more: Any) -> Lake:
    given = {"columns": _ORDERS, "partitions": _DAYS[format_], **more}
    if format_ == "delta":
        given["properties"] = "'delta.columnMapping.mode' = 'name'"
    return Lake.make(spark, format_, folder, mode=mode, **given)


def _frame(lake: Lake, *rows: tuple[int, str], hour: int = 10) -> DataFrame:
    values = ", ".join(f"({n}L, '{text}', timestamp'2026-01-01 {hour}:00:00')" for n, text in rows)
    names = "AS t(id, `what is it`, timestamp)"
    if not rows:
        return _frame(lake, (0, "")).limit(0)
    return lake.spark.sql(f"SELECT * FROM VALUES {values} {names}")


def _rows(lake: Lake) -> list[tuple[int, str]]:
    return sorted((row[0], row[1]) for row in lake.spark.table(lake.table).collect())


@FORMATS
def test_a_window_is_appended_once(lake_spark: SparkSession, tmp_path: Path, format_: str) -> None:
    """By whoever publishes, at the same time or later; by another attempt of the claim; and other windows beside it."""
    lake = _make(lake_spark, format_, tmp_path, "append")
    sink = lake.sink
    slow = sink.write(_frame(lake, (1, "slow"), (2, "slow")), _plan())
    output = sink.write(_frame(lake, (1, "a"), (2, "b")), _plan(attempt=2))
    twin, other = sink.found(output.to_json()), sink.write(_frame(lake, (1, "c")), _plan("other"))
    assert twin is not None
    assert _rows(lake) == []
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(TableOutput.publish, [output, twin, other]))
    lake_spark.sql(f"INSERT INTO {lake.table} VALUES (9, 'mine', now())")
    for again in (sink.found(output.to_json()), slow):
        if again is not None:
            again.published = False
            again.publish()
    assert _rows(lake) == [(1, "a"), (1, "c"), (2, "b"), (9, "mine")]
    assert lake.staged_count() == 0


@FORMATS
def test_appending_refuses_what_would_add_rows_twice(
    lake_spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    """A replay, and a window that was planned anew under the same id; before the job where that can be seen."""
    lake = _make(lake_spark, format_, tmp_path, "append")
    lake.sink.write(_frame(lake, (1, "a")), _plan()).publish()
    for status in (WindowStatus.PUBLISHED, WindowStatus.COMMITTED):
        with pytest.raises(
            ConfigError, match=r"appended .* before: mode 'append' adds a window once"
        ):
            lake.sink.write(_frame(lake, (1, "b")), replace(_plan(), status=status))
    told = r"was appended to .* before, by the earlier claim claim"
    again = replace(_plan(claim_id="other"), replaces=("claim",))
    with pytest.raises(OutputOwnedError, match=told):
        lake.sink.write(_frame(lake, (1, "c")), again)
    anew = lake.sink.write(_frame(lake, (1, "c")), _plan(claim_id="other"))
    for refused in (anew.check_ready, anew.publish):
        with pytest.raises(OutputOwnedError, match=told):
            refused()
    nothing = lake.sink.write(_frame(lake), _plan("empty"))
    nothing.publish()
    assert _rows(lake) == [(1, "a")]


def test_a_window_is_looked_for_in_the_named_table_alone(
    lake_spark: SparkSession, tmp_path: Path
) -> None:
    """Others may write the ledger: a record that names another table has nothing read and nothing shown there."""
    lake, other = (_make(lake_spark, "iceberg", tmp_path, "append") for _ in range(2))
    output = lake.sink.write(_frame(lake, (1, "a")), _plan())
    told = output.to_json()
    for result in (told, {**told, "published": True}):
        assert found_in_table(other.sink, result) is None
    assert (_rows(lake), _rows(other)) == ([], [])
    found = found_in_table(lake.sink, told)
    assert found is not None
    found.publish()
    assert (_rows(lake), _rows(other)) == ([(1, "a")], [])


def test_an_expired_history_is_no_proof(lake_spark: SparkSession, tmp_path: Path) -> None:
    """Iceberg's snapshots since staging are gone: it is not known whether the rows were appended, and none are added."""
    lake = _make(lake_spark, "iceberg", tmp_path, "append")
    lake_spark.sql(f"INSERT INTO {lake.table} VALUES (9, 'first', now())")
    output = lake.sink.write(_frame(lake, (1, "a")), _plan())
    told = output.to_json()
    output.publish()
    lake_spark.sql(f"INSERT INTO {lake.table} VALUES (9, 'later', now())")
    assert lake.sink.found(told) is not None
    name = lake.table.removeprefix(f"{CATALOG}.")
    lake_spark.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)"
    ).collect()
    with pytest.raises(SinkError, match="commits since then have expired"):
        lake.sink.found(told)
    assert lake.sink.found({**told, "published": True}) is not None
    assert len(_rows(lake)) == 3


@FORMATS
def test_a_replay_replaces_rows_in_files_with_others(
    lake_spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    """Whatever the table is partitioned by: the window's rows go, those of other windows in the same files stay."""
    columns = f"{_ORDERS}, window_id string"
    lake = _make(lake_spark, format_, tmp_path, "replace", columns=columns)
    lake_spark.sql(
        f"INSERT INTO {lake.table} SELECT /*+ COALESCE(1) */ * FROM VALUES (1L, 'old', timestamp'2026-01-01', "
        f"'other'), (2L, 'old', timestamp'2026-01-01', 'a') t"
    )
    for attempt, rows in enumerate([[(2, "new"), (3, "new")], [(3, "newer")], []], start=1):
        plan = replace(_plan("a", attempt=attempt), status=WindowStatus.PUBLISHED)
        lake.sink.write(_frame(lake, *rows), plan).publish()
        assert _rows(lake) == [(1, "old"), *rows]
    assert lake.staged_count() == 0


def _records(lake: Lake, *rows: tuple[int, str | None, int, int]) -> DataFrame:
    """Rows with an id, a value, a time in hours, and an offset."""
    values = ", ".join(
        f"({n}L, {'NULL' if v is None else repr(v)}, timestamp'2026-01-01 {hour}:00:00', 'orders', 0, {offset}L)"
        for n, v, hour, offset in rows
    )
    return lake.spark.sql(
        f"SELECT *, value AS `what is it` FROM VALUES {values} AS t(id, value, timestamp, topic, partition, offset)"
    )


@FORMATS
def test_the_newest_record_of_a_key_wins_whatever_comes_when(
    lake_spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    """Within a window and between windows, also when an older one comes later or again; tombstones delete if asked."""
    lake = _make(lake_spark, format_, tmp_path, "merge")

    def merge(
        window_id: str, *rows: tuple[int, str | None, int, int], deletes: bool = True
    ) -> None:
        sink = lake.sink_for("merge", keys=["ID"], delete_tombstones=deletes)
        records = _records(lake, *rows)
        sink.write(records if deletes else records.drop("value"), _plan(window_id)).publish()

    lake_spark.sql(f"INSERT INTO {lake.table} VALUES (9, 'mine', now())")
    merge("11", (1, "old", 11, 4), (1, "new", 11, 5), (2, "b", 11, 6), (3, "c", 11, 7))
    merge("10", (1, "older", 10, 1), (2, None, 10, 2), (4, "d", 10, 3))
    assert _rows(lake) == [(1, "new"), (2, "b"), (3, "c"), (4, "d"), (9, "mine")]
    merge("12", (2, None, 12, 8), (3, None, 12, 9), (3, "again", 12, 10), (5, None, 12, 11))
    assert _rows(lake) == [(1, "new"), (3, "again"), (4, "d"), (9, "mine")]
    merge("13", (4, None, 13, 12), deletes=False)
    assert {row[0]: row[1] for row in lake.spark.table(lake.table).collect()}[4] is None
    assert lake.staged_count() == 0


def test_keys_that_identify_nothing_are_refused(lake_spark: SparkSession, tmp_path: Path) -> None:
    """A null, and the same key twice with nothing that says which row is newer: nothing is left in the stage."""
    lake = _make(lake_spark, "iceberg", tmp_path, "merge")
    sink = lake.sink_for("merge", keys="id")
    with pytest.raises(SinkError, match="at least one row has no id"):
        sink.write(
            _frame(lake, (1, "a")).selectExpr("nullif(id, 1) id", "`what is it`", "timestamp"),
            _plan(),
        )
    with pytest.raises(SinkError, match=r"1 keys of .* are in several rows"):
        sink.write(_frame(lake, (1, "a"), (1, "b"), (2, "c")), _plan())
    with pytest.raises(ConfigError, match="by the column value"):
        lake.sink_for("merge", keys="id", delete_tombstones=True).write(
            _frame(lake, (1, "a")), _plan()
        )
    assert lake.staged_count() == 0


@FORMATS
def test_rows_that_the_table_would_refuse_are_refused_before_the_commit(
    lake_spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    """Staged rows are copied after Kafka's commit: what the table takes must be known before. A deletion has no values."""
    columns = "id bigint NOT NULL, `what is it` string NOT NULL, timestamp timestamp"
    lake = _make(lake_spark, format_, tmp_path, "merge", columns=columns)
    if format_ == "delta":
        # A name that Spark takes for that of a secret.
        lake_spark.sql(f"ALTER TABLE {lake.table} ADD CONSTRAINT valid_token CHECK (id < 9)")
    sink = lake.sink_for("merge", keys="id", delete_tombstones=True)
    empty = _records(lake, (1, "a", 11, 4), (2, "b", 11, 5)).drop("what is it")
    empty = empty.selectExpr("*", "nullif(value, 'b') AS `what is it`")
    with pytest.raises(
        SinkError, match=r"refuses at least one row: what is it NOT NULL\. Nothing was"
    ):
        sink.write(empty, _plan())
    if format_ == "delta":
        with pytest.raises(
            SinkError, match=r"refuses at least one row: CHECK valid_token \(id < 9\)"
        ):
            sink.write(_records(lake, (1, "a", 11, 4), (9, "b", 11, 5)), _plan())
    assert lake.staged_count() == 0
    sink.write(_records(lake, (1, "a", 11, 4), (2, None, 11, 5)), _plan()).publish()
    assert _rows(lake) == [(1, "a")]


@pytest.mark.long
def test_a_delta_table_that_only_takes_rows_is_refused_for_the_other_modes(
    lake_spark: SparkSession, tmp_path: Path
) -> None:
    """Otherwise it would refuse each window once that is committed."""
    lake = _make(lake_spark, "delta", tmp_path, "merge")
    lake_spark.sql(f"ALTER TABLE {lake.table} SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    with pytest.raises(ConfigError, match=r"delta\.appendOnly=true, and mode 'merge' changes rows"):
        lake.sink_for("merge", keys="id")
    lake.sink_for("append").write(_frame(lake, (1, "a")), _plan()).publish()
    assert _rows(lake) == [(1, "a")]


@pytest.mark.long
def test_columns_that_delta_generates_are_known_before_the_commit(
    lake_spark: SparkSession, tmp_path: Path
) -> None:
    """A wrong value, or any for a column that takes none, would be refused by the table at each publication."""
    generated = "id bigint, `what is it` string, twice bigint GENERATED ALWAYS AS (id * 2)"
    lake = _make(lake_spark, "delta", tmp_path, "append", columns=generated)
    rows = _frame(lake, (1, "a"), (2, "b")).drop("timestamp")
    with pytest.raises(
        SinkError, match=r"refuses at least one row: twice GENERATED ALWAYS AS \(id \* 2\)"
    ):
        lake.sink.write(rows.selectExpr("*", "2L AS twice"), _plan())
    lake.sink.write(rows.selectExpr("*", "id * 2 AS twice"), _plan()).publish()
    assert _rows(lake) == [(1, "a"), (2, "b")]
    identity = "id bigint, nr bigint GENERATED {} AS IDENTITY"
    for number, kind in enumerate(("ALWAYS", "BY DEFAULT")):
        columns = identity.format(kind)
        folder = tmp_path / str(number)
        lake = _make(lake_spark, "delta", folder, "append", columns=columns)
        if kind == "ALWAYS":
            with pytest.raises(ConfigError, match="has the column nr, GENERATED ALWAYS"):
                _ = lake.sink
            continue
        lake.sink.write(lake_spark.sql("SELECT 1L AS id, 7L AS nr"), _plan()).publish()
        assert lake_spark.table(lake.table).collect()[0].nr == 7


@pytest.mark.parametrize("schema", ["default", f"{CATALOG}.`my-db`", f"{CATALOG}.a.b", CATALOG])
def test_a_session_with_more_settings_has_the_same_schema(
    lake_spark: SparkSession, schema: str
) -> None:
    """Of an odd name, nested in another one, or none, as a catalogue of Iceberg's has it first."""
    own = session_with(lake_spark, {})
    if schema == CATALOG:
        own.catalog.setCurrentCatalog(CATALOG)
    else:
        if schema != "default":
            own.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        own.sql(f"USE {schema}")
    like = session_with(own, {"spark.sql.shuffle.partitions": "3"})
    for name in ("currentCatalog", "currentDatabase"):
        assert getattr(like.catalog, name)() == getattr(own.catalog, name)()
    assert like.conf.get("spark.sql.shuffle.partitions") == "3"


@FORMATS
def test_an_application_that_has_no_rows_removes_nothing_of_another_claim(
    lake_spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    """Nobody has committed its claim, and the other one's may be committed."""
    lake = _make(lake_spark, format_, tmp_path, "append")
    committed = lake.sink_for("append").write(_frame(lake, (1, "a")), _plan(claim_id="newer"))
    settings = ClientSettings.of({"bootstrap.servers": "nowhere:9"})
    folder = tmp_path / "run"
    folder.mkdir()
    submission = Submission(
        "t", (_plan(claim_id="older"),), None, "python", True, Table(lake.table)
    )
    [output] = windows_of(submission, settings, None, lake_spark, folder).write(_frame(lake))
    assert isinstance(output, TableOutput)
    assert output.published
    committed.publish()
    assert _rows(lake) == [(1, "a")]


@FORMATS
def test_rows_staged_for_other_columns_are_staged_again(
    lake_spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    """A column is renamed between Kafka's commit and the table's: its values must not be lost; an added one is null."""
    lake = _make(lake_spark, format_, tmp_path, "merge")
    sink = lake.sink_for("merge", keys="id")
    told = sink.write(_frame(lake, (1, "a")), _plan()).to_json()
    lake_spark.sql(f"ALTER TABLE {lake.table} RENAME COLUMN `what is it` TO name")
    sink = lake.sink_for("merge", keys="id")
    assert sink.found(told) is None
    rows = _frame(lake, (1, "a")).withColumnRenamed("what is it", "name")
    told = sink.write(rows, _plan(attempt=2)).to_json()
    lake_spark.sql(f"ALTER TABLE {lake.table} ADD COLUMN more int")
    found = lake.sink_for("merge", keys="id").found(told)
    assert found is not None
    found.publish()
    assert _rows(lake) == [(1, "a")]
    assert lake.staged_count() == 0


def test_a_table_that_does_not_fit_is_refused(lake_spark: SparkSession, tmp_path: Path) -> None:
    """No such table, neither format, no column for the mode, and columns that a record does not have."""
    lake = _make(lake_spark, "iceberg", tmp_path, "append")
    lake_spark.sql(f"ALTER TABLE {lake.table} CREATE BRANCH x")
    lake_spark.sql(f"CREATE TABLE plain_{lake.table.rpartition('_')[2]} (id bigint) USING parquet")
    plain = replace(lake, table=f"plain_{lake.table.rpartition('_')[2]}")
    cases = {
        "there is no table .*nowhere": (replace(lake, table=f"{CATALOG}.db.nowhere"), "append", {}),
        "is parquet, and neither": (plain, "append", {}),
        "needs? .*window_id|column window_id": (lake, "replace", {}),
        "keys has nr": (lake, "merge", {"keys": ["nr"]}),
        "names a branch or a tag": (replace(lake, table=f"{lake.table}.branch_x"), "append", {}),
    }
    for told, (one, mode, more) in cases.items():
        with pytest.raises(ConfigError, match=told):
            one.sink_for(mode, **more)
    with pytest.raises(ConfigError, match="a record does not have: id, what is it"):
        lake.sink.check_copy()
    misfit = _make(
        lake_spark, "iceberg", tmp_path, "append", columns="timestamp timestamp, value int"
    )
    with pytest.raises(ConfigError, match="does not fit the table"):
        misfit.sink.check_copy()


@pytest.mark.parametrize(
    ("format_", "location", "conf", "told"),
    [
        ("delta", "s3a://lake/o", {}, "S3SingleDriverLogStore"),
        ("delta", "s3a://lake/o", {"spark.delta.logStore.s3a.impl": "io.x.S3DynamoDBLogStore"}, ""),
        ("delta", "file:/lake/o", {}, ""),
        ("iceberg", "s3a://lake/o", {"spark.sql.catalog.lake.type": "hadoop"}, "Hadoop catalogue"),
        ("iceberg", "s3://lake/o", {"spark.sql.catalog.lake.type": "rest"}, ""),
        ("iceberg", "/lake/o", {"spark.sql.catalog.lake.type": "hadoop"}, ""),
    ],
)
def test_a_store_on_which_two_drivers_lose_commits_is_named(
    caplog: pytest.LogCaptureFixture, format_: str, location: str, conf: dict[str, str], told: str
) -> None:
    """As far as the configuration shows it."""

    class Session:
        """As much of a session as is looked at."""

    session: Any = Session()
    session.conf = conf
    with caplog.at_level(logging.WARNING):
        TableFacts(session, "o", format_, location, "lake.db.o").warn_of_unsafe_store()
    assert [told in one.getMessage() for one in caplog.records] == ([True] if told else [])


@pytest.mark.parametrize(
    ("conf", "address"),
    [
        ({"type": "hadoop", "warehouse": "s3://lake", "uri": "x"}, "s3://lake"),
        ({"type": "REST", "uri": "https://catalog/api", "warehouse": "w"}, "https://catalog/api"),
        ({"catalog-impl": "org.apache.iceberg.rest.RESTCatalog", "uri": "https://c"}, "https://c"),
        ({"type": "rest", "uri": "https://user:secret@catalog"}, None),
        ({"type": "jdbc", "uri": "jdbc:postgresql://host/db?password=secret"}, None),
        ({"catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog", "warehouse": "s3://w"}, None),
        ({}, None),
    ],
)
def test_a_table_s_catalogue_has_its_address_without_secrets(
    conf: dict[str, str], address: str | None
) -> None:
    """Only where its kind has one; the files are known in any case."""
    session: Any = SimpleNamespace(
        conf={f"spark.sql.catalog.lake.{name}": value for name, value in conf.items()}
    )
    at = TableFacts(session, "o", "iceberg", "s3://lake/o", "lake.db.o").at
    name = None if address is None else "db.o"
    assert at == TableLocation("s3://lake/o", address, name)
