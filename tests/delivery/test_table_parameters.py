"""Tables as hosts take them: checked when a DAG or a project is loaded, and before anything is planned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from kafka_ordered_ops import Application, ClientSettings, ConfigError, OrderedWindows, Table
from kafka_ordered_ops import airflow as airflow_room
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.cli.options.sink import JobSink
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.dagster import (
    WindowSettings,
    build_ordered_window_asset,
    build_ordered_window_op,
)
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spark.applications.tables import TableApplication
from kafka_ordered_ops.spark.write.table_output import KeptOutput
from kafka_ordered_ops.spark.write.table_windows import found_in_table
from kafka_ordered_ops.spark.write.table_write import TableWrite
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.table import TableMode, table_of
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.host_words import words
from tests.support.hosts_support import GROUP, asked
from tests.support.hosts_support import kafka as kafka

#: What is wrong with a table's parameters, and what every host says of it.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "near mode": ({"table": "t", "table_mode": "appnd"}, "did you mean 'append'"),
    "mode": ({"table": "t", "table_mode": "upsert"}, "one of 'append', 'replace', 'merge'"),
    "no keys": ({"table": "t", "table_mode": "merge"}, "needs keys"),
    "keys": ({"table": "t", "table_keys": ["a"]}, "keys is for mode 'merge'"),
    "name": ({"table": " "}, "give the name of an existing Delta or Iceberg table"),
}

_AIRFLOW: dict[str, Any] = {"task_id": "t", "topics": "t", "group_id": "g", "mode": "interval"}


@pytest.mark.parametrize("case", WRONG)
def test_a_table_that_cannot_be_is_refused_when_it_is_loaded(case: str) -> None:
    """By Airflow's operator and by Dagster's settings, in the same words."""
    given, told = WRONG[case]
    with pytest.raises(ConfigError, match=told):
        airflow_room.OrderedWindowOperator(**words(**_AIRFLOW, **given))
    with pytest.raises(ConfigError, match=told):
        WindowSettings(**words(topics="t", group_id="g", **given))


def test_an_operator_takes_templates_for_its_table() -> None:
    """What is not known when the DAG is loaded is checked when it is rendered."""
    to = Table("lake.{{ params.table }}", "{{ params.mode }}", keys=["{{ params.key }}"])
    operator = airflow_room.OrderedWindowOperator(**_AIRFLOW, output=to)
    params = {"table": "orders", "mode": "upsert", "key": "id"}
    with pytest.raises(AirflowFailException, match="mode is 'upsert'"):
        operator.render_template_fields(_context(params))
    # A value is not changed: it may be another task's as well.
    assert operator.output_to is to
    operator.render_template_fields(_context({**params, "mode": "merge"}))
    assert operator.output_to == Table("lake.orders", TableMode.MERGE, ["id"])


def _context(params: dict[str, str]) -> Any:
    return {**context_of(60), "params": params}


def test_jobs_that_cannot_write_tables_are_refused() -> None:
    """An application has its own session, with its own settings; a part is no window."""
    job = Application("/dags/job.py")
    to = Table("lake.t", conf={"spark.x": "y"})
    with pytest.raises(ConfigError, match="conf in its submit"):
        airflow_room.OrderedWindowOperator(**_AIRFLOW, output=to, job=job)
    with pytest.raises(ConfigError, match="a part of a window cannot be written to a table"):
        airflow_room.WindowPartOperator(task_id="t", window={}, output=Table("t"))
    given: dict[str, Any] = {"topics": "t", "group_id": "g", "output": to}
    with pytest.raises(ConfigError, match="conf in its submit"):
        build_ordered_window_asset(key="a", **given, job=job)
    with pytest.raises(ConfigError, match="conf in its submit"):
        build_ordered_window_op(name="a", **given, job=job)
    asset = build_ordered_window_asset(key="a", **given)
    assert [one.path for one in asset.keys] == [["a"]]


def test_an_application_writes_tables(tmp_path: Path) -> None:
    """From every host: no session is started in its process, and it is asked for what earlier attempts left."""
    job = tmp_path / "job.py"
    job.touch()
    airflow = airflow_room.OrderedWindowOperator(
        **_AIRFLOW, output=Table("t"), job=Application(str(job))
    )
    settings = ClientSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    airflow.check_job(settings, "g")
    with (
        airflow.job_session(settings, []) as found,
        JobSink(table="t", application=job).opened(settings) as of_command,
    ):
        assert isinstance(found, TableApplication)
        assert isinstance(of_command, TableApplication)
        assert found.target == of_command.target == Table("t")
        assert found(Reported().to_json()) == Reported()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "--output is missing"),
        ({"table": "t", "output": "out"}, "--output and --table conflict"),
        ({"table": "t", "mode": "mrege"}, "did you mean 'merge'"),
        ({"table": "t", "mode": "merge"}, "needs keys"),
        ({"table": "t", "engine": Engine.LOCAL}, "--table needs Spark"),
        ({"output": "out", "keys": ["id"]}, "--key is for a table"),
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
