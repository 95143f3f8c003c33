"""Bad records of windows that go to a table: in a table beside it, each once, whatever happens in between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import (
    Application,
    ConfigError,
    OrderedWindows,
    OutputOwnedError,
    Policy,
    Table,
    Window,
)
from kafka_ordered_ops.core.window.dead_letters import bad_name
from kafka_ordered_ops.spark.write.table_output import TableOutput
from kafka_ordered_ops.spark.write.table_windows import _BAD_DDL
from tests.support.both_worlds import broker as broker
from tests.support.dead_letters import die_at_commit, fill, service, window
from tests.support.objects_support import Killed
from tests.support.spark_support import java_home, spark, spark41_conf
from tests.support.submit_support import COPY, application, small
from tests.support.tables_support import Lake, lake_spark
from tests.support.worlds import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(600)]

_COLUMNS = "id bigint, partition int, offset bigint, window_id string"
_GOOD = [1, 1, 3, 6, None]
_BAD = [(0, 1), (0, 3)]


def _lake(
    spark: SparkSession,
    format_: str,
    folder: Path,
    mode: str = "append",
    *,
    columns: str = _COLUMNS,
    bad: str | None = _BAD_DDL,
) -> Lake:
    """Both tables; the second one with `bad` columns, if there are any."""
    lake = Lake.make(spark, format_, folder, mode=mode, columns=columns, partitions="")
    if bad is not None:
        spark.sql(f"CREATE TABLE {bad_name(lake.table)} ({bad}) USING {format_}")
    return lake


def _ids(lake: Lake) -> list[int | None]:
    rows = lake.spark.table(lake.table).select("id").collect()
    return sorted((row[0] for row in rows), key=str)


def _beside(lake: Lake) -> Any:
    name = bad_name(lake.table)
    lake.spark.sql(f"REFRESH TABLE {name}")
    return lake.spark.table(name).orderBy("partition", "offset").collect()


def _places(lake: Lake) -> list[tuple[int, int]]:
    return [(row.partition, row.offset) for row in _beside(lake)]


def _staged(lake: Lake) -> int:
    beside = Lake(lake.spark, lake.format, bad_name(lake.table))
    return lake.staged_count() + beside.staged_count()


def _asked(world: World, **more: Any) -> Window:
    options = {"keys": None, "flatten": True, "on_bad": "dead_letter"}
    return window(world, **(options | more))


@pytest.mark.parametrize(
    ("format_", "mode"),
    [
        ("delta", "append"),
        ("iceberg", "append"),
        pytest.param("delta", "replace", marks=pytest.mark.long),
        ("iceberg", "replace"),
        pytest.param("delta", "merge", marks=pytest.mark.long),
        pytest.param("iceberg", "merge", marks=pytest.mark.long),
    ],
)
def test_bad_records_are_beside_the_table(
    broker: World, lake_spark: SparkSession, tmp_path: Path, format_: str, mode: str
) -> None:
    """As they were, in each mode; a second run changes nothing, and a replay replaces them."""
    fill(broker)
    lake, windows = _lake(lake_spark, format_, tmp_path, mode), service(broker)
    keys = ["partition", "offset"] if mode == "merge" else []
    to = Table(lake.table, mode, keys=keys)
    result = windows.run(_asked(broker), to, spark=lake_spark, window_id="w")
    assert (result.records, result.dead_letters) == (5, 2)
    assert result.dead_letters_to == bad_name(lake.table)
    first, second = _beside(lake)
    assert (first.window_id, first.topic, first.offset) == ("w", broker.named("orders"), 1)
    assert (bytes(first.key), bytes(first.value)) == (b'{"id": 2}', b"{")
    assert [(header.key, header.value) for header in first.headers] == [
        ("h", bytearray(b"1")),
        ("h", None),
        ("", bytearray()),
    ]
    assert (first.key_error, second.offset, bytes(second.value)) == (None, 3, b"nothing")
    assert first.value_error
    assert second.value_error
    again = windows.run(_asked(broker), to, spark=lake_spark, window_id="w")
    assert (again.ran, again.dead_letters, _places(lake), _ids(lake)) == (False, 2, _BAD, _GOOD)
    if mode != "append":
        policy = Policy(on_covered="replay")
        windows.run(_asked(broker), to, spark=lake_spark, window_id="w", policy=policy)
        assert (_places(lake), _ids(lake)) == (_BAD, _GOOD)
    assert _staged(lake) == 0


@pytest.mark.parametrize("format_", [pytest.param("delta", marks=pytest.mark.long), "iceberg"])
def test_a_death_between_both_tables_leaves_each_once(
    broker: World,
    lake_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_: str,
) -> None:
    """Before the first commit, after it, and after both: the next run completes the window."""
    fill(broker)
    lake = _lake(lake_spark, format_, tmp_path)
    show, left = TableOutput._show, 0

    def dying(self: TableOutput) -> bool:
        nonlocal left
        if (left := left - 1) == 0:
            raise Killed
        shown = show(self)
        if (left := left - 1) == 0:
            raise Killed
        return shown

    monkeypatch.setattr(TableOutput, "_show", dying)
    for number, bad in enumerate([0, 2, 2, 2], 1):
        windows = OrderedWindows(broker.settings, f"{broker.named('g')}-{number}")
        name, left = f"w{number}", number
        with pytest.raises(Killed):
            windows.run(_asked(broker), Table(lake.table), spark=lake_spark, window_id=name)
        rows = [row for row in _beside(lake) if row.window_id == name]
        assert (number, len(rows)) == (number, bad)
        windows.run(_asked(broker), Table(lake.table), spark=lake_spark, window_id=name)
        rows = [row for row in _beside(lake) if row.window_id == name]
        assert [(row.partition, row.offset) for row in rows] == _BAD
        good = lake_spark.table(lake.table).where(f"window_id = '{name}'").count()
        assert good == len(_GOOD)
    assert _staged(lake) == 0


def test_a_window_without_bad_records_needs_no_commit(
    broker: World, lake_spark: SparkSession, tmp_path: Path
) -> None:
    """But a replay that finds none removes those of the earlier attempt."""
    fill(broker)
    lake, windows = _lake(lake_spark, "iceberg", tmp_path, "replace"), service(broker)
    to = Table(lake.table, "replace")
    early = _asked(broker, before=1.5)
    windows.run(early, to, spark=lake_spark, window_id="early")
    history = lake_spark.table(f"{bad_name(lake.table)}.history")
    assert history.count() == 0
    windows.run(_asked(broker), to, spark=lake_spark, window_id="w")
    assert _places(lake) == _BAD
    policy = Policy(on_covered="replay")
    everything = _asked(broker, values=None, keys="json:id int64", flatten=False)

    def good(opened: Any) -> None:
        opened.write(opened.read().selectExpr("offset id", "partition", "offset"))

    windows.run(everything, to, job=good, spark=lake_spark, window_id="w", policy=policy)
    assert _places(lake) == [(0, 2), (0, 3)]


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (None, "there is no table"),
        ("topic string, offset bigint", "window_id"),
        (
            "window_id string, offset string, key_error string, value_error array<int>",
            "does not fit",
        ),
        ("window_id string, topic string, value_error string", "key_error"),
    ],
)
def test_a_table_that_is_missing_or_other_is_refused(
    broker: World, lake_spark: SparkSession, tmp_path: Path, bad: str | None, match: str
) -> None:
    """Before a window is planned, with the statement that creates it."""
    fill(broker)
    lake, windows = _lake(lake_spark, "iceberg", tmp_path, bad=bad), service(broker)
    with pytest.raises(ConfigError, match=match) as failure:
        windows.run(_asked(broker), Table(lake.table), spark=lake_spark, window_id="w")
    assert f"CREATE TABLE {bad_name(lake.table)} (window_id STRING" in str(failure.value)
    assert windows.list() == []


def test_rows_of_others_are_not_replaced(
    broker: World, lake_spark: SparkSession, tmp_path: Path
) -> None:
    """Rows with the window's id that no commit of this package explains: the window is given back."""
    fill(broker)
    lake, windows = _lake(lake_spark, "iceberg", tmp_path), service(broker)
    lake_spark.sql(f"INSERT INTO {bad_name(lake.table)} (window_id) VALUES ('w')")
    with pytest.raises(OutputOwnedError, match="__bad"):
        windows.run(_asked(broker), Table(lake.table), spark=lake_spark, window_id="w")
    assert (_ids(lake), lake.staged_count()) == ([], 0)
    assert windows.show("w").status == "abandoned"


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_is_killed_at_the_commit_leaves_each_once(
    broker: World, lake_spark: SparkSession, tmp_path: Path, when: str
) -> None:
    """The rows wait in both stages; the next run commits or publishes them."""
    fill(broker)
    columns = "key struct<id: bigint>, value struct<id: bigint>"
    lake = _lake(lake_spark, "delta", tmp_path, columns=columns)
    session = {"java_home": java_home(), "conf": spark41_conf()}
    die_at_commit(broker, lake.table, when, 2, session, on_bad="dead_letter")
    assert _beside(lake) == []
    asked = window(broker, on_bad="dead_letter")
    result = service(broker).run(asked, Table(lake.table), spark=lake_spark, window_id="w")
    assert (result.records, result.dead_letters) == (4, 3)
    assert _places(lake) == [(0, 1), (0, 2), (0, 3)]
    assert lake_spark.table(lake.table).count() == 4
    assert _staged(lake) == 0


@pytest.mark.long
def test_an_application_writes_both(
    broker: World, lake_spark: SparkSession, tmp_path: Path
) -> None:
    """In its own session; it is run again to publish both."""
    fill(broker)
    columns = "key struct<id: bigint>, value struct<id: bigint>"
    lake = _lake(lake_spark, "delta", tmp_path, columns=columns)
    job = Application(application(tmp_path, COPY), submit=small(**spark41_conf()))
    asked = window(broker, on_bad="dead_letter")
    result = service(broker).run(asked, Table(lake.table), job=job, window_id="w")
    assert (result.records, result.dead_letters) == (4, 3)
    assert _places(lake) == [(0, 1), (0, 2), (0, 3)]
    assert _staged(lake) == 0
