"""What the README shows runs as written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kafka_ordered_ops import OrderedWindows, Window
from tests.conftest import MakeTopic, Produce
from tests.support.pages import section

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
_NOON_MS = 1_700_481_600_000  # 2023-11-20T12:00:00Z


def block(heading: str, language: str = "python") -> str:
    """Return the block of code below a heading."""
    text = README.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    [code] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return str(code)


@pytest.fixture
def run(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """Run code with this test's broker, topic, group and folder in it, and a day that is over."""
    orders = topic(partitions=2)
    produce(
        (orders, n % 2, b"k%d" % (n % 3), b"x", _NOON_MS + (n * 37 % 200 - 100) * 60_000, ())
        for n in range(200)
    )

    def run(code: str, **space: Any) -> dict[str, Any]:
        for shown, mine in {
            "localhost:9092": bootstrap,
            'Window("orders"': f'Window("{orders}"',
            "/tmp/lake": str(tmp_path),
            "2026-01-01": "2023-11-20",
            "lake-orders": group_id,
        }.items():
            code = code.replace(shown, mine)
        exec(code, space)
        return {
            **space,
            "hour": Window(orders, cutoff="2023-11-20T12:00:00Z", starting_offsets="earliest"),
        }

    return run


def test_it_fits_a_glance_and_its_links_lead_somewhere() -> None:
    """At most 150 lines; each link is to a file of the repository."""
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    links = re.findall(r"\]\(([^)#]+)", text)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_first_example_prints_what_is_shown(tmp_path: Path) -> None:
    """In an empty folder: a window, a late record, and the first window again."""
    (tmp_path / "first.py").write_text(block("Try it"))
    ran = subprocess.run(
        [sys.executable, "first.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout.strip() == block("Try it", "text").strip()


def test_the_dag_is_the_one_of_the_airflow_page() -> None:
    """Which runs as that page says."""
    assert block("In Airflow") == section("airflow/index.md", "A first DAG").files["dags/orders.py"]


def test_the_asset(run: Any, tmp_path: Path) -> None:
    """One partition has the records of its hour."""
    import dagster as dg

    defs = run(block("In Dagster"))["defs"]
    job = defs.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        ran = job.execute_in_process(instance=instance, partition_key="2023-11-20-11:00")
    assert ran.success
    assert len(list((tmp_path / "orders").glob("window_id=*/part-*.parquet"))) == 1


def test_the_function(run: Any, bootstrap: str, group_id: str, tmp_path: Path) -> None:
    """Three keys are counted, and published."""
    space = run(block("Your own code"), duckdb=duckdb)
    with OrderedWindows(bootstrap, group_id) as windows:
        result = windows.run(space["hour"], tmp_path, job=space["totals"])
    assert result.to_arrow().num_rows == 3
