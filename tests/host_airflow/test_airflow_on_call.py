"""A whole Airflow, as the person on call sees it: records that nobody delivers, last lines of logs, callbacks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from kafka_ordered_ops.core.types import WindowStatus
from tests.support.airflow_house import HOUR, SCENARIOS, T0, House, airflow_house, up_to
from tests.support.airflow_house import fill as fill
from tests.support.cli_support import cli
from tests.support.delivered import Records, delivered, times, within

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def house(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """An Airflow with these scenarios alone."""
    root = tmp_path_factory.mktemp("airflow")
    (dags := root / "dags").mkdir()
    shutil.copy(SCENARIOS / "scenarios" / "on_call.py", dags)
    with airflow_house(bootstrap, root, dags) as found:
        yield found


def told(house: House, task: str) -> tuple[list[str], str, str]:
    """What a callback was given: the classes of the exception, whether it is retriable, its text."""
    path = house.output / f"{task}.told"
    house.airflow.until(path.exists, lambda: f"the callback of {task}")
    kinds, retriable, text = path.read_text().split("\n", 2)
    return kinds.split(", "), retriable, text


def last_lines(house: House, dag_id: str, task_id: str) -> str:
    """The end of an attempt's log."""
    return house.airflow.log(dag_id, "once", task_id, 1)


def test_a_task_marked_successful_cannot_hide_its_records(
    house: House, fill: Callable[..., Records]
) -> None:
    """It ran, and holds its window: each later run says so, and the check fails until the records are delivered."""
    records = fill("marked", times(T0, T0 + 3 * HOUR, 3450))
    hours = [{"since": (T0 + n * HOUR), "cutoff": (T0 + (n + 1) * HOUR)} for n in range(3)]

    def run(number: int) -> None:
        conf = {name: time.isoformat() for name, time in hours[number].items()}
        house.airflow.trigger("marked", f"hour-{number}", conf=conf)

    run(0)
    first = house.output / "marked.first"
    house.airflow.until(first.exists, lambda: house.airflow.stories("marked"))
    house.airflow.mark("marked", "hour-0", "orders", "success")
    house.airflow.await_run("marked", "hour-0")
    window_id, held = first.read_text(), len(within(records, T0 + HOUR))
    assert held == 1150
    note = f"{window_id} ({held:,} offsets, "
    for number in (1, 2):
        run(number)
        house.airflow.await_run("marked", f"hour-{number}")
        log = house.airflow.log("marked", f"hour-{number}", "orders", 1)
        assert f"group {house.name('marked')} has 1 open window" in log
        assert log.count(note) == 1
    assert delivered(house.output / "marked") == within(records, T0 + 3 * HOUR, T0 + HOUR)

    house.airflow.trigger("marked_check", "once")
    house.airflow.await_task("marked_check", "once", "check", "failed")
    assert note in house.airflow.log("marked_check", "once", "check", 1)
    kinds, retriable, text = told(house, "marked_check.check")
    assert ("WindowsHeldError" in kinds, retriable) == (True, "True")
    assert note in text
    where = ("-b", house.bootstrap, "-g", house.name("marked"))
    assert "planned" in cli("windows", "list", *where).stdout

    (house.output / "marked.go").touch()
    house.airflow.clear("marked", "hour-0")
    house.airflow.await_task("marked", "hour-0", "orders", "success", tries=2)
    assert house.statuses("marked") == [WindowStatus.PUBLISHED] * 3
    assert delivered(house.output / "marked") == within(records, T0 + 3 * HOUR)
    house.airflow.trigger("marked_check", "again")
    house.airflow.await_run("marked_check", "again")


def test_a_failed_attempt_says_where_and_why(house: House, fill: Callable[..., Records]) -> None:
    """A function, a refusal that no retry helps, a broker that is away, and sensors that waited in vain."""
    fill("failing", times(T0, T0 + HOUR))
    group = f"group {house.name('failing')}"
    house.airflow.trigger("failing", "once", **up_to(T0 + HOUR))
    house.airflow.await_task("failing", "once", "function", "failed")
    log = last_lines(house, "failing", "function")
    [line] = [one for one in log.splitlines() if "step job" in one]
    assert line.startswith(f"{group}, window once-failing.function-")
    assert "KeyError: " in line
    assert "run the same window again" in line
    assert told(house, "failing.function")[0][0] == "KeyError"

    times_of = {"since": T0.isoformat(), "cutoff": (T0 + HOUR).isoformat()}
    house.airflow.trigger("refused", "once", conf=times_of)
    house.airflow.await_task("refused", "once", "orders", "failed")
    kinds, retriable, text = told(house, "refused.orders")
    assert {"AirflowFailException", "GroupMismatchError"} <= set(kinds)
    assert retriable == "False"
    assert text.startswith("GroupMismatchError: ")
    for words in (group, "window once-refused.orders-", "step plan"):
        assert words in text
        assert words in last_lines(house, "refused", "orders")

    house.airflow.trigger("away_now", "once", **up_to(T0 + HOUR))
    house.airflow.await_task("away_now", "once", "orders", "failed")
    kinds, retriable, text = told(house, "away_now.orders")
    assert (kinds[0], retriable) == ("BrokerUnreachableError", "True")
    assert f"(group {house.name('away_now')}, window once-away_now.orders-" in text

    for mode in ("poke", "reschedule"):
        dag_id = f"waiting_{mode}"
        house.airflow.trigger(dag_id, "once", **up_to(T0 + 2 * HOUR))
        house.airflow.await_task(dag_id, "once", "live", "failed")
        kinds, _, text = told(house, f"{dag_id}.live")
        assert kinds[0] == "AirflowSensorTimeout"
        assert "0 of 3 partitions live, 3 waiting" in text
        assert f"{house.name('failing')}[2]  waiting" in text
        assert text in last_lines(house, dag_id, "live")
