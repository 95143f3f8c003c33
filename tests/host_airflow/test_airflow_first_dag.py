"""The first DAG of Airflow's page, from an empty folder, with nothing but what the page says."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow.dataset as ds
import pytest

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
