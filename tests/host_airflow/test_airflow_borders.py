"""What Airflow itself limits, renders, shows and hands to callbacks, met before a window is planned."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

from kafka_ordered_ops import ConfigError, Function, GroupMismatchError, PlanTooLargeError
from kafka_ordered_ops.airflow import (
    AbandonWindowOperator,
    CommitWindowOperator,
    OrderedWindowOperator,
    PartitionsLiveSensor,
    PlanWindowOperator,
    ProcessWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.airflow.compat import AirflowFailException, errors_for_airflow
from kafka_ordered_ops.airflow.connection import settings_from
from kafka_ordered_ops.spark import SparkSubmit
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.host_words import job_words, process_words, words
from tests.support.windows_support import BASE_MS

WHICH: dict[str, Any] = {"topics": "orders", "group_id": "g", "mode": "catch_up"}


def test_more_parts_than_airflow_expands_are_refused_when_the_file_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the limit that this Airflow is configured with."""
    PlanWindowOperator(task_id="plan", **WHICH, parts=1024)
    with pytest.raises(ConfigError, match=r"parts is 1,025.*at most 1,024 items.*max_map_length"):
        PlanWindowOperator(task_id="plan", **WHICH, parts=1025)
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "3")
    with pytest.raises(ConfigError, match="parts is 4"):
        PlanWindowOperator(task_id="plan", **WHICH, parts=4)


def test_jobs_on_parts_that_do_not_fit_the_plan_are_refused_when_the_file_is_parsed() -> None:
    """They would fail when the window is planned already."""
    given: dict[str, Any] = {"task_id": "part", "output": "/lake"}
    with DAG("whole"):
        plan = PlanWindowOperator(task_id="plan", **WHICH)
        with pytest.raises(ConfigError, match="give plan parts="):
            WindowPartOperator.partial(**given).expand(window=plan.output)
    with DAG("whole_alone"):
        plan = PlanWindowOperator(task_id="plan", **WHICH)
        with pytest.raises(ConfigError, match="give plan parts="):
            WindowPartOperator(**given, window=plan.output)
    with DAG("not_expanded"):
        plan = PlanWindowOperator(task_id="plan", **WHICH, parts=2)
        with pytest.raises(ConfigError, match="expand it"):
            WindowPartOperator(**given, window=plan.output)
    with DAG("right"):
        plan = PlanWindowOperator(task_id="plan", **WHICH, parts=2)
        part = WindowPartOperator.partial(**given).expand(window=plan.output)
        plan >> part >> CommitWindowOperator(task_id="commit", window=plan.output, output="/lake")
        assert plan.downstream_task_ids == {"part", "commit"}


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (OrderedWindowOperator, {"output": "lake/orders"}),
        (OrderedWindowOperator, {"output": "~/orders"}),
        (OrderedWindowOperator, {"output": "/lake", "application": "jobs/orders.py"}),
        (
            OrderedWindowOperator,
            {
                "output": "/lake",
                "application": "/jobs/orders.py",
                "submit": {"py_files": ["/jobs/a.zip", "b.zip"]},
            },
        ),
        (
            OrderedWindowOperator,
            {
                "output": "/lake",
                "application": "/jobs/orders.py",
                "submit": SparkSubmit(archives=["env.tar.gz#environment"]),
            },
        ),
        (CommitWindowOperator, {"output": "lake/orders"}),
        (AbandonWindowOperator, {"output": Path("lake")}),
    ],
)
def test_a_relative_path_is_refused_when_the_file_is_parsed(
    kind: type[Any], given: dict[str, Any]
) -> None:
    """Two attempts on two workers would look in two places."""
    which = WHICH if kind is OrderedWindowOperator else {"window": {}}
    with pytest.raises(ConfigError, match=r"is the relative path .*give the full path"):
        kind(**job_words(task_id="task", **which, **given))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (OrderedWindowOperator, {"output": "lake/orders"}),
        (OrderedWindowOperator, {"output": "/lake", "application": "jobs/orders.py"}),
        (WindowPartOperator, {"output": Path("lake")}),
        (CommitWindowOperator, {"output": "lake/orders"}),
    ],
)
def test_a_relative_path_of_a_mapped_task_is_refused_when_the_file_is_parsed(
    kind: type[Any], given: dict[str, Any]
) -> None:
    """Such a task is made when it runs; a template, and what it is mapped over, are looked at then."""
    with pytest.raises(ConfigError, match=r"is the relative path .*give the full path"):
        kind.partial(**job_words(task_id="task", **given))
    rendered = kind.partial(task_id="rendered", output="{{ params.folder }}")
    rendered.expand(window=[{}])


def test_a_rendered_path_is_looked_at_before_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the path of a certificate with the connection."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        connection = json.dumps({"conn_type": "kafka", "extra": dict(kafka.settings)})
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", connection)
        task = OrderedWindowOperator(
            **words(
                task_id="task", **WHICH, starting_offsets="earliest", output="{{ params.folder }}"
            )
        )
        task.output_to = "lake/orders"
        with pytest.raises(AirflowFailException, match="output is the relative path"):
            task.execute(context_of(60))
        with pytest.raises(
            ConfigError, match=r"connection c: ssl\.ca\.location is the relative path"
        ):
            settings_from("c", {"bootstrap.servers": "b:1", "ssl.ca.location": "ca.pem"})


@pytest.mark.parametrize("mode", ["catch_up", "interval", "auto"])
def test_a_window_mode_in_default_args_is_not_the_sensors(mode: str) -> None:
    """Its own parameter of that name still counts, and a wrong one is still an error."""
    which = {"topics": "orders", "group_id": "g"}
    sensors: Any = PartitionsLiveSensor
    operators: Any = OrderedWindowOperator
    with DAG("dag", schedule=None, default_args={"mode": mode, **which}):
        sensor = sensors(task_id="live")
        assert sensor.mode == "poke"
        own = sensors(task_id="own", mode="reschedule")
        assert own.mode == "reschedule"
        mapped = sensors.partial(task_id="mapped").expand(topics=["orders"])
        assert mapped.unmap({"topics": "orders"}).mode == "poke"
        window = operators(task_id="window", output="/lake")
        assert window.mode == mode


def rendered(task: Any, params: dict[str, Any]) -> dict[str, Any]:
    """What Airflow stores and shows of a task, once its fields are rendered."""
    context = {**context_of(60), "params": params}
    task.render_template_fields(context)
    shown: dict[str, Any] = _serialize_rendered_fields(task)
    return shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value", "make"),
    [
        ("topics", ["a", "b"], lambda text: OrderedWindowOperator(**_job(topics=text))),
        ("exclude", ["a"], lambda text: OrderedWindowOperator(**_job(exclude=text))),
        ("keys", ["id"], lambda text: OrderedWindowOperator(**_table(table_keys=text))),
        ("keywords", {"a": 1}, lambda text: OrderedWindowOperator(**_called(keywords=text))),
        (
            "keywords",
            {"a": 1},
            lambda text: ProcessWindowOperator(
                **process_words(task_id="task", **WHICH, function=len, keywords=text)
            ),
        ),
        ("submit", {"master": "yarn"}, lambda text: OrderedWindowOperator(**_job(submit=text))),
    ],
)
def test_a_list_in_params_needs_native_objects(
    field: str, value: Any, make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names Airflow's setting; with it the parameter is what it is."""
    with InMemoryKafka() as kafka:
        connection = json.dumps({"conn_type": "kafka", "extra": dict(kafka.settings)})
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", connection)
        for native in (False, True):
            with DAG("dag", schedule=None, render_template_as_native_obj=native):
                task = make("{{ params.list }}")
            with pytest.raises(Exception, match=r".") as caught:
                _run(task, {"list": value})
            assert ("render_template_as_native_obj" in str(caught.value)) is not native
            if not native:
                assert str(caught.value).startswith(f"ConfigError: {field} is the text")


def _run(task: Any, params: dict[str, Any]) -> None:
    rendered(task, params)
    task.execute(context_of(60))


def _job(**given: Any) -> dict[str, Any]:
    # Whatever is right, no window is planned: the file does not exist.
    job = {"output": "/nowhere/lake", "application": "/nowhere/job.py"}
    return job_words(**{"task_id": "task", **WHICH, **job, **given})


def _table(**given: Any) -> dict[str, Any]:
    return words(
        **{"task_id": "task", **WHICH, "table": "lake.orders", "table_mode": "merge", **given}
    )


def _called(**given: Any) -> dict[str, Any]:
    return job_words(**{"task_id": "task", **WHICH, "function": len, **given})


def test_secrets_in_the_settings_of_spark_are_masked() -> None:
    """By Spark's names and those of the stores, however they get there; other values are shown."""
    conf = {
        "spark.hadoop.fs.s3a.access.key": "{{ params.one }}",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": "canary-account-key",
        "spark.kafka.sasl.jaas.config": "canary-jaas",
        "spark.executor.memory": "shown-memory",
    }
    one = "canary-access-key"
    with DAG("dag", schedule=None):
        submit = {"conf": conf, "environment": {"LAKE_SECRET": "canary-secret"}}
        application = OrderedWindowOperator(**_job(submit=submit))
        function = OrderedWindowOperator(
            task_id="function", **{**WHICH, "group_id": "h"}, job=Function(max, conf=conf)
        )
        as_object = OrderedWindowOperator(
            **{**_job(submit=SparkSubmit(conf=conf)), "task_id": "object", "group_id": "i"}
        )
    for task in (application, function, as_object):
        shown = repr(rendered(task, {"one": one}))
        assert "canary" not in shown
        assert "shown-memory" in shown


def test_a_callback_gets_the_class_of_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Airflow does not retry is still the package's error, with its fields; also after a pickle."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for n in range(5):
            kafka.produce("orders", timestamp_ms=BASE_MS + n, value=b"x")
        connection = json.dumps({"conn_type": "kafka", "extra": dict(kafka.settings)})
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", connection)
        task = PlanWindowOperator(
            **words(task_id="plan", **WHICH, starting_offsets="earliest", max_offsets=4)
        )
        with pytest.raises(AirflowFailException, match=r"^PlanTooLargeError: window") as caught:
            task.execute(context_of(60))
    again = pickle.loads(pickle.dumps(caught.value))
    for failed in (caught.value, again):
        assert isinstance(failed, PlanTooLargeError)
        assert failed.topic == "orders"
        assert not isinstance(failed, GroupMismatchError)
        assert str(failed) == str(caught.value)


def test_a_failure_is_made_once() -> None:
    """However many of the package's calls it passes."""
    with (
        pytest.raises(AirflowFailException, match=r"^ConfigError: no$"),
        errors_for_airflow(),
        errors_for_airflow(),
    ):
        raise ConfigError("no")
