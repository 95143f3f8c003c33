"""A whole Airflow on a real broker: schedules, backfills, clears, kills, two attempts at once, every example."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from kafka_ordered_ops.core.types import WindowStatus
from tests.conftest import MakeTopic, Produce
from tests.support.airflow_house import (
    HOUR,
    PARTITIONS,
    T0,
    House,
    scatter,
    up_to,
)
from tests.support.airflow_house import fill as fill
from tests.support.airflow_house import hour as hour
from tests.support.airflow_house import house as house
from tests.support.airflow_house import orders as orders
from tests.support.delivered import Records, delivered, ms_of, times, within
from tests.support.sessions import Process, worker_of

# Airflow alone takes most of a minute to start, and every wait below has an end of its own.
pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

#: Each example DAG: its group, and the task that tells what became of the window.
EXAMPLES: Final[Mapping[str, tuple[str, str]]] = {
    "orders_any_spark_operator": ("orders-any-operator", "commit"),
    "orders_by_hour": ("orders-by-hour", "orders"),
    "orders_in_parts": ("orders-in-parts", "commit"),
    "orders_one_by_one": ("orders-one-by-one", "charge"),
    "orders_when_live": ("orders-live", "orders"),
    "orders_with_spark": ("orders-with-spark", "orders"),
}


# --- by time ---------------------------------------------------------------------------------------


def test_all_dag_files_are_imported(house: House) -> None:
    """The scenarios and the examples, also the DAG whose broker is away."""
    house.airflow.until(
        lambda: (
            house.airflow.dag_ids() >= {*EXAMPLES, "orders_by_relay", "scheduled", "edited", "away"}
        ),
        lambda: f"all DAGs to be there: {house.airflow.import_errors()}",
    )
    assert house.airflow.import_errors() == []


def test_a_scheduled_run(house: House, fill: Callable[..., Records]) -> None:
    """The last hour that is over: all before its end, and nothing of the hour that goes on."""
    now = datetime.now(UTC)
    records = fill("scheduled", times(now - 3 * HOUR, now))
    house.airflow.unpause("scheduled")
    run = house.airflow.until(
        lambda: next(iter(house.airflow.runs("scheduled")), None), lambda: "a run of its own"
    )
    house.airflow.await_task("scheduled", run["dag_run_id"], "orders", "success")
    facts = house.airflow.xcom("scheduled", run["dag_run_id"], "orders")
    end = datetime.fromisoformat(run["data_interval_end"])
    assert run["run_type"] == "scheduled"
    assert facts["cutoff_source"] == "data_interval_end"
    assert datetime.fromisoformat(facts["cutoff"]) == end
    assert delivered(facts["output"]) == within(records, end)
    assert facts["records"] == len(within(records, end))


@pytest.mark.parametrize("dag_id", ["forward", pytest.param("backward", marks=pytest.mark.long)])
def test_a_backfill_of_six_windows(house: House, fill: Callable[..., Records], dag_id: str) -> None:
    """In parallel (each goes on when three are at work), or from the last to the first: every record once."""
    records = fill(dag_id, times(T0, T0 + 8 * HOUR, 400))
    first, last = T0 + HOUR, T0 + 6 * HOUR
    house.airflow.backfill(
        dag_id, first.isoformat(), last.isoformat(), backwards=dag_id == "backward"
    )
    runs = house.airflow.await_runs(dag_id, 6)
    begun = [datetime.fromisoformat(run["logical_date"]) for run in runs]
    assert sorted(begun) == [T0 + n * HOUR for n in range(1, 7)]
    assert {run["run_type"] for run in runs} == {"backfill"}
    if dag_id == "backward":
        assert begun == sorted(begun, reverse=True)
    for run, start in zip(runs, begun, strict=True):
        facts = house.airflow.xcom(dag_id, run["dag_run_id"], "orders")
        assert delivered(facts["output"]) == within(records, start + HOUR, start)
    assert delivered(house.output / dag_id) == within(records, last + HOUR, first)
    assert house.statuses(dag_id) == [WindowStatus.PUBLISHED] * 6


@pytest.mark.long
def test_a_manual_run_without_an_interval(house: House, fill: Callable[..., Records]) -> None:
    """Its cutoff is the time from which it may run, and what is stamped after that is left."""
    now = datetime.now(UTC)
    # Kafka takes nothing that is stamped more than an hour ahead.
    records = fill("manual", times(now - HOUR, now + HOUR * 0.9))
    house.airflow.trigger("manual", "by-hand")
    [run] = house.airflow.await_runs("manual", 1)
    facts = house.airflow.xcom("manual", "by-hand", "orders")
    cutoff = datetime.fromisoformat(facts["cutoff"])
    assert run["data_interval_end"] is None
    assert facts["cutoff_source"] == "dag_run.run_after"
    assert abs(cutoff - datetime.fromisoformat(run["run_after"])) < timedelta(milliseconds=1)
    assert delivered(house.output / "manual") == within(records, cutoff)


def test_partitioned_runs(house: House, fill: Callable[..., Records]) -> None:
    """One by hand, two by backfill: each takes its own hour, and starts the next DAG for the same one."""
    records = fill("partitioned", times(T0, T0 + 5 * HOUR))
    house.airflow.unpause("after_partition")
    house.airflow.trigger("partitioned", "by-hand", partition_key="2025-03-01T01:00:00")
    house.airflow.await_runs("partitioned", 1)
    house.airflow.backfill("partitioned", "2025-03-01T02:00:00Z", "2025-03-01T03:00:00Z")
    house.airflow.await_runs("partitioned", 3)
    keys = [f"2025-03-01T0{hour}:00:00" for hour in (1, 2, 3)]
    events = house.airflow.asset_events("partitioned")
    assert sorted(event["partition_key"] for event in events) == keys
    for event in events:
        start = datetime.fromisoformat(event["partition_key"]).replace(tzinfo=UTC)
        assert datetime.fromisoformat(event["extra"]["cutoff"]) == start + HOUR
        assert event["extra"]["records"] == len(within(records, start + HOUR, start))
    after = house.airflow.await_runs("after_partition", 3)
    assert sorted(run["partition_key"] for run in after) == keys
    for dag_id in ("partitioned", "after_partition"):
        assert delivered(house.output / dag_id) == within(records, T0 + 4 * HOUR, T0 + HOUR)


# --- again, and twice ------------------------------------------------------------------------------


def test_a_cleared_window_is_replayed(house: House, fill: Callable[..., Records]) -> None:
    """The same records once more, into the same place; what the group has committed stays where it is."""
    records = fill("replayed", times(T0, T0 + 4 * HOUR))
    for number, run_id in enumerate(["first", "second"], 1):
        house.airflow.trigger("replayed", run_id, **up_to(T0 + number * HOUR))
        house.airflow.await_runs("replayed", number)
    before = house.committed("replayed")
    facts = house.airflow.xcom("replayed", "first", "orders")
    shutil.rmtree(facts["output"])
    house.airflow.clear("replayed", "first")
    house.airflow.await_task("replayed", "first", "orders", "success", tries=2)
    again = house.airflow.xcom("replayed", "first", "orders")
    assert again["ran"]
    assert (again["window_id"], again["partitions"]) == (facts["window_id"], facts["partitions"])
    assert delivered(again["output"]) == within(records, T0 + HOUR)
    assert delivered(house.output / "replayed") == within(records, T0 + 2 * HOUR)
    assert house.committed("replayed") == before
    assert house.statuses("replayed") == [WindowStatus.PUBLISHED] * 2


@pytest.mark.long
def test_a_cleared_window_is_skipped(house: House, fill: Callable[..., Records]) -> None:
    """Where the DAG says so: its task is skipped, and nothing changes."""
    records = fill("skipped", times(T0, T0 + 4 * HOUR))
    house.airflow.trigger("skipped", "once", **up_to(T0 + HOUR))
    house.airflow.await_runs("skipped", 1)
    before = house.committed("skipped")
    house.airflow.clear("skipped", "once")
    house.airflow.await_task("skipped", "once", "orders", "skipped", tries=2)
    assert house.committed("skipped") == before
    assert delivered(house.output / "skipped") == within(records, T0 + HOUR)


@pytest.mark.parametrize(
    "dag_id", ["killed_task", pytest.param("killed_worker", marks=pytest.mark.long)]
)
def test_killed_mid_window(house: House, fill: Callable[..., Records], dag_id: str) -> None:
    """By kill -9, the task's process or the whole worker: the next attempt takes the same records, once."""
    records = fill(dag_id, times(T0, T0 + 2 * HOUR))
    house.airflow.trigger(dag_id, "once", **up_to(T0 + HOUR))
    pid = int(house.told(dag_id, "1.ready"))
    if dag_id == "killed_worker":
        os.kill(worker_of(pid), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    house.told(dag_id, "2.ready")
    assert delivered(house.output / dag_id) == []
    assert set(house.committed(dag_id).values()) == {None}
    house.let_go(dag_id, 2)
    house.airflow.await_task(dag_id, "once", "orders", "success", tries=2)
    facts = house.airflow.xcom(dag_id, "once", "orders")
    assert facts["attempt"] == 2
    assert delivered(house.output / dag_id) == within(records, T0 + HOUR)
    assert house.statuses(dag_id) == [WindowStatus.PUBLISHED]


@pytest.mark.parametrize(
    "dag_id", ["processed_ended", pytest.param("processed_killed", marks=pytest.mark.long)]
)
def test_a_function_for_each_record_goes_on(
    house: House, fill: Callable[..., Records], dag_id: str
) -> None:
    """After Airflow has ended its task, or kill -9: the next attempt calls it only for what is left."""
    records = within(fill(dag_id, times(T0, T0 + 2 * HOUR, 480)), T0 + HOUR)
    house.airflow.trigger(dag_id, "once", **up_to(T0 + HOUR))
    file = house.output / f"{dag_id}.calls"
    house.airflow.until(lambda: file.exists() and len(file.read_text()) > 600, lambda: "60 calls")
    if dag_id == "processed_killed":
        os.kill(int(file.read_text().split()[0]), signal.SIGKILL)
    else:
        house.airflow.fail(dag_id, "once", "orders")
        house.airflow.until(
            lambda: "ProcessingStoppedError" in house.airflow.log(dag_id, "once", "orders", 1),
            lambda: house.airflow.stories(dag_id),
        )
        house.airflow.clear(dag_id, "once")
    house.airflow.await_task(dag_id, "once", "orders", "success", tries=2)
    facts = house.airflow.xcom(dag_id, "once", "orders")
    assert 0 < facts["earlier_offsets"] == len(records) - facts["succeeded"]
    calls = [tuple(map(int, line.split()[1:])) for line in file.read_text().splitlines()]
    assert sorted(set(calls)) == records
    # What was done after the last save is repeated: of one call after another, in half a second.
    assert len(calls) - len(records) <= (15 if dag_id == "processed_killed" else 0)
    assert house.statuses(dag_id) == [WindowStatus.PUBLISHED]


@pytest.mark.long
def test_a_worker_killed_while_its_task_lives_on(
    house: House, fill: Callable[..., Records]
) -> None:
    """Its heartbeats stop, so the next attempt runs beside it: the task that nobody watches cannot commit."""
    records = fill("orphaned", times(T0, T0 + 2 * HOUR))
    house.airflow.trigger("orphaned", "once", **up_to(T0 + HOUR))
    pid = int(house.told("orphaned", "1.ready"))
    os.kill(worker_of(pid), signal.SIGKILL)
    house.told("orphaned", "2.ready")
    orphan = Process.of(pid)
    assert orphan is not None
    assert not orphan.is_dead
    house.let_go("orphaned", 1)
    assert "WindowSupersededError" in house.told("orphaned", "1.ended")
    assert delivered(house.output / "orphaned") == []
    assert house.statuses("orphaned") == [WindowStatus.PLANNED]
    house.let_go("orphaned", 2)
    house.airflow.await_task("orphaned", "once", "orders", "success", tries=2)
    assert house.airflow.xcom("orphaned", "once", "orders")["attempt"] == 2
    assert delivered(house.output / "orphaned") == within(records, T0 + HOUR)
    assert house.statuses("orphaned") == [WindowStatus.PUBLISHED]


@pytest.mark.long
def test_a_spark_job_that_outlives_its_task(house: House, fill: Callable[..., Records]) -> None:
    """The task that submitted it dies by kill -9, and is retried: what the first job writes is not seen."""
    records = fill("submitted", times(T0, T0 + 2 * HOUR))
    house.airflow.trigger("submitted", "once", **up_to(T0 + HOUR))
    driver = int(house.told("submitted", "1.ready"))
    # The task has started a JVM, and this one the job.
    task = worker_of(worker_of(driver))
    os.kill(task, signal.SIGKILL)
    house.told("submitted", "2.ready")
    orphan = Process.of(driver)
    assert orphan is not None
    assert not orphan.is_dead
    house.let_go("submitted", 2)
    house.airflow.await_run("submitted", "once")
    before = house.committed("submitted")
    house.let_go("submitted", 1)
    house.told("submitted", "1.ended")
    assert house.committed("submitted") == before
    assert delivered(house.output / "submitted") == within(records, T0 + HOUR)
    assert house.statuses("submitted") == [WindowStatus.PUBLISHED]


@pytest.mark.long
@pytest.mark.parametrize("dag_id", ["overtaken", "outlived"])
def test_two_tries_at_once(house: House, fill: Callable[..., Records], dag_id: str) -> None:
    """Cut off from Airflow, the first goes on after it was marked failed and cleared: it cannot commit.

    It wants to before the second has committed (overtaken), or after that (outlived).
    """
    records = fill(dag_id, times(T0, T0 + 2 * HOUR))
    house.airflow.trigger(dag_id, "once", **up_to(T0 + HOUR))
    worker = worker_of(int(house.told(dag_id, "1.ready")))
    # Whoever would tell the task to end hears nothing; as with a worker that is cut off.
    os.kill(worker, signal.SIGSTOP)
    try:
        house.airflow.fail(dag_id, "once", "orders")
        house.airflow.clear(dag_id, "once")
        house.told(dag_id, "2.ready")
        if dag_id == "overtaken":
            house.let_go(dag_id, 1)
            assert "WindowSupersededError" in house.told(dag_id, "1.ended")
            assert delivered(house.output / dag_id) == []
            assert house.statuses(dag_id) == [WindowStatus.PLANNED]
        house.let_go(dag_id, 2)
        house.airflow.await_task(dag_id, "once", "orders", "success", tries=2)
        before = house.committed(dag_id)
        if dag_id == "outlived":
            house.let_go(dag_id, 1)
            house.told(dag_id, "1.ended")
    finally:
        os.kill(worker, signal.SIGCONT)
    assert house.committed(dag_id) == before
    assert delivered(house.output / dag_id) == within(records, T0 + HOUR)
    assert house.statuses(dag_id) == [WindowStatus.PUBLISHED]


# --- waiting, and in vain --------------------------------------------------------------------------


@pytest.mark.long
def test_a_deferred_sensor_fires_later(
    house: House, fill: Callable[..., Records], produce: Produce
) -> None:
    """It waits in the triggerer until the last partition has a record at the cutoff; then the window runs."""
    cutoff = T0 + HOUR
    records = fill("live", times(T0, T0 + HOUR))
    name = house.name("live")
    late = [(name, n, None, b"x", ms_of(cutoff), ()) for n in range(PARTITIONS)]
    produce(late[1:])
    house.airflow.trigger("live", "once", **up_to(cutoff))
    house.airflow.await_task("live", "once", "live", "deferred")
    produce(late[:1])
    house.airflow.await_runs("live", 1)
    found = house.airflow.xcom("live", "once", "live")
    assert found["live"]
    assert {one["state"] for one in found["partitions"]} == {"live"}
    assert f"{name}[0]  waiting" in house.airflow.log("live", "once", "live", 1)
    assert delivered(house.output / "live") == within(records, cutoff)


@pytest.mark.long
def test_a_watcher_starts_runs(house: House, topic: MakeTopic, produce: Produce) -> None:
    """As each hour of the records is in: with the event's cutoff, each hour told once, every record delivered once.

    The DAG's job is a decorated function, and another task says where it writes.
    """
    dag_id = "by_events"
    name, records = topic(house.name(dag_id), partitions=PARTITIONS), Records()
    house.airflow.unpause(dag_id)

    def runs() -> dict[datetime, str]:
        """Those that are over, by their cutoffs."""
        found: dict[datetime, str] = {}
        for run in house.airflow.runs(dag_id):
            if run["state"] == "success":
                facts = house.airflow.xcom(dag_id, run["dag_run_id"], "load")
                cutoff = datetime.fromisoformat(facts["cutoff"])
                assert cutoff not in found, house.airflow.stories(dag_id)
                found[cutoff] = run["dag_run_id"]
        return found

    def run_up_to(end: datetime) -> str:
        return house.airflow.until(
            lambda: runs().get(end), lambda: f"a run up to {end}:\n{house.airflow.stories(dag_id)}"
        )

    for end in (T0 + HOUR, T0 + 2 * HOUR):
        records |= scatter(produce, name, times(end - HOUR, end))
        marks = produce((name, n, None, b"x", ms_of(end), ()) for n in range(PARTITIONS))
        records |= dict.fromkeys(enumerate(marks), end)
        run_id = run_up_to(end)
        facts = house.airflow.xcom(dag_id, run_id, "load")
        assert facts["cutoff_source"] == "an asset event"
        assert run_id.startswith("asset_triggered__")
        assert delivered(house.output / dag_id) == within(records, end)
        last = delivered(house.output / dag_id / f"{ms_of(end)}.parquet")
        assert last == within(records, end, end - HOUR)
        assert facts["result"] == {"rows": len(last)}


@pytest.mark.long
def test_a_broker_that_is_away(house: House) -> None:
    """The DAG is imported all the same; its task says who is away, and is tried again later."""
    house.airflow.trigger("away", "once")
    house.airflow.await_task("away", "once", "orders", "up_for_retry")
    log = house.airflow.log("away", "once", "orders", 1)
    assert "BrokerUnreachableError" in log
    assert not [error for error in house.airflow.import_errors() if "scenarios" in error]


@pytest.mark.long
def test_an_edited_dag_and_an_old_run(
    house: House, fill: Callable[..., Records], topic: MakeTopic
) -> None:
    """Cleared, the old run asks another question under the same name: refused at once, and it says which."""
    records = fill("edited", times(T0, T0 + 2 * HOUR))
    topic(f"{house.name('edited')}-more")
    house.airflow.trigger("edited", "once", **up_to(T0 + HOUR))
    house.airflow.await_runs("edited", 1)
    before = house.committed("edited")
    file = house.dags / "scenarios" / "edited.py"
    text = file.read_text()
    assert "TOPICS = [NAME]" in text
    file.write_text(text.replace("TOPICS = [NAME]", 'TOPICS = [NAME, f"{NAME}-more"]'))
    house.airflow.clear("edited", "once")
    task = house.airflow.await_task("edited", "once", "orders", "failed", tries=2)
    assert task.try_number == 2
    log = house.airflow.log("edited", "once", "orders", 2)
    assert "WindowMismatchError" in log
    assert "topics" in log
    assert house.committed("edited") == before
    assert delivered(house.output / "edited") == within(records, T0 + HOUR)


# --- told to others --------------------------------------------------------------------------------


@pytest.mark.long
def test_openlineage_is_told(house: House, fill: Callable[..., Records]) -> None:
    """By its own provider: the topic, the files with their number of records, and which window it was.

    Of a window of several tasks, the parts have the topic, and the commit has the files as well.
    """
    records = within(fill("lineage", times(T0, T0 + 2 * HOUR)), T0 + HOUR)
    house.airflow.trigger("lineage", "once", **up_to(T0 + HOUR))
    house.airflow.await_run("lineage", "once")
    topic = [(f"kafka://{house.bootstrap}", house.name("lineage"))]
    for task in ("orders", "commit"):
        facts = house.airflow.xcom("lineage", "once", task)
        [event] = house.ends_of(f"lineage.{task}", 1)
        assert event["eventType"] == "COMPLETE"
        assert [(one["namespace"], one["name"]) for one in event["inputs"]] == topic
        [files] = event["outputs"]
        assert (files["namespace"], files["name"]) == ("file", facts["output"])
        assert files["outputFacets"]["outputStatistics"]["rowCount"] == len(records)
        window = event["run"]["facets"]["kafka_ordered_ops_window"]
        told = {"window_id", "group", "cutoff", "status", "offsets", "partitions", "records"}
        assert {name: window[name] for name in told} == {name: facts[name] for name in told}
    for event in house.ends_of("lineage.part", 2):
        assert [(one["namespace"], one["name"]) for one in event["inputs"]] == topic
        assert event["outputs"] == []


# --- the examples ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dag_id",
    [
        pytest.param(name, marks=[pytest.mark.long] if name != "orders_with_spark" else [])
        for name in sorted(EXAMPLES)
    ],
)
def test_an_example(house: House, orders: Records, hour: datetime, dag_id: str) -> None:
    """Each example DAG, as it stands in the repository, comes to a good end and delivers what it says."""
    group_id, task_id = EXAMPLES[dag_id]
    by_interval = dag_id == "orders_by_hour"
    interval = {
        "logical_date": (hour - HOUR).isoformat(),
        "data_interval_start": (hour - HOUR).isoformat(),
        "data_interval_end": hour.isoformat(),
    }
    house.airflow.trigger(dag_id, "example", **(interval if by_interval else up_to(hour)))
    house.airflow.await_run(dag_id, "example")
    if dag_id == "orders_any_spark_operator":
        assert "Spark-Submit cmd: spark-submit --master local[1]" in house.airflow.log(
            dag_id, "example", "job", 1
        )
    facts = house.airflow.xcom(dag_id, "example", task_id)
    expected = within(orders, hour, hour - HOUR if by_interval else None)
    if facts["output"] is None:
        assert sum(facts["result"].values()) == len(expected)
    else:
        assert delivered(facts["output"]) == expected
    with house.windows(group_id) as windows:
        assert windows.show(facts["window_id"]).status is WindowStatus.PUBLISHED


@pytest.mark.long
def test_the_example_with_the_relay(
    house: House, orders: Records, hour: datetime, tmp_path: Path
) -> None:
    """Twenty mapped tasks take each record of three partitions once, and the window is committed after them."""
    command = [sys.executable, "-m", "kafka_ordered_ops.cli", "relay", "serve"]
    command += [f"orders-{house.run}", "-b", house.bootstrap, "--bind", house.relay_address]
    dag_id = "orders_by_relay"
    with (tmp_path / "relay.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            house.airflow.trigger(dag_id, "example", **up_to(hour))
            house.airflow.await_run(dag_id, "example")
        finally:
            server.terminate()
            ended = server.wait(60)
    assert ended == 0, (tmp_path / "relay.log").read_text()
    counts = [house.airflow.xcom(dag_id, "example", "charge", map_index=n) for n in range(20)]
    assert sum(counts) == len(within(orders, hour))
    logs = [house.airflow.log(dag_id, "example", "charge", 1, n) for n in range(20)]
    taken = [
        (int(partition), int(offset))
        for log in logs
        for partition, offset in re.findall(rf"orders-{house.run}\[(\d+)]@(\d+) ", log)
    ]
    assert sorted(taken) == within(orders, hour)
    facts = house.airflow.xcom(dag_id, "example", "commit")
    with house.windows("orders-by-relay") as windows:
        assert windows.show(facts["window_id"]).status is WindowStatus.PUBLISHED
