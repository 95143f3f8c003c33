"""Changes of a database merged into tables: what the source has, whichever way windows are cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import (
    ConfigError,
    Copy,
    DecodeError,
    Function,
    OrderedWindows,
    SinkError,
    Table,
    Window,
)
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.debezium import (
    FORMATS,
    NOTES_AT_THE_END,
    ORDERS_BEFORE_THE_END,
    TRUNCATION,
    changes,
)
from tests.support.spark_support import spark
from tests.support.tables_support import Lake, lake_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(600)]

_PLACE = "timestamp timestamp, topic string, partition int, offset bigint"
_NOTES = f"id int, body string, {_PLACE}"
_ORDERS = (
    "id int, customer string, paid boolean, placed string, day int, meta string, tags array<string>, "
    f"{_PLACE}"
)


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A Kafka with what Debezium has written, in JSON and Avro; one of the topics ends with a truncation."""
    with InMemoryKafka() as kafka:
        for encoding in ("json", "avro"):
            for table in ("notes", "orders"):
                topic = f"{encoding}-{table}"
                kafka.create_topic(topic, partitions=1)
                for change in changes(encoding, table):
                    at = 1_000 + change.offset
                    kafka.produce(topic, timestamp_ms=at, key=change.key, value=change.value)
        yield kafka


def up_to(topic: str, milliseconds: int, **more: Any) -> Window:
    """Return the window of a topic's changes up to a time."""
    encoding, _, table = topic.partition("-")
    cutoff = f"1970-01-01T00:00:{milliseconds / 1_000:06.3f}Z"
    options: dict[str, Any] = {
        "starting_offsets": "earliest",
        "values": FORMATS[encoding, table],
        "flatten": True,
        **more,
    }
    return Window(topic, cutoff=cutoff, **options)


def make(spark: SparkSession, format_: str, folder: Path, columns: str) -> Lake:
    """Return a table for changes."""
    return Lake.make(spark, format_, folder, mode="merge", columns=columns, partitions="")


def merging(lake: Lake, **more: Any) -> Table:
    """Return how changes are written to a table."""
    options: dict[str, Any] = {"keys": ["id"], "delete_tombstones": True, **more}
    return Table(lake.table, "merge", **options)


def rows(lake: Lake, columns: str = "") -> list[dict[str, Any]]:
    """Return the table's rows by id, without where they come from."""
    names = columns or ", ".join(name for name in lake.spark.table(lake.table).columns)
    frame = lake.spark.table(lake.table).selectExpr(*names.split(", ")).orderBy("id")
    place = {"timestamp", "topic", "partition", "offset"}
    return [
        {name: value for name, value in row.asDict(recursive=True).items() if name not in place}
        for row in frame.collect()
    ]


@pytest.mark.long
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
@pytest.mark.parametrize("encoding", ["json", "avro"])
def test_windows_make_the_table_of_the_source(
    lake_spark: SparkSession, tmp_path: Path, kafka: InMemoryKafka, format_: str, encoding: str
) -> None:
    """Cut between a change of a key and its rows; a truncation is refused, and leaves the table to whoever empties it."""

    def copied(topic: str, columns: str, *ends: int) -> tuple[OrderedWindows, Lake]:
        windows = OrderedWindows(kafka.settings, group_id=topic)
        lake = make(lake_spark, format_, tmp_path / topic, columns)
        for end in ends:
            windows.run(up_to(topic, end), merging(lake), job=Copy("local"), spark=lake_spark)
        return windows, lake

    _, lake = copied(f"{encoding}-notes", _NOTES, 1_004, 2_000)
    assert rows(lake) == NOTES_AT_THE_END
    topic = f"{encoding}-orders"
    windows, lake = copied(topic, _ORDERS, 1_005, 1_000 + TRUNCATION)
    assert rows(lake) == ORDERS_BEFORE_THE_END
    with pytest.raises(DecodeError, match="the table was truncated"):
        windows.run(up_to(topic, 2_000), merging(lake), job=Copy("local"), spark=lake_spark)
    assert rows(lake) == ORDERS_BEFORE_THE_END
    lake_spark.sql(f"DELETE FROM {lake.table}")

    def later(window: Any) -> None:
        known = window.read().where(f"offset > {TRUNCATION}")
        window.write(known.select(*lake_spark.table(lake.table).columns, "__deleted"))

    job = Function(later, engine="local")
    windows.run(up_to(topic, 2_000, on_bad="keep"), merging(lake), job=job, spark=lake_spark)
    assert rows(lake) == []
    assert lake.staged_count() == 0


def test_deleted_rows_may_stay_with_their_mark(
    lake_spark: SparkSession, tmp_path: Path, kafka: InMemoryKafka
) -> None:
    """Then a window that comes late changes nothing that is newer, and brings no row back."""
    lake = make(lake_spark, "iceberg", tmp_path, f"{_NOTES}, __deleted boolean")
    windows = OrderedWindows(kafka.settings, group_id="g")
    options: dict[str, Any] = {"job": Copy("local"), "spark": lake_spark}
    table = merging(lake, delete_tombstones=False)
    older, newer = ("older", up_to("json-notes", 1_003)), ("newer", up_to("json-notes", 2_000))
    windows.plan(older[1], older[0])
    windows.run(newer[1], table, window_id=newer[0], **options)
    assert rows(lake) == [{"id": 2, "body": None, "__deleted": True}]
    windows.run(older[1], table, window_id=older[0], **options)
    assert rows(lake) == [
        {"id": 1, "body": "first, changed", "__deleted": False},
        {"id": 2, "body": None, "__deleted": True},
    ]


def test_marks_are_not_lost(lake_spark: SparkSession, tmp_path: Path, kafka: InMemoryKafka) -> None:
    """Before anything is planned; by a function as well; and a tombstone without its key is no row."""
    lake = make(lake_spark, "iceberg", tmp_path, _NOTES)
    windows = OrderedWindows(kafka.settings, group_id="g")
    options: dict[str, Any] = {"job": Copy("local"), "spark": lake_spark}
    keeping = merging(lake, delete_tombstones=False)
    for table in (keeping, Table(lake.table)):
        with pytest.raises(ConfigError, match="does not have the columns __deleted"):
            windows.run(up_to("json-notes", 2_000), table, **options)
    with pytest.raises(ConfigError, match="does not have the columns __deleted, value_error"):
        windows.run(up_to("json-notes", 2_000, on_bad="keep"), keeping, **options)
    with pytest.raises(ConfigError, match="does not have the columns value_error"):
        windows.run(up_to("json-notes", 2_000, on_bad="keep"), merging(lake), **options)
    with pytest.raises(ConfigError, match="columns that a record does not have: id, body"):
        windows.run(up_to("json-notes", 2_000, flatten=False), merging(lake), **options)
    smaller = make(lake_spark, "iceberg", tmp_path / "smaller", f"id int, {_PLACE}")
    with pytest.raises(ConfigError, match="does not have the columns body of decoded values"):
        windows.run(up_to("json-notes", 2_000), merging(smaller), **options)
    assert windows.list() == []

    def whole(window: Any) -> None:
        names = ("key", "headers", "late", "timestamp_type", "__op", "__source_ts_ms")
        window.write(window.read().drop(*names))

    with pytest.raises(ConfigError, match="Not in the table: __deleted"):
        windows.run(up_to("json-notes", 2_000), keeping, job=whole, spark=lake_spark)
    values = replace(FORMATS["json", "notes"], keys=None)
    with pytest.raises(SinkError, match=r"has no id, .* with Debezium\(\.\.\., keys=\.\.\.\)"):
        windows.run(up_to("json-notes", 2_000, values=values), merging(lake), **options)
    assert rows(lake) == []


def test_a_value_may_stay_one_column(
    lake_spark: SparkSession, tmp_path: Path, kafka: InMemoryKafka
) -> None:
    """Keyed by the record's key: the mark within it deletes; a bad value deletes nothing."""
    struct = (
        "struct<id: int, body: string, __op: string, __deleted: boolean, __source_ts_ms: bigint>"
    )
    columns = f"key binary, value {struct}, value_error string, {_PLACE}"
    lake = make(lake_spark, "iceberg", tmp_path, columns)
    windows = OrderedWindows(kafka.settings, group_id="g")
    kafka.produce("json-notes", timestamp_ms=1_900, key=b'{"id":1}', value=b"{")
    windows.run(
        up_to("json-notes", 2_000, flatten=False, on_bad="keep"),
        merging(lake, keys=["key"]),
        job=Copy("local"),
        spark=lake_spark,
    )
    [row] = lake_spark.table(lake.table).collect()
    assert (bytes(row.key), row.value) == (b'{"id":1}', None)
    assert "not valid JSON" in row.value_error
