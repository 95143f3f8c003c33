"""Applications whose windows go to a table, from every host; the driver is one without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ordered_ops import Application, Table
from kafka_ordered_ops.dagster import build_ordered_window_asset
from tests.support.airflow_context import context_of, operator_for
from tests.support.airflow_context import kafka_connection as kafka_connection
from tests.support.cli_support import Cluster, cli
from tests.support.cli_support import cluster as cluster
from tests.support.dagster_support import KEYS, House, windows_of
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house
from tests.support.submit_support import application
from tests.support.table_driver import orders_of, rows_of, staged_in, table_driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _driver(folder: Path) -> tuple[Path, Path]:
    """The home of a Spark whose spark-submit is such a driver, and the table."""
    programs = folder / "spark" / "bin"
    programs.mkdir(parents=True)
    table_driver(programs, table := folder / "table.json")
    return programs.parent, table


@pytest.mark.usefixtures("kafka_connection")
def test_airflow(
    orders: str, group_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task, and its second try, which finds the window published; the table is named as the output."""
    home, table = _driver(tmp_path)
    monkeypatch.setenv("SPARK_HOME", str(home))
    job = application(tmp_path, "")
    task = operator_for(
        orders,
        group_id,
        tmp_path,
        window_id="w",
        job=Application(str(job)),
        output=Table("lake.orders"),
    )
    facts = task.execute(context_of(12))
    assert (facts["status"], facts["records"], facts["output"]) == ("published", 3, "lake.orders")
    assert rows_of(table) == [("w", [0, 1, 3])]
    assert orders_of(job) == ["write", "publish"]


def test_dagster(
    house: House, hours: str, group_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of three partitions: two runs of the application."""
    home, table = _driver(tmp_path)
    monkeypatch.setenv("SPARK_HOME", str(home))
    job = application(tmp_path, "")
    given = {**windows_of(house, hours, group_id), "output": Table("lake.orders")}
    house.materialize(build_ordered_window_asset(**given, job=Application(job)), (KEYS[0], KEYS[2]))
    told = house.told("orders")
    assert {key: one["dagster/table_name"] for key, one in told.items()} == dict.fromkeys(
        KEYS[:3], "lake.orders"
    )
    assert len(rows_of(table)) == 3
    assert (orders_of(job), staged_in(table)) == (["write", "publish"], 0)


@pytest.mark.long
def test_the_command_line(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver dies in the table's commit; the next call publishes."""
    home, table = _driver(tmp_path)
    monkeypatch.setenv("SPARK_HOME", str(home))
    job = application(tmp_path, "")
    where = (*cluster.where, *cluster.question(60), "--table", "lake.orders", "--json")
    died = cli("run", *where, "--application", job, env={"DIES": "shown"})
    assert died.code == 1, died.stderr
    outcome = cli("run", *where, "--application", job)
    assert outcome.code == 0, outcome.stderr
    assert outcome.json["output"] == "lake.orders"
    assert outcome.json["ran"] is False
    assert [sum(map(len, rows[1:])) for rows in rows_of(table)] == [6]
    assert orders_of(job) == ["write", "publish", "find", "publish"]
