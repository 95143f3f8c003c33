"""Mistakes in a DAG's file or in a connection: said once, in the words of the host, with what was probably meant."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from kafka_ordered_ops import (
    Application,
    ConfigError,
    KafkaOrderedOpsError,
    StartingOffsetsRequiredError,
    Window,
)
from kafka_ordered_ops.airflow import (
    CommitWindowOperator,
    OrderedWindowOperator,
    PartitionsLiveSensor,
    PlanWindowOperator,
    kafka_window_task,
)
from kafka_ordered_ops.airflow.compat import AirflowFailException, errors_for_airflow
from kafka_ordered_ops.airflow.operators.plan_task import PlanTask
from kafka_ordered_ops.airflow.support.question import Question
from kafka_ordered_ops.core.errors import name_places
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.airflow_context import context_of
from tests.support.host_words import words
from tests.support.windows_support import BASE_MS, at

GIVEN: dict[str, Any] = {"task_id": "t", "topics": "orders", "group_id": "g"}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryKafka]:
    """Two topics of three records each, and the connection."""
    with InMemoryKafka() as kafka:
        for name in ("orders", "payments"):
            kafka.create_topic(name)
            for n in range(3):
                kafka.produce(name, timestamp_ms=BASE_MS + n * 10_000, value=b"x")
        extra = {**kafka.settings, "group.id": "provider"}
        connection = json.dumps({"conn_type": "kafka", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", connection)
        yield kafka


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (OrderedWindowOperator, {"starting_offset": "earliest"}, r"Window\(..., starting_offsets="),
        (OrderedWindowOperator, {"on_covered": "skip"}, r"policy=Policy\(..., on_covered="),
        (PlanWindowOperator, {"max_offset": 3}, r"policy=Policy\(..., max_offsets="),
        (OrderedWindowOperator, {"retires": 3}, "'retries'"),
        (PlanWindowOperator, {"part": 3}, "'parts'"),
        (PartitionsLiveSensor, {"grac": "PT1H"}, "'grace'"),
        (PartitionsLiveSensor, {"poke_intervall": 3}, "'poke_interval'"),
        (CommitWindowOperator, {"outptu": "/data"}, "'output'"),
    ],
)
def test_an_unknown_parameter_names_the_one_that_was_meant(
    kind: type[Any], given: dict[str, Any], told: str
) -> None:
    """With the name by which people know the class."""
    needed = {"task_id": "t", "window": {}} if kind is CommitWindowOperator else GIVEN
    if issubclass(kind, PlanTask):
        needed = {**needed, "mode": "auto"}
    with pytest.raises(ConfigError, match=rf"{kind.__name__} has no parameter '.*{told}"):
        kind(**needed, **given)


def test_a_decorated_function_is_known_by_its_decorator() -> None:
    """Not by a class that nobody has heard of."""

    @kafka_window_task(mode="auto", topics="orders", group_id="g", outptu="/data")
    def job(window: Any) -> None:
        """Nothing."""
        window.write(window)

    with pytest.raises(
        ConfigError, match=r"^@task\.kafka_window has no parameter 'outptu'.*'output'"
    ):
        job()


@pytest.mark.parametrize(
    ("submit", "told"),
    [
        ({"mster": "local"}, "submit has 'mster' in it.*did you mean 'master'"),
        (
            {"deploy_mode": "clustr"},
            "deploy_mode is 'clustr': give one of 'client', 'cluster'",
        ),
    ],
)
def test_how_spark_submit_is_run_is_said_in_words(submit: dict[str, str], told: str) -> None:
    """Neither a ValueError of an enumeration nor the signature of a class."""
    with pytest.raises(ConfigError, match=told):
        OrderedWindowOperator(
            mode="auto", **GIVEN, job=Application("/job.py", submit=submit), output="/data"
        )


def test_the_cure_is_a_setting_of_airflow(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deployment may allow a setting that is refused; in a task's log the error stands once."""
    connection = {
        "conn_type": "kafka",
        "extra": {"bootstrap.servers": "b:1", "plugin.library.paths": "x"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    task = PlanWindowOperator(mode="auto", **GIVEN)
    with pytest.raises(
        AirflowFailException,
        match=r"name it in \[kafka_ordered_ops\] settings_allowed in airflow\.cfg",
    ) as caught:
        task.execute(context_of(12))
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count("settings_allowed in airflow.cfg") == 1
    # Its frames are there all the same.
    assert "settings_from" in printed
    monkeypatch.setenv("AIRFLOW__KAFKA_ORDERED_OPS__SETTINGS_ALLOWED", "plugin.library.paths, x.y")
    with pytest.raises(Exception, match=r".") as other:
        task.execute(context_of(12))
    assert "settings_allowed" not in str(other.value)


def test_an_error_that_may_heal_is_itself() -> None:
    """Airflow tries it again; it has its own frames."""
    with pytest.raises(ValueError, match="no error of ours"), errors_for_airflow():
        raise ValueError("no error of ours")


def test_a_failure_names_its_group_window_and_step(kafka: InMemoryKafka) -> None:
    """For the one who is on call, who sees the last lines of the log, or a callback's exception."""
    task = PlanWindowOperator(mode="auto", **GIVEN, window_id="noon")
    with pytest.raises(AirflowFailException, match="StartingOffsetsRequiredError: ") as caught:
        task.execute(context_of(12))
    assert "group g" in str(caught.value)
    assert "window noon" in str(caught.value)
    assert "step plan" in str(caught.value)
    assert isinstance(caught.value, StartingOffsetsRequiredError)
    error = KafkaOrderedOpsError("group g: no")
    for _ in range(2):
        name_places(error, group="g", window="noon", owner=None)
    assert str(error) == error.message == "group g: no (window noon)"


def test_a_future_cutoff_has_no_cure_that_a_task_lacks(kafka: InMemoryKafka) -> None:
    """Waiting is the only one."""
    task = PlanWindowOperator(
        **words(mode="auto", **GIVEN, cutoff="2999-01-01T00:00Z", starting_offsets="earliest")
    )
    with pytest.raises(Exception, match="has not passed yet") as caught:
        task.execute(context_of(12))
    assert "allow" not in str(caught.value)


def test_what_is_not_taken_from_a_connection_is_said_once(
    kafka: InMemoryKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at each look of a sensor or a trigger."""
    sensor = PartitionsLiveSensor(**GIVEN, cutoff=at(12))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            sensor.poke(context_of(12))
    assert [line for line in caplog.messages if "settings are ignored" in line] == [
        "Connection kafka_default: these settings are ignored: group.id. The task and its guarantees set them, "
        "or they are not client settings."
    ]


@pytest.mark.parametrize("deferrable", [False, True])
def test_the_sensor_refuses_what_the_operator_would(
    kafka: InMemoryKafka, *, deferrable: bool
) -> None:
    """The DAG's topics were changed: better now than after hours of waiting."""
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.commit(windows.plan(Window("orders", at(12), starting_offsets="earliest"), "first"))
    given = {**GIVEN, "topics": "payments", "cutoff": at(20), "starting_offsets": "earliest"}
    with pytest.raises(AirflowFailException, match=r"GroupMismatchError.*payments"):
        PlanWindowOperator(**words(mode="auto", **given)).execute(context_of(20))
    with pytest.raises(AirflowFailException, match=r"GroupMismatchError.*payments"):
        PartitionsLiveSensor(**words(**given, deferrable=deferrable)).execute(context_of(20))
    # Its own topics pass, whatever the mode of the task that plans.
    same = {**GIVEN, "cutoff": at(20), "since": at(12)}
    assert PartitionsLiveSensor(**same).execute(context_of(20))["live"]


def test_a_task_that_redefines_its_group_may_be_waited_for(kafka: InMemoryKafka) -> None:
    """The sensor knows it by `window_task_id`."""
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.commit(windows.plan(Window("orders", at(12), starting_offsets="earliest"), "first"))
    asked = Window("payments", at(20))
    assert Question("kafka_default", "g", asked, redefine=True).look().is_over
