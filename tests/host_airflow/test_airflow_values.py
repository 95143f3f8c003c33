"""Values among a task's parameters: rendered as others, found by Airflow with what they wait for, shown without secrets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG, task

from kafka_ordered_ops import (
    Application,
    Folder,
    Function,
    Policy,
    Process,
    Table,
    Window,
)
from kafka_ordered_ops.airflow import (
    OrderedWindowOperator,
    ProcessWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.airflow.compat import AirflowFailException
from kafka_ordered_ops.spark import SparkSubmit
from tests.support.airflow_context import context_of

GIVEN: dict[str, Any] = {"topics": "orders", "group_id": "g", "mode": "catch_up"}


def take(window: Any, least: int = 0) -> None:
    """A job."""


def charge(record: Any) -> None:
    """A job for each record."""


@task
def upstream() -> Any:
    """Another task, whose result is waited for."""


def dag() -> DAG:
    """A DAG of one run."""
    return DAG("dag", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "given",
    [
        lambda up: {"output": up},
        lambda up: {"output": Folder(up)},
        lambda up: {"output": Folder("/lake", partition_by=up)},
        lambda up: {"output": Table("t", keys=[up], mode="{{ params.mode }}")},
        lambda up: {"output": "/lake", "window": Window(up), "topics": None},
        lambda up: {"output": "/lake", "policy": Policy(max_offsets=up)},
        lambda up: {"output": "/lake", "job": Function(take, {"least": up})},
        lambda up: {"output": "/lake", "job": Application("/job.py", arguments=["--to", up])},
        lambda up: {
            "output": "/lake",
            "job": Application("/job.py", submit={"conf": {"spark.a": up}}),
        },
        lambda up: {
            "output": "/lake",
            "job": Application("/job.py", submit=SparkSubmit(conf={"spark.a": up})),
        },
    ],
)
@pytest.mark.parametrize("how", ["task", "partial", "expand"])
def test_a_task_waits_for_results_in_its_values(given: Any, how: str) -> None:
    """Wherever they are: in a task, and in a mapped one among what is the same for all and what is not."""
    with dag():
        words = {**GIVEN, **given(upstream())}
        if how == "task":
            made: Any = OrderedWindowOperator(task_id="window", **words)
        elif how == "partial":
            made = OrderedWindowOperator.partial(task_id="window", **words).expand(cutoff=["now"])
        else:
            each = {
                name: words.pop(name)
                for name in ("output", "window", "policy", "job")
                if name in words
            }
            made = OrderedWindowOperator.partial(task_id="window", **words).expand_kwargs([each])
    assert made.upstream_task_ids == {"upstream"}


def test_parts_and_records_wait_as_well() -> None:
    """Every task with a value."""
    with dag():
        root: Any = upstream()
        part = WindowPartOperator.partial(task_id="part", output=Folder(root)).expand(window=[{}])
        topic: Any = upstream()
        job = Process(charge, dead_letter_topic=topic)
        record: Any = ProcessWindowOperator(task_id="record", **GIVEN, job=job)
    assert part.upstream_task_ids == {"upstream"}
    assert record.upstream_task_ids == {"upstream__1"}


def test_a_value_may_be_shared() -> None:
    """Rendering makes another one; what a template renders to nothing is the default."""
    to = Folder("/lake/{{ ti.task_id }}", partition_by="{{ params.by }}")
    how = Policy(on_covered="{{ params.covered }}", claim_age="{{ params.age }}")
    with dag():
        tasks = [
            OrderedWindowOperator(
                task_id=name, **{**GIVEN, "group_id": name}, output=to, policy=how
            )
            for name in ("a", "b")
        ]
    for one in tasks:
        params = {"by": "hour", "covered": "", "age": "P2D"}
        context: Any = {**context_of(60, task_id=one.task_id), "params": params}
        one.render_template_fields(context)
        assert one.output_to == Folder(f"/lake/{one.task_id}", "hour")
        assert one.policy == Policy(claim_age="P2D")
    assert to.path == "/lake/{{ ti.task_id }}"


def test_what_a_value_is_rendered_to_is_checked() -> None:
    """As a literal is, and for good."""
    with dag():
        made = OrderedWindowOperator(
            task_id="t", **GIVEN, output=Folder("/lake", partition_by="{{ params.by }}")
        )
    context: Any = {**context_of(60), "params": {"by": "week"}}
    with pytest.raises(AirflowFailException, match=r"ConfigError: partition_by is 'week'"):
        made.render_template_fields(context)


def test_a_value_looks_the_same_in_every_process() -> None:
    """Without an address in memory, which would make each parse of the file a new version of the DAG."""
    job = Function(take, {"least": 1}, conf={"spark.a.secret": "canary"})
    to = Folder("s3://lake/orders", storage_options={"aws_secret_access_key": "canary"})
    with dag():
        made = OrderedWindowOperator(task_id="t", **GIVEN, output=to, job=job)
    shown = repr([getattr(made, name) for name in made.template_fields])
    assert f"Function(call={__name__}.take" in shown
    assert "canary" not in shown
    assert " at 0x" not in shown
