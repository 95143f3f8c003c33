"""What the README shows of Python runs as written, on a real broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest

from kafka_ordered_ops import Window
from tests.conftest import MakeTopic, Produce
from tests.support.pages import section
from tests.support.spark_support import spark

__all__ = ["spark"]  # a fixture

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
_NOON_MS = 1_700_481_600_000  # 2023-11-20T12:00:00Z


def block(heading: str, number: int = 0, language: str = "python") -> str:
    """Return a block of code below a heading."""
    text = README.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return blocks[number]


@pytest.fixture
def own(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> Callable[[str], str]:
    """Put this test's broker, topic, groups and folder into a block, and a day that is over."""
    orders = topic(partitions=2)
    produce(
        (orders, n % 2, b"k%d" % (n % 3), b"x", _NOON_MS + (n * 37 % 200 - 100) * 60_000, ())
        for n in range(200)
    )
    names = {
        "localhost:9092": bootstrap,
        'Window("orders"': f'Window("{orders}"',
        'topics=["orders"]': f'topics=["{orders}"]',
        "-t orders ": f"-t {orders} ",
        "/lake": str(tmp_path),
        "2026-11-20T": "2023-11-20T",
        "datetime(2026,": "datetime(2023,",
        "2026-01-01": "2023-11-20",
        **{
            group: f"{group_id}-{group}"
            for group in ("orders-hourly", "orders-daily", "orders-cli", "lake-orders")
        },
    }

    def replace(code: str) -> str:
        for shown, mine in names.items():
            code = code.replace(shown, mine)
        return code

    return replace


@pytest.fixture
def run(own: Callable[[str], str]) -> Iterator[Callable[..., dict[str, Any]]]:
    """Run blocks in one namespace."""
    space: dict[str, Any] = {"Window": Window}

    def run(code: str, **more: Any) -> dict[str, Any]:
        space.update(more)
        exec(own(code), space)
        return space

    yield run
    if "windows" in space:
        space["windows"].close()


def counted(spark: Any, folder: Path) -> int:
    """Return the rows of a folder's one window."""
    [window] = folder.glob("window_id=*")
    rows: int = spark.read.parquet(f"file://{window}").count()
    return rows


def test_one_call_and_arrow(run: Any, tmp_path: Path) -> None:
    """The first call publishes all before noon; the block has the next hour, in order."""
    run(block("One call"))
    assert len(list((tmp_path / "orders").glob("window_id=*/part-*.parquet"))) == 1
    space = run(block("From Python"), duckdb=duckdb, polars=polars)
    times = space["orders"]["timestamp"].to_pylist()
    assert times == sorted(times)
    assert 0 < len(times) < 100
    assert {one.hour for one in times} == {12}
    assert [one.status for one in space["windows"].list()] == ["published"] * 2


@pytest.mark.slow
@pytest.mark.spark
def test_a_function_an_application_and_intervals_with_spark(
    run: Any, spark: Any, tmp_path: Path
) -> None:
    """A function's result by key, an application's copy of the next hour, and twenty days in one pass."""
    run(block("One call"))
    run(block("From Python", 1), spark=spark)
    assert counted(spark, tmp_path / "totals") == 3
    job = ROOT / "docs" / "snippets" / "order_amounts.py"
    hour = run(block("From Python", 1).partition("def")[0].replace("T14", "T15"))["hour"]
    application = block("From Python", 2)
    assert "/opt/jobs/orders.py" in application
    result = run(application.replace("/opt/jobs/orders.py", str(job)), hour=hour)
    assert [one.status for one in result["windows"].list()] == ["published"] * 3
    run(block("From Python", 4))
    days = spark.read.parquet(f"file://{tmp_path}/daily")
    assert days.groupBy("window_id").count().collect()[0]["count"] == 200


@pytest.mark.spark41
@pytest.mark.timeout(600)
def test_a_delta_table(run: Any, spark: Any, tmp_path: Path) -> None:
    """The window's rows are in the table, under its id."""
    run(block("One call"))
    table, folder = f"delta.`{tmp_path}/table`", f"file://{tmp_path}/orders"
    empty = spark.read.parquet(folder).limit(0).write.format("delta")
    empty.partitionBy("window_id").save(f"{tmp_path}/table")
    run(block("From Python", 1).partition("def")[0])
    run(block("From Python", 3).replace("lake.orders", table), spark=spark)
    assert spark.table(table).count() == 100


def test_the_dag_is_the_one_of_the_airflow_page() -> None:
    """Which runs as that page says."""
    page = section("airflow/index.md", "A first DAG").files["dags/orders.py"]
    assert block("In Airflow") == page.replace("/tmp/lake", "/lake")


def test_the_asset(run: Any, tmp_path: Path) -> None:
    """One partition has the records of its hour."""
    import dagster as dg

    defs = run(block("In Dagster"))["defs"]
    job = defs.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        ran = job.execute_in_process(instance=instance, partition_key="2023-11-20-11:00")
    assert ran.success
    assert len(list((tmp_path / "orders").glob("window_id=*/part-*.parquet"))) == 1


@pytest.mark.slow
def test_the_two_commands(own: Callable[[str], str], tmp_path: Path) -> None:
    """The second one publishes what the first one shows."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", own(block("From the command line", language="shell"))],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        check=True,
        timeout=120,
    )
    assert len(list(tmp_path.glob("out/window_id=*/part-*.parquet"))) == 1
