"""What assets downstream of windows get as inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import OpenWindow
from kafka_ordered_ops.dagster import ordered_window_asset, window_id_of
from tests.support.dagster_support import (
    HOURLY,
    KEYS,
    House,
    copied,
    expected,
    failure_of,
    windows_of,
)
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house

pytestmark = pytest.mark.timeout(300)

DAILY = dg.DailyPartitionsDefinition(KEYS[0][:10])


def arrow_offsets(table: pa.Table) -> list[int]:
    """The offsets of an Arrow table."""
    return [int(str(offset)) for offset in table["offset"]]


def downstream(
    kind: Any, offsets: Callable[[Any], list[int]], partitions_def: Any, found: list[list[int]]
) -> dg.AssetsDefinition:
    """An asset that takes the windows as a type, and keeps their offsets."""

    def taking(orders: Any) -> None:
        found.append(offsets(orders))

    taking.__annotations__["orders"] = kind
    return dg.asset(name="downstream", partitions_def=partitions_def)(taking)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "offsets"),
    [
        (pa.Table, arrow_offsets),
        (Any, arrow_offsets),
        (pd.DataFrame, lambda frame: frame["offset"].tolist()),
        (pl.DataFrame, lambda frame: frame["offset"].to_list()),
        (pl.LazyFrame, lambda frame: frame.collect()["offset"].to_list()),
        (
            duckdb.DuckDBPyRelation,
            lambda relation: [row[0] for row in relation.project('"offset"').fetchall()],
        ),
        (
            list[str],
            lambda paths: [o for path in paths for o in pq.read_table(path)["offset"].to_pylist()],
        ),
    ],
    ids=["arrow", "any", "pandas", "polars", "lazy", "duckdb", "paths"],
)
def test_an_hour_comes_as_the_type_of_the_parameter(
    house: House, hours: str, group_id: str, kind: Any, offsets: Callable[[Any], list[int]]
) -> None:
    """Its own rows, in order, and none of another hour."""
    found: list[list[int]] = []
    asset = copied(house, hours, group_id)
    for hour in (1, 2):
        house.materialize(asset, KEYS[hour])
    house.materialize(downstream(kind, offsets, HOURLY, found), KEYS[2], beside=[asset])
    assert found == [expected(2)]


@pytest.mark.slow
def test_a_day_is_its_hours_in_order(house: House, hours: str, group_id: str) -> None:
    """Dagster's own mapping from hours to a day; an hour that is missing is named."""
    found: list[list[int]] = []
    asset = copied(house, hours, group_id)
    house.materialize(asset, (KEYS[1], "2026-01-05-23:00"))
    daily = downstream(pa.Table, arrow_offsets, DAILY, found)
    failed = house.materialize(daily, KEYS[0][:10], beside=[asset], fails=True)
    assert f"windows are not published below {house.output}: {window_id_of('orders', KEYS[0])}" in (
        failure_of(failed)
    )
    house.materialize(asset, KEYS[0])
    house.materialize(daily, KEYS[0][:10], beside=[asset])
    assert found == [[*(offset for hour in range(6) for offset in expected(hour)), 24]]


@pytest.mark.slow
def test_without_partitions_all_windows_are_loaded(house: House, hours: str, group_id: str) -> None:
    """The asset is what is in its folder."""
    found: list[list[int]] = []
    asset = copied(house, hours, group_id, partitions_def=None)
    house.materialize(asset)
    house.materialize(downstream(pa.Table, arrow_offsets, None, found), beside=[asset])
    assert sorted(found[0]) == list(range(25))


@pytest.mark.slow
def test_what_cannot_be_loaded_is_named(house: House, hours: str, group_id: str) -> None:
    """An unknown type."""
    asset = copied(house, hours, group_id)
    house.materialize(asset, KEYS[0])
    failed = house.materialize(
        downstream(int, lambda _: [], HOURLY, []), KEYS[0], beside=[asset], fails=True
    )
    assert "asset orders cannot be loaded: an input of the type <class 'int'>" in failure_of(failed)


@pytest.mark.slow
def test_a_function_of_windows_takes_inputs(house: House, hours: str, group_id: str) -> None:
    """By a parameter with the name of an asset that its spec depends on; resources may stand beside it."""
    found: list[object] = []

    @dg.asset(partitions_def=HOURLY)
    def customers() -> list[int]:
        return [1, 2]

    spec = dg.AssetSpec("orders", deps=["customers"])

    @ordered_window_asset(**{**windows_of(house, hours, group_id), "key": spec})
    def orders(window: OpenWindow, customers: list[int], greeting: dg.ResourceParam[str]) -> None:
        found.append((greeting, customers))
        window.write(window)

    house.materialize(customers, KEYS[1])
    house.materialize(orders, KEYS[1], beside=[customers], greeting="hello")
    assert found == [("hello", [1, 2])]
    assert house.offsets(house.told("orders")[KEYS[1]]["dagster/uri"]) == expected(1)
