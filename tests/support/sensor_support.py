"""What the tests of the sensor and of its trigger share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kafka_ordered_ops import Window
from kafka_ordered_ops.airflow import PartitionsLiveSensor
from kafka_ordered_ops.airflow.support.question import Answer, Question
from tests.conftest import Produce
from tests.support.airflow_context import context_of
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at

NOWHERE = "127.0.0.1:9"

#: What a backend for XComs takes without a second thought.
XCOM_BYTES = 60_000


def write(produce: Produce, topic: str, second: float, partition: int = 0) -> None:
    """One record, so many seconds after the tests' time zero."""
    produce([(topic, partition, None, b"x", int(BASE_MS + second * 1000), ())])


def sensor_on(topic: str, group_id: str, **more: Any) -> PartitionsLiveSensor:
    """A sensor that looks often and gives up soon."""
    given: dict[str, Any] = {"poke_interval": 0.1, "timeout": TIMEOUT_S, **more}
    return PartitionsLiveSensor(task_id="wait", topics=topic, group_id=group_id, **given)


def told_by(sensor: PartitionsLiveSensor, context: dict[str, Any]) -> dict[str, Any]:
    """What one look tells, whatever it comes to."""
    told: Any = sensor.poke(context).xcom_value
    assert isinstance(told, dict)
    return told


def resume(sensor: PartitionsLiveSensor, method: str, **kwargs: Any) -> None:
    """Resumes a deferred sensor, as Airflow does."""
    context: Any = context_of(60)
    sensor.resume_execution(method, kwargs, context)


def question_on(topic: str, group_id: str, second: float = 60, **more: Any) -> Question:
    """A question about everything before a moment."""
    return Question("kafka_default", group_id, Window([topic], at(second)), **more)


def point_to(monkeypatch: pytest.MonkeyPatch, bootstrap: str) -> None:
    """Points the connection ``kafka_default`` elsewhere, where calls fail soon."""
    extra = {"bootstrap.servers": bootstrap, "socket.timeout.ms": 1000}
    value = json.dumps({"conn_type": "kafka", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", value)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Answer | Exception]:
    """What each look comes to, as it comes; when nobody answers, each ends soon."""
    looks: list[Answer | Exception] = []
    look = Question.look

    def watch(self: Question, before: Answer | None = None, *, is_first: bool = True) -> Answer:
        try:
            found = look(self, before, is_first=is_first)
        except Exception as error:
            looks.append(error)
            raise
        looks.append(found)
        return found

    monkeypatch.setattr(Question, "look", watch)
    monkeypatch.setattr("kafka_ordered_ops.airflow.support.question.LOOK_TIMEOUT_S", 2.0)
    return looks
