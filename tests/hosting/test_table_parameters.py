"""Tables as hosts take them: checked when a DAG or a project is loaded, and before anything is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import airflow as airflow_room
from kafka_ordered_ops.cli.options.sink import JobSink
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.dagster import WindowSettings, build_ordered_window_asset
from kafka_ordered_ops.hosting.job import Job
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.spark.engine import Engine
from kafka_ordered_ops.spark.table_target import TableMode, TableTarget, table_of, table_target

#: What is wrong with a table's parameters, and what every host says of it.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"table": "t", "output": "/lake"}, "output and table are both given"),
    "near mode": ({"table": "t", "table_mode": "appnd"}, "did you mean 'append'"),
    "mode": ({"table": "t", "table_mode": "upsert"}, "one of 'append', 'replace', 'merge'"),
    "no keys": ({"table": "t", "table_mode": "merge"}, "needs keys"),
    "keys": ({"table": "t", "table_keys": ["a"]}, "keys is for mode 'merge'"),
    "no table": ({"output": "/lake", "table_mode": "append"}, "table_mode is for a table"),
    "name": ({"table": " "}, "give the name of an existing Delta or Iceberg table"),
}

_AIRFLOW: dict[str, Any] = {"task_id": "t", "topics": "t", "group_id": "g", "mode": "interval"}


@pytest.mark.parametrize("case", WRONG)
def test_a_table_that_cannot_be_is_refused_when_it_is_loaded(case: str) -> None:
    """By Airflow's operator and by Dagster's settings, in the same words."""
    given, told = WRONG[case]
    with pytest.raises(ConfigError, match=told):
        airflow_room.OrderedWindowOperator(**_AIRFLOW, **given)
    with pytest.raises(ConfigError, match=told):
        WindowSettings(topics="t", group_id="g", **given)


def test_an_operator_takes_templates_for_its_table() -> None:
    """What is not known when the DAG is loaded is checked when it is rendered."""
    operator = airflow_room.OrderedWindowOperator(
        **_AIRFLOW, table="lake.{{ params.table }}", table_mode="{{ params.mode }}"
    )
    assert {"table", "table_mode", "table_keys"} <= {*operator.template_fields}
    operator.table, operator.table_mode = "lake.orders", "upsert"
    with pytest.raises(ConfigError, match="mode is 'upsert'"):
        operator._job()
    operator.table_mode, operator.table_keys = "merge", ["id"]
    assert operator._job().table == TableTarget("lake.orders", TableMode.MERGE, ["id"])


def test_jobs_that_cannot_write_tables_are_refused() -> None:
    """An application and a function of batches have no session to publish with; a part is no window."""
    for job, told in (
        ({"application": "job.py"}, "an application and a table"),
        ({"batch_callable": lambda batches, plan: None}, "a function of batches and a table"),
    ):
        with pytest.raises(ConfigError, match=told):
            airflow_room.OrderedWindowOperator(**_AIRFLOW, table="t", **job)
    with pytest.raises(ConfigError, match="a part of a window cannot be written to a table"):
        airflow_room.WindowPartOperator(task_id="t", window={}, table="t")
    with pytest.raises(ConfigError, match="application and table are both given"):
        build_ordered_window_asset(
            key="a", topics="t", group_id="g", table="t", application="job.py"
        )
    asset = build_ordered_window_asset(key="a", topics="t", group_id="g", table="lake.t")
    assert [one.path for one in asset.keys] == [["a"]]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "--output is missing"),
        ({"table": "t", "output": "out"}, "both given"),
        ({"table": "t", "mode": "mrege"}, "did you mean 'merge'"),
        ({"table": "t", "mode": "merge"}, "needs keys"),
        ({"table": "t", "engine": Engine.LOCAL}, "--table needs Spark"),
        ({"table": "t", "application": Path("job.py")}, "an application and a table"),
        ({"output": "out", "keys": ["id"]}, "keys is for a table"),
    ],
)
def test_the_command_line_refuses_a_table_that_cannot_be(
    options: dict[str, Any], told: str
) -> None:
    """As wrong usage, before the cluster is asked."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(ConfigError, match=told):
        JobSink(**options).check(settings, "g")


def test_a_target_is_known_by_what_the_ledger_keeps() -> None:
    """And nothing else that has a table in it."""
    assert table_of({"table": "lake.orders", "write": {}}) == "lake.orders"
    assert table_of({"table": "lake.orders"}) is None
    assert table_of(None) is None
    assert table_target(None, None, (), False) is None
    assert Job(table=TableTarget("t")).table == TableTarget("t", "append", (), False)
