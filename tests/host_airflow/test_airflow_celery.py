"""Windows in an Airflow whose tasks are run by Celery's workers, which shut down, are told to end, or are killed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.output import files
from tests.support.airflow_house import HOUR, SCENARIOS, T0, House, airflow_house, up_to
from tests.support.airflow_house import fill as fill
from tests.support.celery_workers import CeleryWorker, Workers, celery_variables, missing, redis
from tests.support.delivered import Records, delivered, times, within

#: What a worker writes about a message of a task that runs.
ELSEWHERE = "already running elsewhere"

# Airflow alone takes most of a minute to start, and every wait below has an end of its own.
pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def house(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One Airflow for all tests here."""
    if reason := missing():
        pytest.skip(reason)
    root, dags = tmp_path_factory.mktemp("celery"), SCENARIOS / "celery_scenarios"
    with (
        redis(root / "redis") as broker,
        airflow_house(bootstrap, root, dags, celery_variables(broker)) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def workers(house: House) -> Iterator[Workers]:
    """Its workers: two, whenever a test begins."""
    with Workers(house.output.parent, house.airflow.environment) as found:
        yield found


@pytest.fixture(autouse=True)
def _two(workers: Workers) -> None:
    workers.keep(2)


def check_exact(house: House, dag_id: str, wanted: list[tuple[int, int]]) -> None:
    """Readers find these records once, in the order of time, window by window."""
    rows: list[tuple[Any, int, int]] = []
    for path in files(str(house.output / dag_id)):
        table = pq.read_table(path, columns=["timestamp", "partition", "offset"])
        rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
    assert rows == sorted(rows)
    assert sorted((partition, offset) for _, partition, offset in rows) == wanted
    assert delivered(house.output / dag_id) == wanted


def begun(house: House, workers: Workers, dag_id: str) -> tuple[CeleryWorker, int]:
    """Start one window of a DAG; return the worker and the process that hold it."""
    house.airflow.trigger(dag_id, "once", **up_to(T0 + HOUR))
    pid = int(house.told(dag_id, "1.ready"))
    return workers.of(pid), pid


def test_a_worker_that_shuts_down_finishes_its_window(
    house: House, workers: Workers, fill: Callable[..., Records]
) -> None:
    """SIGTERM to its first process: it takes no more tasks, and ends when the held one is done, in its only attempt."""
    records = fill("shut_down", times(T0, T0 + 2 * HOUR))
    worker, pid = begun(house, workers, "shut_down")
    worker.shut_down()
    worker.await_log("Warm shutdown")
    assert worker.has(pid)
    house.let_go("shut_down", 1)
    worker.await_end()
    house.airflow.await_run("shut_down", "once")
    assert house.airflow.xcom("shut_down", "once", "orders")["attempt"] == 1
    check_exact(house, "shut_down", within(records, T0 + HOUR))
    assert house.statuses("shut_down") == [WindowStatus.PUBLISHED]


def test_a_task_that_is_told_to_end_commits_nothing(
    house: House, workers: Workers, fill: Callable[..., Records]
) -> None:
    """SIGTERM to each process, as some containers send it: the attempt fails by itself, and the next one delivers."""
    records = fill("ended", times(T0, T0 + 2 * HOUR))
    worker, _ = begun(house, workers, "ended")
    worker.signal_all(signal.SIGTERM)
    house.let_go("ended", 1)
    worker.await_end()
    house.let_go("ended", 2)
    house.airflow.await_task("ended", "once", "orders", "success", tries=2)
    log = house.airflow.log("ended", "once", "orders", 1)
    assert "Airflow ended this attempt. Nothing was committed" in log
    assert house.airflow.xcom("ended", "once", "orders")["attempt"] == 2
    check_exact(house, "ended", within(records, T0 + HOUR))
    assert house.statuses("ended") == [WindowStatus.PUBLISHED]


def test_a_window_of_a_killed_worker_and_its_message(
    house: House, workers: Workers, fill: Callable[..., Records]
) -> None:
    """Kill -9 to all of it: another worker delivers; the dead one's message comes again meanwhile, and changes nothing."""
    records = fill("killed", times(T0, T0 + 2 * HOUR))
    worker, _ = begun(house, workers, "killed")
    worker.signal_all(signal.SIGKILL)
    worker.await_end()
    house.told("killed", "2.ready")
    workers.keep(2)
    house.airflow.until(lambda: workers.received("killed") > 2, lambda: workers.log()[-6000:])
    assert delivered(house.output / "killed") == []
    house.let_go("killed", 2)
    house.airflow.await_task("killed", "once", "orders", "success", tries=2)
    assert house.airflow.xcom("killed", "once", "orders")["attempt"] == 2
    check_exact(house, "killed", within(records, T0 + HOUR))
    assert house.statuses("killed") == [WindowStatus.PUBLISHED]


def test_a_task_that_outlasts_the_visibility_timeout(
    house: House, workers: Workers, fill: Callable[..., Records]
) -> None:
    """Redis gives its message to a worker again, which drops it: the one attempt delivers."""
    records = fill("outlasting", times(T0, T0 + 2 * HOUR))
    dropped = workers.log().count(ELSEWHERE)
    worker, pid = begun(house, workers, "outlasting")
    house.airflow.until(lambda: workers.received("outlasting") > 1, lambda: workers.log()[-6000:])
    house.airflow.until(
        lambda: workers.log().count(ELSEWHERE) > dropped, lambda: workers.log()[-6000:]
    )
    assert worker.has(pid)
    house.let_go("outlasting", 1)
    house.airflow.await_task("outlasting", "once", "orders", "success", tries=1)
    assert house.airflow.xcom("outlasting", "once", "orders")["attempt"] == 1
    check_exact(house, "outlasting", within(records, T0 + HOUR))
    assert house.statuses("outlasting") == [WindowStatus.PUBLISHED]
