"""A whole Airflow whose windows go into an object store, and whose processes are killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from kafka_ordered_ops import StagedOutput
from kafka_ordered_ops.core.types import WindowStatus
from tests.support.airflow_house import HOUR, SCENARIOS, T0, House, airflow_house
from tests.support.airflow_house import fill as fill
from tests.support.delivered import Records, times, within
from tests.support.host_kills import KILLS, check_exact, killed, left_over
from tests.support.lakes import LakeSide
from tests.support.lakes import side as side

# Airflow alone takes most of a minute to start, and every wait below has an end of its own.
pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(2400)]

#: So long a dozen attempts may take, or six that start a Spark, on a busy machine.
_WINDOWS_S, _SPARK_S = 480, 1_500


@pytest.fixture(scope="module")
def house(bootstrap: str, side: LakeSide) -> Iterator[House]:
    """One Airflow for all tests here, with Spark 4.1."""
    dags = SCENARIOS / "lake_scenarios"
    with airflow_house(bootstrap, side.output.parent, dags, side.variables) as found:
        options = side.options
        found.airflow.connect(
            "lake",
            "aws",
            {
                "aws_access_key_id": options["aws_access_key_id"],
                "aws_secret_access_key": options["aws_secret_access_key"],
                "region_name": options["aws_region"],
                "endpoint_url": options["aws_endpoint"],
            },
        )
        yield found


def test_a_backfill_into_a_store_is_killed_everywhere(
    house: House, side: LakeSide, fill: Callable[..., Records]
) -> None:
    """Eight windows at once, each task or its store killed between other writes; two of them are replayed then."""
    dag_id, hours = "to_store", len(KILLS)
    records = fill(dag_id, times(T0, T0 + (hours + 1) * HOUR, 400))
    wanted = within(records, T0 + hours * HOUR)
    house.airflow.backfill(dag_id, T0.isoformat(), (T0 + (hours - 1) * HOUR).isoformat())
    runs = house.airflow.await_runs(dag_id, hours, _WINDOWS_S)
    victims = {hour: kill.victim for hour, kill in KILLS.items()}
    assert killed(house.signal(dag_id, "")) == victims
    root = f"s3://bucket/lake/{dag_id}"
    _clean(root, side)
    check_exact(root, side.options, wanted)
    again = [run for run in runs if _hour(run["logical_date"]) in (3, 5)]
    for run in again:
        house.signal(dag_id, f"{_hour(run['logical_date'])}.killed").unlink()
        house.airflow.clear(dag_id, run["dag_run_id"])
    for run in again:
        house.airflow.await_task(dag_id, run["dag_run_id"], "orders", "success", tries=4)
    assert killed(house.signal(dag_id, "")) == victims
    check_exact(root, side.options, wanted)
    assert house.statuses(dag_id) == [WindowStatus.PUBLISHED] * hours


def test_a_backfill_by_spark_into_a_store_is_killed_everywhere(
    house: House, side: LakeSide, fill: Callable[..., Records]
) -> None:
    """Three applications by spark-submit, of which a driver, a JVM and a task that submitted one are killed."""
    dag_id = "by_spark"
    records = fill(dag_id, times(T0, T0 + 4 * HOUR, 400))
    house.airflow.backfill(dag_id, T0.isoformat(), (T0 + 2 * HOUR).isoformat())
    house.airflow.await_runs(dag_id, 3, _SPARK_S)
    assert killed(house.signal(dag_id, "")) == {0: "driver", 1: "jvm", 2: "task"}
    check_exact(f"s3://bucket/lake/{dag_id}", side.options, within(records, T0 + 3 * HOUR))
    assert house.statuses(dag_id) == [WindowStatus.PUBLISHED] * 3


def _clean(root: str, side: LakeSide) -> None:
    """Of what dead attempts left, publications leave only what was not written for a window: the probe's object."""
    left = left_over(root, side.options)
    assert all("/probe/" in f"/{one}" for one in left), left
    assert StagedOutput.clean(root, older_than="PT0S", storage_options=side.options) == len(left)


def _hour(time: str) -> int:
    return datetime.fromisoformat(time).hour
