"""The sensor on a real broker: what it waits for, what it says, and what ends the waiting."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_ordered_ops import BrokerUnreachableError, ConfigError, Earliest, Window
from kafka_ordered_ops.airflow.compat import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from kafka_ordered_ops.airflow.support.question import PARTITIONS_MAX, Until
from kafka_ordered_ops.airflow.support.times import default_window_id
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.airflow_context import context_of, kafka_connection, small_json
from tests.support.airflow_versions import TaskDeferred
from tests.support.sensor_support import (
    NOWHERE,
    XCOM_BYTES,
    point_to,
    sensor_on,
    told_by,
    watched,
    write,
)
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, before

__all__ = ["kafka_connection"]

# --- poke and reschedule -----------------------------------------------------------------------------


def test_the_sensor_waits_until_the_last_partition_is_live(
    topic: MakeTopic, produce: Produce, group_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not before; the log has a table with a reason for each, those that wait first, and so has the XCom."""
    name = topic(partitions=3)
    for partition in (0, 2):
        write(produce, name, 61, partition)
    write(produce, name, 59, 1)
    sensor = sensor_on(name, group_id)
    with caplog.at_level("INFO", logger="kafka_ordered_ops"):
        first = sensor.poke(context_of(60))
    assert not first
    lines = caplog.messages
    head = next(n for n, line in enumerate(lines) if line.startswith("partition "))
    assert lines[head - 1] == "2 of 3 partitions live, 1 waiting."
    assert lines[head].split() == ["partition", "state", "lag", "why"]
    assert lines[head + 1].startswith(f"{name}[1]  waiting")
    assert "no record at or after" in lines[head + 1]
    assert [line.split()[1] for line in lines[head + 2 : head + 4]] == ["live", "live"]

    write(produce, name, 60, 1)
    told = sensor.execute(context_of(60))
    assert told["live"] is True
    assert told["counts"] == {"live": 3, "idle": 0, "waiting": 0}
    assert (told["cutoff"], told["group"]) == ("2023-11-14T22:14:20Z", group_id)
    assert [one["partition"] for one in told["partitions"]] == [0, 1, 2]
    assert small_json(told) < XCOM_BYTES


def test_a_silent_partition_is_idle_after_its_grace(
    topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """The tests' cutoff is years ago; without a grace it would be waited for for ever."""
    name = topic(partitions=2)
    write(produce, name, 61)
    assert not sensor_on(name, group_id).poke(context_of(60))
    told = sensor_on(name, group_id, grace="PT10M").execute(context_of(60))
    assert told["counts"] == {"live": 1, "idle": 1, "waiting": 0}
    assert told["grace"] == "PT10M"
    assert not sensor_on(name, group_id, grace=timedelta(days=36_500)).poke(context_of(60))


def test_a_topic_of_many_partitions_makes_a_small_xcom(
    topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """Those that wait are all there, of the others as many as fit, and the rest as a number."""
    count = PARTITIONS_MAX + 20
    name = topic(partitions=count)
    write(produce, name, 61, 5)
    told = told_by(sensor_on(name, group_id), context_of(60))
    assert told["counts"]["waiting"] == count - 1
    assert len(told["partitions"]) == PARTITIONS_MAX
    assert told["more_partitions"] == 20
    assert 5 not in [one["partition"] for one in told["partitions"]]
    assert small_json(told) < XCOM_BYTES


def test_a_window_that_is_done_is_not_waited_for(
    windows: OrderedWindows, orders: str, group_id: str
) -> None:
    """A cleared run: the task's window is committed, so nothing can come into it any more."""
    context = context_of(60, task_id="wait")
    window_id = default_window_id(context, group_id, task_id="orders")
    sensor = sensor_on(orders, group_id, window_task_id="orders")
    # The tests' orders end at second 30.
    assert not sensor.poke(context)
    windows.plan(before(orders, 60, Earliest()), window_id)
    assert not sensor.poke(context)
    windows.commit(windows.plan(before(orders, 60, Earliest()), window_id))
    told = sensor.execute(context)
    assert told["window"] == "committed"
    assert (told["partitions"], told["more_partitions"]) == ([], 0)
    assert sensor_on(orders, group_id, window_id=window_id).poke(context)
    assert not sensor_on(orders, group_id).poke(context)


def test_timeout_and_soft_fail_are_a_sensors(topic: MakeTopic, group_id: str) -> None:
    """The deadline fails the task, with the table of the last check, or skips it."""
    name = topic()
    with pytest.raises(AirflowSensorTimeout, match="0 of 1 partitions live, 1 waiting") as caught:
        sensor_on(name, group_id, timeout=0.3).execute(context_of(60))
    assert str(caught.value).splitlines()[-1].startswith(f"{name}[0]")
    with pytest.raises(AirflowSkipException):
        sensor_on(name, group_id, timeout=0.3, soft_fail=True).execute(context_of(60))


@pytest.mark.slow
@pytest.mark.parametrize("deferrable", [False, True])
def test_what_waiting_cannot_help_fails_at_once(group_id: str, deferrable: bool) -> None:
    """A topic that does not exist is a mistake: no retry, or a skipped task where that was asked for."""
    name = f"missing-{group_id}"
    with pytest.raises(AirflowFailException, match=f"UnknownTopicError.*{name}"):
        sensor_on(name, group_id, deferrable=deferrable).execute(context_of(60))
    for flag in ("soft_fail", "never_fail"):
        with pytest.raises(AirflowSkipException):
            sensor_on(name, group_id, deferrable=deferrable, **{flag: True}).execute(context_of(60))
    # When the DAG is parsed.
    with pytest.raises(ConfigError, match="no time zone"):
        sensor_on(name, group_id, deferrable=deferrable, cutoff="2026-11-20")


@pytest.mark.slow
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_broker_that_is_away_at_first_is_left_to_the_tasks_retries(
    group_id: str, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    """It may be a wrong address; with silent_fail or never_fail it is as for any sensor."""
    point_to(monkeypatch, NOWHERE)
    watched(monkeypatch)
    with pytest.raises(BrokerUnreachableError):
        sensor_on("orders", group_id, deferrable=deferrable).execute(context_of(60))
    with pytest.raises(AirflowSkipException):
        sensor_on("orders", group_id, deferrable=deferrable, never_fail=True).execute(
            context_of(60)
        )
    silent = sensor_on("orders", group_id, deferrable=deferrable, silent_fail=True, timeout=0.1)
    with pytest.raises(TaskDeferred if deferrable else AirflowSensorTimeout):
        silent.execute(context_of(60))


@pytest.mark.slow
def test_a_broker_that_goes_away_while_the_sensor_waits_is_waited_for(
    topic: MakeTopic,
    produce: Produce,
    group_id: str,
    bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a look has succeeded the address is right."""
    name = topic()
    sensor = sensor_on(name, group_id)
    assert not sensor.poke(context_of(60))
    point_to(monkeypatch, NOWHERE)
    looks = watched(monkeypatch)
    assert not sensor.poke(context_of(60))
    assert isinstance(looks[0], BrokerUnreachableError)
    point_to(monkeypatch, bootstrap)
    write(produce, name, 60)
    assert sensor.poke(context_of(60))


# --- the group ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_group_is_waited_for_until_all_before_the_cutoff_is_committed(
    windows: OrderedWindows, orders: str, group_id: str
) -> None:
    """An unknown group, a window that ends too early, one that is planned only, and one that is committed."""
    context, sensor = context_of(20), sensor_on(orders, group_id, until="caught_up")

    def reason() -> str:
        told = told_by(sensor, context)
        [one] = told["partitions"]
        assert told["caught_up"] == (one["state"] == "caught_up")
        return str(one["reason"])

    assert reason() == "unknown"
    windows.commit(windows.plan(before(orders, 12, Earliest()), "first"))
    assert reason() == "not_covered"
    plan = windows.plan(before(orders, 20), "second")
    assert reason() == "not_covered"
    windows.commit(plan)
    assert reason() == "committed"
    told = sensor.execute(context)
    assert (told["caught_up"], told["window"]) == (True, None)
    assert small_json(told) < 2_000


def test_an_open_window_of_earlier_records_holds_the_group_back(
    windows: OrderedWindows, orders: str, group_id: str
) -> None:
    """A later window that stepped around it is committed: the earlier records are not."""
    sensor = sensor_on(orders, group_id, until=Until.CAUGHT_UP)
    early = windows.plan(before(orders, 12, Earliest()), "early")
    windows.commit(windows.plan(before(orders, 20), "late"))
    told = told_by(sensor, context_of(20))
    assert told["partitions"][0]["reason"] == "open_window"
    assert told["open_windows"] == ["early"]
    windows.commit(early)
    assert sensor.poke(context_of(20))


def test_a_record_that_comes_late_is_waited_for_where_the_index_shows_it(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """It lies before every record at or after the cutoff: the next window takes it."""
    name = topic()
    write(produce, name, 5)
    sensor = sensor_on(name, group_id, until="caught_up")
    windows.commit(windows.plan(before(name, 20, Earliest()), "w"))
    assert sensor.poke(context_of(20))
    write(produce, name, 7)
    told = told_by(sensor, context_of(20))
    [one] = told["partitions"]
    assert (one["reason"], one["lag_offsets"]) == ("not_done", 1)
    windows.commit(windows.plan(before(name, 30), "next"))
    assert sensor.poke(context_of(20))


@pytest.mark.slow
def test_an_open_transaction_may_hold_earlier_records(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce, group_id: str, bootstrap: str
) -> None:
    """Nobody knows before it ends; then the next window takes them."""
    name = topic()
    write(produce, name, 5)
    sensor = sensor_on(name, group_id, until="caught_up")
    windows.commit(windows.plan(before(name, 20, Earliest()), "w"))
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group_id})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(name, b"x", partition=0, timestamp=BASE_MS + 7_000)
    assert producer.flush(TIMEOUT_S) == 0

    def reason() -> str:
        return str(told_by(sensor, context_of(20))["partitions"][0]["reason"])

    assert reason() == "open_transaction"
    producer.commit_transaction(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    # A commit is answered before its marker is written.
    while (told := reason()) == "open_transaction":
        assert time.monotonic() < deadline
    assert told == "not_done"
    windows.commit(windows.plan(before(name, 21), "next"))
    assert sensor.poke(context_of(20))


@pytest.mark.slow
def test_a_partition_that_came_later_counts_when_it_has_records(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce, group_id: str, bootstrap: str
) -> None:
    """Empty, it holds nothing back; with a record the group has to take note of it first."""
    name = topic()
    write(produce, name, 5)
    sensor = sensor_on(name, group_id, until="caught_up")
    windows.commit(windows.plan(before(name, 20, Earliest()), "w"))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while len(told_by(sensor, context_of(20))["partitions"]) < 2:
        assert time.monotonic() < deadline
    assert sensor.poke(context_of(20))
    # The fixture's producer does not know the new partition yet.
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(name, b"x", partition=1, timestamp=BASE_MS + 5_000)
    assert producer.flush(TIMEOUT_S) == 0
    told = told_by(sensor, context_of(20))
    assert [one["reason"] for one in told["partitions"]] == ["unknown", "committed"]
    windows.commit(windows.plan(before(name, 21), "next"))
    assert sensor.poke(context_of(20))


@pytest.mark.slow
def test_intervals_count_once_each_is_committed(
    windows: OrderedWindows, orders: str, group_id: str
) -> None:
    """In any order; another interval does not count for this one."""
    sensor = sensor_on(orders, group_id, until="caught_up")

    def plan(since: float, until: float) -> Any:
        window = Window([orders], at(until), since=at(since), starting_offsets=Earliest())
        return windows.plan(window, f"{since}-{until}")

    windows.commit(plan(20, 40))
    assert not sensor.poke(context_of(20, since=0))
    early = plan(0, 20)
    assert not sensor.poke(context_of(20, since=0))
    windows.commit(early)
    assert sensor.poke(context_of(20, since=0))
    assert not sensor.poke(context_of(60, since=40))


def test_an_empty_partition_is_caught_up_with_the_others(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """A window has it with nothing in it."""
    name = topic(partitions=2)
    write(produce, name, 5)
    windows.commit(windows.plan(before(name, 20, Earliest()), "w"))
    assert sensor_on(name, group_id, until="caught_up").poke(context_of(20))


def test_what_belongs_to_partitions_is_refused_for_the_group() -> None:
    """Before anything is asked."""
    for wrong in ({"grace": "PT1M"}, {"window_task_id": "orders"}):
        with pytest.raises(ConfigError, match="until='live'"):
            sensor_on("orders", "group", until="caught_up", **wrong)
