"""The first assets of Dagster's page, from an empty folder, with nothing but what the page says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow.dataset as ds
import pytest

from kafka_ordered_ops.dagster import SparkResource
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.pages import Section, built_wheel, follow, section

pytestmark = pytest.mark.timeout(1_200)

#: The hour that has just ended, for these tests.
HOUR = datetime(2026, 1, 1, 23, tzinfo=UTC)
MATERIALIZE = "dagster asset materialize -f {} --select '*' --partition \"$hour\"\n"


def replaced_by(bootstrap: str, lake: Path, topic: str, group_id: str) -> dict[str, str]:
    """What is this test's own."""
    return {
        "localhost:9092": bootstrap,
        "/tmp/lake": str(lake),
        'Window("orders"': f'Window("{topic}"',
        'group_id="lake-orders': f'group_id="{group_id}',
        "$(date -u -d '1 hour ago' +%Y-%m-%d-%H:00)": "2026-01-01-23:00",
        "$(date -u -d '24 hours ago' +%Y-%m-%d-%H:00)": "2026-01-01-00:00",
    }


@pytest.fixture
def hour(topic: MakeTopic, produce: Produce) -> str:
    """Ten records of the hour, in two partitions, and one of the hour before in each."""
    name = topic(partitions=2)
    ms = int(HOUR.timestamp() * 1000)
    before = ms - timedelta(hours=1) // timedelta(milliseconds=1)
    produce((name, n, b"k", b"earlier", before, ()) for n in range(2))
    produce((name, n % 2, b"k", b"%d" % n, ms + n, ()) for n in range(10))
    return name


@pytest.mark.parametrize(
    "is_fresh",
    [
        pytest.param(False, id="here", marks=pytest.mark.slow),
        pytest.param(True, id="fresh", marks=pytest.mark.long),
    ],
)
def test_the_first_assets_run_as_the_page_has_them(
    bootstrap: str, hour: str, group_id: str, tmp_path: Path, is_fresh: bool
) -> None:
    """Here in the environment of the tests; fresh in one where the page's own line has installed the wheel."""
    folder, lake = tmp_path / "empty", tmp_path / "lake"
    folder.mkdir()
    replaced = replaced_by(bootstrap, lake, hour, group_id)
    wheel = built_wheel(tmp_path / "dist") if is_fresh else None
    page = section("dagster/index.md", "A first asset")
    assert MATERIALIZE.format("orders.py") in page.commands
    printed = follow(page, folder, replaced, wheel=wheel)
    # Of the asset downstream, which has read the folder.
    assert "1 keys" in printed
    values = ds.dataset(lake / "orders").to_table()["value"].to_pylist()
    assert values == [b"%d" % n for n in range(10)]


@pytest.mark.long
def test_the_first_hour_goes_as_the_page_tells_it(
    bootstrap: str, hour: str, group_id: str, tmp_path: Path
) -> None:
    """The failed partition delivers all its records once it is repaired, twice, and the range the rest of the day."""
    own = {**replaced_by(bootstrap, tmp_path, hour, group_id), "sizes-by-hour": group_id}
    page = section("dagster/index.md", "The first hour")
    install = 'pip install kafka-ordered-ops\nexport DAGSTER_HOME="$PWD"\n'
    printed = follow(replace(page, commands=install + page.commands), tmp_path, own)
    assert "vlaue" in printed
    assert printed.count(" - 10 records") == 3
    assert printed.count(" - 2 records") == 1
    assert printed.count(" - 0 records") == 22
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        found = [(one.plan.offsets, one.plan.status.is_done) for one in windows.list()]
    assert found == [*[(0, True)] * 22, (2, True), (10, True)]


@pytest.mark.long
@pytest.mark.spark
def test_the_asset_with_spark_runs_as_the_page_has_it(
    bootstrap: str, hour: str, group_id: str, tmp_path: Path
) -> None:
    """Its session is that of the package's own resource."""
    folder, lake = tmp_path / "empty", tmp_path / "lake"
    folder.mkdir()
    page = section("dagster/index.md", "The same with Spark")
    commands = 'export DAGSTER_HOME="$PWD"\nhour=2026-01-01-23:00\n'
    run = commands + MATERIALIZE.format("orders_with_spark.py")
    given = Section(page.files, page.commands + run)
    follow(given, folder, replaced_by(bootstrap, lake, hour, group_id))
    values = ds.dataset(lake / "orders_with_spark").to_table()["value"].to_pylist()
    assert values == [b"%d" % n for n in range(10)]


def test_spark_that_cannot_start_is_refused_before_the_step() -> None:
    """A window that was planned would hold its records."""
    ran = []

    @dg.asset
    def one(spark: SparkResource) -> None:
        ran.append(spark)

    result = dg.materialize(
        [one], resources={"spark": SparkResource(conf={"memory": "2g"})}, raise_on_error=False
    )
    assert (result.success, ran) == (False, [])
    told = [str(event.event_specific_data) for event in result.all_events if event.is_failure]
    assert any("'memory' is not a Spark setting" in one for one in told)
