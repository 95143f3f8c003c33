"""Windows into Iceberg tables of a REST catalogue, which Iceberg's own server keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import Earliest, OrderedWindows, Policy, Table
from kafka_ordered_ops.spec.table import location_of
from tests.support.iceberg_rest import iceberg_rest
from tests.support.spark_support import spark
from tests.support.tables_support import Lake
from tests.support.windows_support import before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.long, pytest.mark.timeout(600)]

_CATALOG, _OTHER = "koo_rest", "koo_rest_reader"
#: Of the records of `orders`: what the windows that end at 12 s and at 40 s take.
_FIRST, _SECOND = [0, 1, 3], [2, 4, 5]


@pytest.fixture(scope="module")
def rest_spark(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """The session of the other tests, with the catalogue under two names: windows are read by the one that did not write."""
    with iceberg_rest(tmp_path_factory.mktemp("rest")) as url:
        for name in (_CATALOG, _OTHER):
            spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
            spark.conf.set(f"spark.sql.catalog.{name}.type", "rest")
            spark.conf.set(f"spark.sql.catalog.{name}.uri", url)
            spark.conf.set(f"spark.sql.catalog.{name}.cache-enabled", str(name == _CATALOG).lower())
        spark.sql(f"CREATE NAMESPACE {_CATALOG}.db")
        yield spark


def _rows(lake: Lake, *columns: str) -> list[tuple[Any, ...]]:
    """What another client of the catalogue reads."""
    name = lake.table.replace(_CATALOG, _OTHER, 1)
    return sorted(map(tuple, lake.spark.table(name).select(*columns).collect()))


@pytest.mark.parametrize("mode", ["append", "replace", "merge"])
def test_windows_come_once_in_every_mode(
    bootstrap: str, group_id: str, orders: str, rest_spark: SparkSession, mode: str
) -> None:
    """Two windows, then the first again: it is done; and where the mode can, it is read again, and nothing is doubled."""
    lake = Lake.make(rest_spark, "iceberg", catalog=_CATALOG, mode=mode)
    keys = ["topic", "partition", "offset"] if mode == "merge" else ()
    table = Table(lake.table, mode, keys=keys)
    first, second = before(orders, 12, Earliest()), before(orders, 40)
    with OrderedWindows(bootstrap, group_id=group_id) as windows:

        def run(asked: Any, window_id: str, **more: Any) -> bool:
            return windows.run(asked, table, window_id=window_id, spark=rest_spark, **more).ran

        assert run(first, "a")
        assert _rows(lake, "window_id", "offset") == [("a", n) for n in _FIRST]
        assert run(second, "b")
        assert not run(first, "a")
        if mode != "append":
            assert run(first, "a", policy=Policy(on_covered="replay"))
        at = location_of(windows.show("a").result)
    url = rest_spark.conf.get(f"spark.sql.catalog.{_CATALOG}.uri")
    name = lake.table.removeprefix(f"{_CATALOG}.")
    assert at is not None
    assert (at.catalog, at.name) == (url, name)
    assert at.files.endswith(f"/warehouse/{name.replace('.', '/')}")
    wanted = [("a", n) for n in _FIRST] + [("b", n) for n in _SECOND]
    assert _rows(lake, "window_id", "offset") == wanted
    assert lake.staged_count() == 0


def test_columns_are_added_to_the_catalogue(
    bootstrap: str, group_id: str, orders: str, rest_spark: SparkSession
) -> None:
    """A window's function has a column that the table lacks: older rows have nulls, newer ones the values."""
    columns = "offset bigint, timestamp timestamp"
    lake = Lake.make(
        rest_spark, "iceberg", catalog=_CATALOG, mode="append", columns=columns, partitions=""
    )
    table = Table(lake.table, schema_evolution="add")

    def job(window: Any) -> None:
        window.write(window.read().selectExpr("offset", "timestamp", "'new' AS note"))

    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        windows.run(before(orders, 12, Earliest()), table, spark=rest_spark)
        windows.run(before(orders, 40), table, job=job, spark=rest_spark)
    rows = _rows(lake, "offset", "note")
    assert rows == sorted([(n, None) for n in _FIRST] + [(n, "new") for n in _SECOND])
