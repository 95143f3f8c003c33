"""Tables as hosts take them: checked when a DAG or a project is loaded, and before anything is planned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ordered_ops import OrderedWindows
from kafka_ordered_ops import airflow as airflow_room
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.cli.options.sink import JobSink
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.dagster import (
    WindowSettings,
    build_ordered_window_asset,
    build_ordered_window_op,
)
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spark.applications.tables import TableApplication
from kafka_ordered_ops.spark.write.table_output import KeptOutput
from kafka_ordered_ops.spark.write.table_windows import found_in_table
from kafka_ordered_ops.spark.write.table_write import TableWrite
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.table import Table, TableMode, table_of, table_of_parameters
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.hosts_support import GROUP, asked
from tests.support.hosts_support import kafka as kafka

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
    assert operator._job().table == Table("lake.orders", TableMode.MERGE, ["id"])


def test_jobs_that_cannot_write_tables_are_refused() -> None:
    """A function of batches has no session; an application has its own, with its own settings; a part is no window."""
    for job, told in (
        ({"batch_callable": lambda batches, plan: None}, "a function of batches and a table"),
        (
            {"application": "/dags/job.py", "spark_conf": {"spark.x": "y"}},
            "Give its settings in submit",
        ),
    ):
        with pytest.raises(ConfigError, match=told):
            airflow_room.OrderedWindowOperator(**_AIRFLOW, table="t", **job)
    with pytest.raises(ConfigError, match="a part of a window cannot be written to a table"):
        airflow_room.WindowPartOperator(task_id="t", window={}, table="t")
    given: dict[str, Any] = {"topics": "t", "group_id": "g", "table": "lake.t"}
    session: dict[str, Any] = {"application": "/dags/job.py", "table_conf": {"spark.x": "y"}}
    with pytest.raises(ConfigError, match="Give its settings in submit"):
        build_ordered_window_asset(key="a", **given, **session)
    with pytest.raises(ConfigError, match="Give its settings in submit"):
        build_ordered_window_op(name="a", **given, **session)
    asset = build_ordered_window_asset(key="a", **given)
    assert [one.path for one in asset.keys] == [["a"]]


def test_an_application_writes_tables(tmp_path: Path) -> None:
    """From every host: no session is started in its process, and it is asked for what earlier attempts left."""
    job = tmp_path / "job.py"
    job.touch()
    airflow = airflow_room.OrderedWindowOperator(**_AIRFLOW, table="t", application=str(job))
    with (
        airflow.job_session() as found,
        JobSink(table="t", application=job).opened() as of_command,
    ):
        assert isinstance(found, TableApplication)
        assert isinstance(of_command, TableApplication)
        assert found.target == of_command.target == Table("t")
        assert found({"reported": {}}) == Reported()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "--output is missing"),
        ({"table": "t", "output": "out"}, "both given"),
        ({"table": "t", "mode": "mrege"}, "did you mean 'merge'"),
        ({"table": "t", "mode": "merge"}, "needs keys"),
        ({"table": "t", "engine": Engine.LOCAL}, "--table needs Spark"),
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
    assert table_of_parameters(None, None, (), False) is None
    assert Table("t") == Table("t", "append", (), False)


def test_a_window_of_a_table_is_not_committed_by_hand(
    kafka: InMemoryKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command has no session to publish with: the offsets would be done, and the rows not there."""
    with OrderedWindows(kafka.settings, GROUP) as windows:
        plan = windows.plan(asked(), "w")
        kept = KeptOutput(
            Table("lake.t"), "delta", TableWrite.of(plan), {"records": 1}, None, False
        )
        windows.mark_written(plan, kept.to_json())
        assert main(["windows", "commit", "w", "-b", kafka.bootstrap, "-g", GROUP]) == 2
        assert windows.show("w").status is WindowStatus.WRITTEN
    assert "run the window again, with the same --table" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_published_window_is_not_looked_for_in_its_table() -> None:
    """The ledger knows it; and what it says of another table is nothing to the one that is named."""
    write = TableWrite("cluster/ledger", "g", "w", "claim", 1, "abc")
    facts = {"records": 1, "elapsed_ms": 1}
    kept = KeptOutput(Table("lake.t"), "delta", write, facts, None, True)
    sink: Any = SimpleNamespace(target=Table("lake.t"))
    found = found_in_table(sink, kept.to_json())
    assert found is not None
    found.publish()
    assert found.to_json() == kept.to_json()
    assert found_in_table(sink, {"rows": 3}) is None
    sink = SimpleNamespace(target=Table("lake.other"))
    assert found_in_table(sink, kept.to_json()) is None
