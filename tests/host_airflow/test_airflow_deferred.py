"""Deferred applications in a whole Airflow: its triggerer waits, and ends the driver of a task that is cleared or marked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_ordered_ops.core.types import WindowStatus
from tests.support.airflow_house import HOUR, T0, House, up_to
from tests.support.airflow_house import fill as fill
from tests.support.airflow_house import house as house
from tests.support.delivered import Records, delivered, times, within
from tests.support.sessions import worker_of
from tests.support.yarn_fake import FakeYarn
from tests.support.yarn_fake import yarn as yarn

# Airflow alone takes most of a minute to start, and every wait below has an end of its own.
pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(900)]


def started(
    house: House, yarn: FakeYarn, fill: Callable[..., Records], dag_id: str, then: str = ""
) -> list[tuple[int, int]]:
    """Start one window of a DAG; return the records that it is to deliver."""
    folder = house.output / f"{dag_id}.yarn"
    folder.mkdir()
    yarn.submit(folder, then)
    records = fill(dag_id, times(T0, T0 + 2 * HOUR))
    house.airflow.trigger(dag_id, "once", **up_to(T0 + HOUR))
    return within(records, T0 + HOUR)


def driven(house: House, yarn: FakeYarn, dag_id: str) -> None:
    """The newest driver copies its window."""
    with house.windows(house.name(dag_id)) as windows:
        yarn.drive(windows.settings)


def states(yarn: FakeYarn) -> list[str]:
    """What has become of each driver, in the order of their submission."""
    return [one["state"] for one in yarn.applications]


def test_a_deferred_window(house: House, yarn: FakeYarn, fill: Callable[..., Records]) -> None:
    """No worker waits while the driver runs; when it has ended, its output is committed and published."""
    wanted = started(house, yarn, fill, "deferred")
    house.airflow.await_task("deferred", "once", "orders", "deferred")
    assert states(yarn) == ["RUNNING"]
    assert house.statuses("deferred") == [WindowStatus.PLANNED]
    driven(house, yarn, "deferred")
    house.airflow.await_task("deferred", "once", "orders", "success")
    facts = house.airflow.xcom("deferred", "once", "orders")
    assert (facts["records"], facts["attempt"]) == (len(wanted), 1)
    assert delivered(house.output / "deferred") == wanted
    assert states(yarn) == ["FINISHED"]
    assert house.statuses("deferred") == [WindowStatus.PUBLISHED]


@pytest.mark.parametrize("dag_id", ["deferred_cleared", "deferred_marked"])
def test_a_task_cleared_or_marked_ends_its_driver(
    house: House, yarn: FakeYarn, fill: Callable[..., Records], dag_id: str
) -> None:
    """The triggerer does; what runs next takes the same records with its own driver."""
    wanted = started(house, yarn, fill, dag_id)
    house.airflow.await_task(dag_id, "once", "orders", "deferred")
    if dag_id == "deferred_marked":
        # Airflow tells nobody of a task that is marked before a triggerer has begun to wait.
        house.airflow.until(
            lambda: "starting" in house.airflow.log(dag_id, "once", "orders", 1),
            lambda: house.airflow.stories(dag_id),
        )
        house.airflow.fail(dag_id, "once", "orders")
        house.airflow.until(
            lambda: states(yarn) == ["KILLED"], lambda: house.airflow.stories(dag_id)
        )
        assert delivered(house.output / dag_id) == []
        assert house.statuses(dag_id) == [WindowStatus.PLANNED]
    house.airflow.clear(dag_id, "once")
    house.airflow.until(
        lambda: states(yarn) == ["KILLED", "RUNNING"], lambda: house.airflow.stories(dag_id)
    )
    driven(house, yarn, dag_id)
    house.airflow.await_task(dag_id, "once", "orders", "success", tries=2)
    assert delivered(house.output / dag_id) == wanted
    assert states(yarn) == ["KILLED", "FINISHED"]
    assert house.statuses(dag_id) == [WindowStatus.PUBLISHED]


def test_a_task_killed_after_its_submission(
    house: House, yarn: FakeYarn, fill: Callable[..., Records], tmp_path: Path
) -> None:
    """By kill -9, before it is deferred: the retry waits for the same driver, and submits no second one."""
    ready = tmp_path / "ready"
    then = (
        "import os, pathlib, time; "
        f"path = pathlib.Path({str(ready)!r}); path.with_suffix('.new').write_text(str(os.getppid())); "
        "path.with_suffix('.new').rename(path); time.sleep(300)"
    )
    wanted = started(house, yarn, fill, "deferred_killed", then)
    house.airflow.until(ready.exists, lambda: house.airflow.stories("deferred_killed"))
    guard = int(ready.read_text())
    os.kill(worker_of(guard), signal.SIGKILL)
    house.airflow.await_task("deferred_killed", "once", "orders", "deferred", tries=2)
    assert states(yarn) == ["RUNNING"]
    driven(house, yarn, "deferred_killed")
    house.airflow.await_task("deferred_killed", "once", "orders", "success", tries=2)
    assert delivered(house.output / "deferred_killed") == wanted
    assert states(yarn) == ["FINISHED"]
    assert house.statuses("deferred_killed") == [WindowStatus.PUBLISHED]
