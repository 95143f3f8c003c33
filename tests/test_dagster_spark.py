"""Spark jobs of assets: a session in the step, spark-submit, and Pipes; several windows in one pass."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops.dagster import (
    AssetWindows,
    build_ordered_window_asset,
    ordered_window_asset,
)
from kafka_ordered_ops.windows import OrderedWindows
from tests.dagster_support import KEYS, House, expected, failure_of, windows_of
from tests.dagster_support import hours as hours
from tests.dagster_support import house as house
from tests.spark_support import spark as spark
from tests.submit_support import COPY, application, small

pytestmark = pytest.mark.timeout(600)


def check_delivered(house: House, first: int, last: int) -> None:
    """Each of the hours in its own folder, in order, with its own counts."""
    told = house.told("orders")
    assert set(told) == set(KEYS[first : last + 1])
    for hour in range(first, last + 1):
        values = told[KEYS[hour]]
        assert values["dagster/partition_row_count"] == 4
        assert house.offsets(values["dagster/uri"]) == expected(hour)


@pytest.mark.spark
@pytest.mark.parametrize("last", [1, 3])
def test_a_session_in_the_step(house: House, hours: str, group: str, spark: Any, last: int) -> None:
    """One window, or three in one read and one write."""

    @ordered_window_asset(**windows_of(house, hours, group))
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        windows.write(windows.read(spark))

    house.materialize(orders, (KEYS[1], KEYS[last]))
    check_delivered(house, 1, last)


@pytest.mark.spark
def test_spark_submit(house: House, hours: str, group: str, tmp_path: Path) -> None:
    """The application asks for its windows; its log lines are the step's."""
    job = application(tmp_path, COPY)
    given = windows_of(house, hours, group)
    orders = build_ordered_window_asset(**given, application=job, submit=small())
    house.materialize(orders, (KEYS[0], KEYS[2]))
    check_delivered(house, 0, 2)


PIPES = """
import sys
from dagster_pipes import open_dagster_pipes
from kafka_ordered_ops.spark import planned_windows, stage_windows

with open_dagster_pipes() as pipes:
    told = pipes.extras
    plans, settings = planned_windows(
        {"bootstrap.servers": sys.argv[1]}, told["group"], told["attempts"]
    )
    if len(sys.argv) > 2:
        plans = plans[1:]
    stage_windows(plans, settings, told["output"])
    pipes.report_asset_materialization({"job": "elsewhere"})
"""


# Dagster's own client asks its own context in a way that it gives up, and uses what is a preview.
@pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`")
@pytest.mark.parametrize("leaves_one_out", [False, True])
def test_pipes(house: House, hours: str, group: str, tmp_path: Path, leaves_one_out: bool) -> None:
    """A job elsewhere is handed its windows; what it wrote is taken up, whole, or nothing is committed."""
    script = tmp_path / "job.py"
    script.write_text(PIPES)

    @ordered_window_asset(**windows_of(house, hours, group))
    def orders(
        context: dg.AssetExecutionContext, windows: AssetWindows, pipes: dg.PipesSubprocessClient
    ) -> None:
        ran = pipes.run(
            context=context,
            command=[sys.executable, str(script), house.bootstrap, *["x"] * leaves_one_out],
            extras=windows.extras(),
        )
        windows.collect()
        for result in ran.get_results():
            windows.tell(result.metadata or {})

    asked = (KEYS[2], KEYS[4])
    pipes = dg.PipesSubprocessClient()
    result = house.materialize(orders, asked, fails=leaves_one_out, pipes=pipes)
    if leaves_one_out:
        assert "SinkError: 1 of 3 windows" in failure_of(result)
        assert house.told("orders") == {}
        with OrderedWindows({"bootstrap.servers": house.bootstrap}, group) as windows:
            assert {record.status.value for record in windows.list()} == {"planned"}
        return
    check_delivered(house, 2, 4)
    assert house.told("orders")[KEYS[2]]["job"] == "elsewhere"
