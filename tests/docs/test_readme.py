"""What the README shows runs as written."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kafka_ordered_ops import OrderedWindows, Window
from tests.conftest import MakeTopic, Produce
from tests.support.pages import built_wheel, section

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


def readme_of_index(repository: str | None) -> str:
    """Return the README as the build writes it into the wheel; its script is not on the tests' path."""
    found = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert found is not None
    assert found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    return str(script.readme_of_index(README.read_text(), repository, "1.2.3"))


def test_links_of_the_wheel_lead_to_the_repository_at_its_tag() -> None:
    """Each of them, pictures as files; the code is as it was."""
    repository = "https://forge.example/orders/windows"
    text = readme_of_index(f"{repository}/")
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text)
    assert len(links) > 10
    for picture, link in links:
        path = link.removeprefix(f"{repository}/{'raw' if picture else 'blob'}/v1.2.3/")
        assert (ROOT / path.partition("#")[0]).is_file(), link
    blocks = re.compile(r"```.*?```", re.DOTALL)
    assert blocks.findall(text) == blocks.findall(README.read_text())


def test_without_an_address_the_wheel_has_no_dead_link() -> None:
    """The text of a link stays; a picture does not."""
    text = readme_of_index(None)
    assert re.findall(r"\]\((?!https://)", text) == []
    assert "an ordered reader, functions run by record, and a relay over HTTP" in text
    assert len(text.splitlines()) == len(README.read_text().splitlines()) - 2


@pytest.mark.long
def test_the_wheel_shows_the_readme_without_dead_links(tmp_path: Path) -> None:
    """As an index shows it: the description in the metadata of what is published."""
    wheel = zipfile.ZipFile(built_wheel(tmp_path))
    [name] = [each for each in wheel.namelist() if each.endswith("/METADATA")]
    text = wheel.read(name).decode()
    assert "Description-Content-Type: text/markdown" in text
    assert "# kafka-ordered-ops" in text
    assert re.findall(r"\]\((?!https://)", text) == []


@pytest.mark.slow
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


@pytest.mark.slow
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
def test_the_function(run: Any, bootstrap: str, group_id: str, tmp_path: Path) -> None:
    """Three keys are counted, and published."""
    space = run(block("Your own code"), duckdb=duckdb)
    with OrderedWindows(bootstrap, group_id) as windows:
        result = windows.run(space["hour"], tmp_path, job=space["totals"])
    assert result.to_arrow().num_rows == 3
