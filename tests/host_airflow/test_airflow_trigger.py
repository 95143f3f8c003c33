"""The sensor's trigger on a real broker: made of JSON, run by asyncio, and heard by the sensor again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pkgutil import resolve_name
from typing import Any

import pytest
from airflow.sdk.bases.operator import TriggerFailureReason
from airflow.triggers.base import TriggerEvent
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import (
    BrokerUnreachableError,
    ConfigError,
    Earliest,
    UnknownTopicError,
    Window,
)
from kafka_ordered_ops.airflow import PartitionsLiveSensor
from kafka_ordered_ops.airflow.compat import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from kafka_ordered_ops.airflow.support.question import Question, Until
from kafka_ordered_ops.airflow.triggers.live import FIRST_LOOK_S, PartitionsLiveTrigger
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.airflow_context import context_of, kafka_connection, small_json
from tests.support.airflow_versions import TaskDeferred
from tests.support.sensor_support import (
    NOWHERE,
    XCOM_BYTES,
    point_to,
    question_on,
    resume,
    sensor_on,
    watched,
    write,
)
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, before

__all__ = ["kafka_connection"]


async def until(happened: Callable[[], object]) -> None:
    """Waits until something has happened."""
    async with asyncio.timeout(TIMEOUT_S):
        while not happened():
            await asyncio.sleep(0.02)


def deferred(sensor: PartitionsLiveSensor, context: dict[str, Any]) -> TaskDeferred:
    """What the sensor hands to the triggerer."""
    with pytest.raises(TaskDeferred) as caught:
        sensor.execute(context)
    return caught.value


def revived(trigger: Any) -> PartitionsLiveTrigger:
    """The trigger as another process makes it: from JSON, by the name of its class."""
    path, kwargs = trigger.serialize()
    again = resolve_name(path)(**json.loads(json.dumps(kwargs)))
    assert isinstance(again, PartitionsLiveTrigger)
    assert again.serialize() == trigger.serialize()
    return again


def soon(question: Question, poke_interval: float = 1.0) -> PartitionsLiveTrigger:
    """A trigger that looks at once."""
    return PartitionsLiveTrigger(question.to_json(), poke_interval, first_look=0)


async def fired(trigger: PartitionsLiveTrigger) -> dict[str, Any]:
    """What the trigger tells, as JSON; it tells one thing, and ends."""
    events: AsyncIterator[TriggerEvent] = trigger.run()
    told = [event async for event in events]
    assert len(told) == 1
    payload: dict[str, Any] = json.loads(json.dumps(told[0].payload))
    return payload


def test_a_window_that_is_live_is_not_deferred(
    topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """The first look is the worker's own: a backfill of old dates needs no triggerer."""
    name = topic()
    write(produce, name, 60)
    told = sensor_on(name, group_id, deferrable=True).execute(context_of(60))
    assert told["live"] is True


def test_the_sensor_defers_with_its_timeout_and_no_secret(
    topic: MakeTopic, group_id: str, monkeypatch: pytest.MonkeyPatch, bootstrap: str
) -> None:
    """The trigger is made of JSON, knows the connection by its name, and waits before it fires first."""
    extra = {"bootstrap.servers": bootstrap, "sasl.password": "canary"}
    value = json.dumps({"conn_type": "kafka", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", value)
    name = topic()
    sensor = sensor_on(
        name, group_id, deferrable=True, timeout=123, poke_interval=7, grace=timedelta(days=36_500)
    )
    task = deferred(sensor, context_of(60))
    assert task.timeout == timedelta(seconds=123)
    assert task.method_name == "execute_complete"
    path, kwargs = task.trigger.serialize()
    assert "canary" not in json.dumps(kwargs)
    assert (kwargs["poke_interval"], kwargs["first_look"]) == (7, FIRST_LOOK_S)
    assert FIRST_LOOK_S >= 10
    assert path == "kafka_ordered_ops.airflow.triggers.live.PartitionsLiveTrigger"
    assert revived(task.trigger).question == task.trigger.question


def test_a_question_survives_its_json() -> None:
    """Every field; and what another version made of it is refused by name."""
    window = Window(
        ["b", "^a.*"], at(60), exclude=["abc"], max_out_of_orderness=timedelta(seconds=5)
    )
    full = Question(
        "conn",
        "group",
        window,
        window_id="w",
        grace=timedelta(minutes=10),
        ledger_topic="ledger",
        until=Until.CAUGHT_UP,
    )
    for question in (full, question_on("orders", "group")):
        assert Question.from_json(json.loads(json.dumps(question.to_json()))) == question
    with pytest.raises(ConfigError, match="cannot be read"):
        Question.from_json({**full.to_json(), "added": 1})


def test_the_trigger_fires_when_the_last_partition_is_live_and_not_before(
    topic: MakeTopic, produce: Produce, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on from what it has seen, and its task resumes with the same facts as a look in the worker."""
    name = topic(partitions=2)
    write(produce, name, 61, 0)
    sensor = sensor_on(name, group_id, deferrable=True)
    trigger = revived(deferred(sensor, context_of(60)).trigger)
    trigger.first_look = 0
    looks = watched(monkeypatch)

    async def scene() -> dict[str, Any]:
        waiting = asyncio.create_task(fired(trigger))
        await until(lambda: looks)
        assert not waiting.done()
        await asyncio.to_thread(write, produce, name, 60, 1)
        return await asyncio.wait_for(waiting, TIMEOUT_S)

    event = asyncio.run(scene())
    assert event["status"] == "done"
    told = sensor.execute_complete(context_of(60), event)
    assert told["counts"] == {"live": 2, "idle": 0, "waiting": 0}
    assert small_json(event) < XCOM_BYTES


def test_the_trigger_lets_the_scheduler_note_the_deferral_first(
    topic: MakeTopic, produce: Produce, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the window is live already: an event within seconds can fail the task."""
    name = topic()
    looks, sleep = watched(monkeypatch), asyncio.sleep
    trigger = deferred(sensor_on(name, group_id, deferrable=True), context_of(60)).trigger
    write(produce, name, 60)
    before_look = len(looks)
    slept: list[float] = []

    async def pass_time(seconds: float) -> None:
        slept.append(seconds if len(looks) == before_look else -1)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pass_time)
    assert isinstance(trigger, PartitionsLiveTrigger)
    asyncio.run(fired(trigger))
    assert len(slept) == 1
    assert FIRST_LOOK_S - 1 < slept[0] <= FIRST_LOOK_S


def test_the_trigger_waits_for_the_group_too(
    windows: OrderedWindows, orders: str, group_id: str
) -> None:
    """The same trigger, another question."""
    plan = windows.plan(before(orders, 20, Earliest()), "w")
    sensor = sensor_on(orders, group_id, deferrable=True, until="caught_up")
    trigger = revived(deferred(sensor, context_of(20)).trigger)
    trigger.first_look = 0
    windows.commit(plan)
    event = asyncio.run(asyncio.wait_for(fired(trigger), TIMEOUT_S))
    assert sensor.execute_complete(context_of(20), event)["caught_up"] is True


def test_the_trigger_tells_what_waiting_cannot_help(group_id: str) -> None:
    """The task then fails for good, with the error's name; or is skipped where that was asked for."""
    trigger = soon(question_on(f"missing-{group_id}", group_id))
    event = asyncio.run(asyncio.wait_for(fired(trigger), TIMEOUT_S))
    assert event["status"] == "error"
    with pytest.raises(AirflowFailException, match="UnknownTopicError") as caught:
        sensor_on("orders", group_id).execute_complete(context_of(60), event)
    assert isinstance(caught.value, UnknownTopicError)
    skipping = sensor_on("orders", group_id, soft_fail=True)
    with pytest.raises(AirflowSkipException):
        resume(skipping, "execute_complete", event=event)


def test_the_timeout_of_a_deferred_sensor_is_a_sensors_timeout(group_id: str) -> None:
    """Airflow resumes the task with a failure of its own kind."""
    sensor = sensor_on("orders", group_id, deferrable=True)
    with pytest.raises(AirflowSensorTimeout, match="check has failed: UnknownTopicError"):
        resume(sensor, "__fail__", error=TriggerFailureReason.TRIGGER_TIMEOUT)


@pytest.mark.slow
def test_the_timeout_of_a_deferred_sensor_has_the_table_of_partitions(
    topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """Which partition held the run up is in the failure itself, or in the reason of the skip."""
    name = topic(partitions=2)
    write(produce, name, 60)
    ends = {"error": TriggerFailureReason.TRIGGER_TIMEOUT}
    for kind, more in ((AirflowSensorTimeout, {}), (AirflowSkipException, {"soft_fail": True})):
        sensor = sensor_on(name, group_id, deferrable=True, **more)
        with pytest.raises(kind, match=r"1 of 2 partitions live, 1 waiting") as caught:
            resume(sensor, "__fail__", **ends)
        lines = str(caught.value).splitlines()
        assert lines[3].startswith(f"{name}[1]")
        assert "waiting" in lines[3]


@pytest.mark.slow
def test_the_trigger_never_holds_up_the_loop(
    group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a look waits for a broker that is away, the loop that all triggers share goes on; it can be ended."""
    point_to(monkeypatch, NOWHERE)
    watched(monkeypatch)
    trigger = soon(question_on("orders", group_id))

    async def scene() -> int:
        waiting = asyncio.create_task(fired(trigger))
        turns = 0
        for _ in range(50):
            await asyncio.sleep(0.01)
            turns += not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return turns

    assert asyncio.run(asyncio.wait_for(scene(), TIMEOUT_S)) == 50


@pytest.mark.long
def test_the_trigger_outlives_a_restart_of_the_broker(
    group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on looking while nobody answers, and what happened since ends the waiting."""
    looks = watched(monkeypatch)
    with EmbeddedKafka() as kafka:
        bootstrap = kafka.bootstrap
        new = NewTopic("orders", 1, 1, config={"retention.ms": "-1"})
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([new])["orders"].result(TIMEOUT_S)
        point_to(monkeypatch, bootstrap)
        kafka.kill()

        def restart_and_write() -> None:
            kafka.restart()
            producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
            producer.produce("orders", b"x", partition=0, timestamp=BASE_MS + 60_000)
            assert producer.flush(TIMEOUT_S) == 0

        async def scene() -> dict[str, Any]:
            waiting = asyncio.create_task(fired(soon(question_on("orders", group_id))))
            await until(lambda: looks)
            await asyncio.to_thread(restart_and_write)
            return await asyncio.wait_for(waiting, 3 * TIMEOUT_S)

        assert asyncio.run(scene())["status"] == "done"
    assert isinstance(looks[0], BrokerUnreachableError)
