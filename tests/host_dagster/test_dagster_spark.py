"""Spark jobs of assets: a session in the step, spark-submit, and Pipes; several windows in one pass."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import dagster as dg
import pytest

from kafka_ordered_ops import Application, Copy, OpenWindow
from kafka_ordered_ops.dagster import (
    AssetWindows,
    build_ordered_window_asset,
    ordered_window_asset,
    window_id_of,
)
from kafka_ordered_ops.spark.read.read import read_good
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.dagster_support import KEYS, House, expected, failure_of, windows_of
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house
from tests.support.spark_support import spark as spark
from tests.support.submit_support import COPY, application, small

pytestmark = pytest.mark.timeout(600)

PROJECT: Final = Path(__file__).parents[2] / "example_dags" / "dagster_project"
PIPED_ORDERS: Final = PROJECT / "src" / "orders_project" / "defs" / "piped_orders.py"

#: Dagster's own client asks its own context in a way that it gives up, and uses what is a preview.
PIPES_WARNINGS: Final = (
    "ignore:AssetExecutionContext.run_id is deprecated:DeprecationWarning",
    "ignore:Function `PipesMessageReader.expected_writer_count`",
)


def check_delivered(house: House, first: int, last: int, key: str = "orders") -> None:
    """Each of the hours in its own folder, in order, with its own counts."""
    told = house.told(key)
    assert set(told) == set(KEYS[first : last + 1])
    for hour in range(first, last + 1):
        values = told[KEYS[hour]]
        assert values["dagster/partition_row_count"] == 4
        assert house.offsets(values["dagster/uri"]) == expected(hour)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("last", [1, 3])
def test_a_session_in_the_step(
    house: House, hours: str, group_id: str, spark: Any, last: int
) -> None:
    """One window, or three in one read and one write."""

    @ordered_window_asset(**windows_of(house, hours, group_id))
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        windows.write(windows.read(spark))

    house.materialize(orders, (KEYS[1], KEYS[last]))
    check_delivered(house, 1, last)


@pytest.mark.slow
def test_a_session_that_the_step_starts(
    house: House, hours: str, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its first use, for that window and all after it, whose last one ends it."""
    running: list[int] = []
    said: list[str] = []

    @contextmanager
    def session(*_given: Any) -> Iterator[Any]:
        is_ours = not running
        if is_ours:
            said.append("started")
            running.append(len(said))
        yield SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl=None), number=running[0])
        if is_ours:
            said.append("ended")
            running.clear()

    # The tests' own session runs in this process.
    monkeypatch.setattr("kafka_ordered_ops.spark.environment.has_session", lambda: bool(running))
    monkeypatch.setattr("kafka_ordered_ops.spark.job_session.job_session", session)

    @ordered_window_asset(**windows_of(house, hours, group_id))
    def orders(window: OpenWindow) -> None:
        said.append(window.window_id[11:16])
        if window.window_id != window_id_of("orders", KEYS[1]):
            said.append(f"in {window.spark.number}")
        window.write(window.to_arrow())

    house.materialize(orders, (KEYS[1], KEYS[4]))
    check_delivered(house, 1, 4)
    assert said == [
        *("01-00", "02-00", "started", "in 3"),
        *("03-00", "in 3", "04-00", "in 3", "ended"),
    ]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("job", "reads"),
    [
        (Copy(), 0),
        (Copy("python"), 1),
        (Copy(conf={"spark.sql.shuffle.partitions": "2"}), 1),
    ],
)
def test_a_copy_by_spark(
    house: House,
    hours: str,
    group_id: str,
    monkeypatch: pytest.MonkeyPatch,
    job: Copy,
    reads: int,
) -> None:
    """An engine of Spark, or settings of a session, start Spark; without either this process copies."""
    read: list[object] = []

    def counted(*given: Any, **options: Any) -> Any:
        read.append(given)
        return read_good(*given, **options)

    monkeypatch.setattr("kafka_ordered_ops.spark.read.read.read_good", counted)
    orders = build_ordered_window_asset(**windows_of(house, hours, group_id), job=job)
    house.materialize(orders, (KEYS[0], KEYS[2]))
    check_delivered(house, 0, 2)
    assert len(read) == reads


@pytest.mark.slow
@pytest.mark.spark
def test_spark_submit(house: House, hours: str, group_id: str, tmp_path: Path) -> None:
    """The application asks for its windows; its log lines are the step's."""
    job = application(tmp_path, COPY)
    given = windows_of(house, hours, group_id)
    orders = build_ordered_window_asset(**given, job=Application(job, submit=small()))
    house.materialize(orders, (KEYS[0], KEYS[2]))
    check_delivered(house, 0, 2)


PIPES = """
import sys
from dagster_pipes import open_dagster_pipes
from kafka_ordered_ops.output.writing.stage import stage_windows
from kafka_ordered_ops.spark import planned_windows

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


@pytest.mark.slow
@pytest.mark.filterwarnings(*PIPES_WARNINGS)
@pytest.mark.parametrize("leaves_one_out", [False, True])
def test_pipes(
    house: House, hours: str, group_id: str, tmp_path: Path, leaves_one_out: bool
) -> None:
    """A job elsewhere is handed its windows; what it wrote is taken up, whole, or nothing is committed."""
    script = tmp_path / "job.py"
    script.write_text(PIPES)

    @ordered_window_asset(**windows_of(house, hours, group_id))
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
        with OrderedWindows({"bootstrap.servers": house.bootstrap}, group_id) as windows:
            assert {record.status.value for record in windows.list()} == {"planned"}
        return
    check_delivered(house, 2, 4)
    assert house.told("orders")[KEYS[2]]["job"] == "elsewhere"


@pytest.mark.long
@pytest.mark.filterwarnings(*PIPES_WARNINGS)
@pytest.mark.spark
def test_spark_submit_through_pipes(
    house: House, hours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example, over three partitions in one run; the first Python of the path is asked for nothing."""
    example = piped_example(house, hours, tmp_path, monkeypatch)
    pipes = dg.PipesSubprocessClient()
    house.materialize(example.piped_orders, (KEYS[1], KEYS[3]), pipes=pipes)
    check_delivered(house, 1, 3, "piped_orders")
    for told in house.told("piped_orders").values():
        assert (told["spark_version"], told["windows_written"]) == (version("pyspark"), 3)


def no_python(folder: Path) -> Path:
    """A folder whose Pythons do nothing: whoever takes the first ones of the path gets them."""
    for name in ("python", "python3"):
        program = folder / "first" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\nexit 99\n")
        program.chmod(0o755)
    return folder / "first"


def piped_example(house: House, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the example project, on this test's topic."""
    how = small()
    environment = {
        "KAFKA_BOOTSTRAP": house.bootstrap,
        "ORDERS_TOPIC": topic,
        "ORDERS_OUTPUT": str(house.output),
        "SPARK_MASTER": str(how.master),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **({} if how.java_home is None else {"JAVA_HOME": str(how.java_home)}),
        "PATH": f"{no_python(tmp_path)}{os.pathsep}{os.environ['PATH']}",
    }
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location("piped_orders", PIPED_ORDERS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
