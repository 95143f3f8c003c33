"""One function of a window, called by `run` in this process and by a submitted application."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import Application, OrderedWindows, Window
from kafka_ordered_ops.delivery.run_result import RunResult
from tests.support.spark_support import spark as spark
from tests.support.submit_support import application, small
from tests.support.windows_support import at

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.spark]

#: The functions, in a module beside the application. They know nothing of where they run.
FUNCTIONS = """
    import pyarrow as pa
    import pyarrow.compute as pc

    from kafka_ordered_ops import ConfigError, OpenWindow

    def with_spark(window):
        assert type(window) is OpenWindow
        window.write(window.read().selectExpr("*", "octet_length(value) as size"))

    def with_arrow(window):
        table = pa.table(window)
        assert table.equals(window.to_arrow())
        assert sum(batch.num_rows for batch in window.to_batches(ordered=False)) == table.num_rows
        try:
            window.write("no table")
        except TypeError as error:
            assert "Arrow" in str(error), error
        else:
            raise SystemError("a text was accepted")
        window.write(table.append_column("size", pc.binary_length(table["value"])))
        try:
            window.write(table)
        except ConfigError as error:
            assert "one output" in str(error), error
        else:
            raise SystemError("a second output was accepted")

    def reporting(window):
        assert not window.is_replay
        window.report({"offsets": window.plan.offsets, "rows": window.to_arrow().num_rows, "id": window.window_id})
"""

CALLS = """
    import sys
    import functions
    from pyspark.sql import SparkSession
    from kafka_ordered_ops import current_window

    spark = SparkSession.builder.getOrCreate()
    assert current_window(spark).spark is spark
    getattr(functions, sys.argv[1])(current_window(spark))
"""

#: The seconds of the window's records, in order.
SECONDS = [0, 5, 10, 15, 20]

Run = Callable[..., list[RunResult]]


@pytest.fixture
def both(bootstrap: str, orders: str, group_id: str, spark: Any, tmp_path: Path) -> Run:
    """Deliver the same window by `run` with a function, and by an application that calls the same function."""
    path = tmp_path / "functions.py"
    path.write_text(textwrap.dedent(FUNCTIONS))
    spec = importlib.util.spec_from_file_location("functions", path)
    assert spec is not None
    assert spec.loader is not None
    functions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(functions)
    window = Window(orders, cutoff=at(25), starting_offsets="earliest")

    def run(name: str, output: bool = True) -> list[RunResult]:
        jobs: list[Any] = [
            getattr(functions, name),
            Application(application(tmp_path, CALLS), [name], small()),
        ]
        results = []
        for number, job in enumerate(jobs):
            session = spark if number == 0 and name == "with_spark" else None
            to = tmp_path / f"out-{number}" if output else None
            with OrderedWindows(bootstrap, f"{group_id}-{number}") as windows:
                results.append(windows.run(window, to, job=job, window_id="w", spark=session))
        return results

    return run


@pytest.mark.parametrize("name", ["with_spark", "with_arrow"])
def test_a_function_writes_the_same_in_both(both: Run, name: str) -> None:
    """A Spark DataFrame, or Arrow data that needs no Spark: the same rows, in order."""
    tables = []
    for result in both(name):
        assert (result.ran, result.records) == (True, 5)
        [file] = Path(str(result.output)).glob("part-*.parquet")
        tables.append(pq.read_table(file))
    for table in tables:
        stamps: list[Any] = table["timestamp"].to_pylist()
        times = [round((stamp - at(0)).total_seconds()) for stamp in stamps]
        assert times == SECONDS
        assert table["size"].to_pylist() == [1] * 5
    assert tables[0].column_names == tables[1].column_names


def test_a_function_reports_the_same_in_both(both: Run) -> None:
    """Without an output: its JSON is stored with the window."""
    here, submitted = both("reporting", output=False)
    assert here.returned == submitted.returned == {"offsets": 5, "rows": 5, "id": "w"}
