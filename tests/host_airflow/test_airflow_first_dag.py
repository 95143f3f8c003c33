"""The first DAG of Airflow's page, from an empty folder, with nothing but what the page says."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.pages import built_wheel, follow, section

pytestmark = pytest.mark.timeout(1_200)

BEFORE_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    "is_fresh",
    [
        pytest.param(False, id="here", marks=pytest.mark.slow),
        pytest.param(True, id="fresh", marks=pytest.mark.long),
    ],
)
def test_the_first_dag_runs_as_the_page_has_it(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    group_id: str,
    tmp_path: Path,
    is_fresh: bool,
) -> None:
    """Here in the environment of the tests; fresh in one where the page's own line has installed the wheel."""
    name = topic(partitions=2)
    produce((name, n % 2, b"k", b"%d" % n, BEFORE_MS + n, ()) for n in range(10))
    folder, lake = tmp_path / "empty", tmp_path / "lake"
    folder.mkdir()
    replaced = {
        "localhost:9092": bootstrap,
        "/tmp/lake": str(lake),
        'Window("orders"': f'Window("{name}"',
        'group_id="orders-hourly"': f'group_id="{group_id}"',
    }
    wheel = built_wheel(tmp_path / "dist") if is_fresh else None
    printed = follow(section("airflow/index.md", "A first DAG"), folder, replaced, wheel=wheel)
    # What the page's last file shows.
    assert "timestamp" in printed
    values = ds.dataset(lake / "orders").to_table()["value"].to_pylist()
    assert values == [b"%d" % n for n in range(10)]


@pytest.mark.long
def test_the_first_hour_goes_as_the_page_tells_it(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> None:
    """The failed window keeps its records from a run for an earlier date, and delivers them once it is repaired, twice."""
    name = topic(partitions=2)
    produce((name, n % 2, b"k", b"%d" % n, BEFORE_MS + n, ()) for n in range(10))
    replaced = {
        "localhost:9092": bootstrap,
        'Window("orders"': f'Window("{name}"',
        "orders-sizes": group_id,
    }
    first = section("airflow/index.md", "A first DAG")
    set_up = [line for line in first.commands.splitlines() if "dags test" not in line]
    hour = section("airflow/index.md", "The first hour")
    commands = "\n".join(line for line in set_up if "look.py" not in line)
    printed = follow(replace(hour, commands=f"{commands}\n{hour.commands}"), tmp_path, replaced)
    # What follows each run is its own.
    failed, skipped, delivered, again = printed.split("DagRun Finished")[:4]
    assert "vlaue" in failed
    [held] = set(
        re.findall(r"10 offsets of its times are held by 1 open window: ([\w.-]+\w)", skipped)
    )
    assert f"kafka-ordered-ops windows abandon -g {group_id} {held}" in skipped
    assert "10 records in 10 offsets" in delivered
    assert "10 records in 10 offsets" in again
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        assert [(one.plan.offsets, one.plan.status.is_done) for one in windows.list()] == [
            (0, True),
            (10, True),
        ]
