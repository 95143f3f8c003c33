"""One specification of windows: the same arguments ask for the same window in every host."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kafka_ordered_ops import airflow as airflow_room
from kafka_ordered_ops import dagster as dagster_room
from kafka_ordered_ops.airflow import OrderedWindowOperator, PlanWindowOperator
from kafka_ordered_ops.airflow.support.times import CutoffSource, WindowTimes
from kafka_ordered_ops.cli.options.question import Policies
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import Isolation, OnCovered, OnOpenClaim
from kafka_ordered_ops.core.window.bounds import Earliest
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.dagster import WindowSettings
from kafka_ordered_ops.hosting.window_spec import WindowSpec, span_of

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)

#: An argument that is not the default, for each field.
GIVEN: dict[str, Any] = {
    "topics": ["orders"],
    "group_id": "hourly",
    "starting_offsets": "earliest",
    "max_out_of_orderness": timedelta(minutes=5),
    "isolation": "read_uncommitted",
    "exclude": ["orders-old"],
    "on_covered": "skip",
    "on_open_claim": "fail",
    "on_data_loss": "warn",
    "on_foreign_commit": "adopt",
    "redefine": True,
}


@pytest.mark.parametrize("since", [None, NOON - timedelta(hours=1)])
def test_the_same_arguments_are_the_same_window(since: datetime | None) -> None:
    """In Airflow's operator and in Dagster's settings; each argument counts."""
    assert GIVEN.keys() == WindowSpec.__dataclass_fields__.keys()
    operator = PlanWindowOperator(task_id="plan", mode="auto", **GIVEN)
    settings = WindowSettings(**GIVEN)
    wanted = WindowSpec(**GIVEN)
    assert operator.spec() == wanted
    times = WindowTimes(NOON, since, CutoffSource.PARAMETER)
    assert operator.window_of(times) == settings.window(NOON, since) == wanted.window(NOON, since)
    assert (wanted.starting_offsets, wanted.isolation) == (Earliest(), Isolation.READ_UNCOMMITTED)
    assert settings.policy(OnCovered.SKIP) == wanted.policy(OnCovered.SKIP)


def test_what_a_task_does_not_know_yet_is_left_out() -> None:
    """Templates, and what comes from other tasks; all else is looked at when the DAG's file is parsed."""
    given = {**GIVEN, "topics": "{{ a }}", "group_id": "{{ b }}", "starting_offsets": "{{ c }}"}
    operator = OrderedWindowOperator(mode="auto", task_id="orders", output="{{ d }}", **given)
    operator.topics, operator.group_id, operator.starting_offsets = "orders", "hourly", ""
    found = operator.spec()
    # A template that found nothing.
    assert (found.topics, found.group_id, found.starting_offsets) == (("orders",), "hourly", None)
    with pytest.raises(ConfigError, match="max_out_of_orderness"):
        OrderedWindowOperator(
            mode="auto", task_id="t", output="/lake", **{**given, "max_out_of_orderness": "-PT1H"}
        )


def test_a_policy_keeps_the_defaults_of_what_is_not_given() -> None:
    """Ages and waits are a task's; a claim's are the service's own."""
    spec = WindowSpec(**{**GIVEN, "redefine": False})
    assert spec.policy(OnCovered.FAIL) == Policy(OnCovered.FAIL, OnOpenClaim.FAIL)
    assert spec.policy(OnCovered.FAIL, claim_wait=timedelta(1)).claim_wait == timedelta(1)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"topics": []}, "topics and group_id are needed"),
        ({"group_id": "a\n"}, "group"),
        ({"starting_offsets": "yesterday"}, "yesterday"),
        ({"isolation": "none"}, "isolation is 'none'"),
        ({"on_covered": "drop"}, "on_covered is 'drop'"),
        ({"redefine": 1}, "redefine"),
        ({"max_out_of_orderness": timedelta(-1)}, "negative"),
        ({"exclude": [1]}, "exclude"),
    ],
)
def test_what_cannot_be_is_named(wrong: dict[str, Any], told: str) -> None:
    """Before there is any time to plan a window for."""
    with pytest.raises(ConfigError, match=told):
        WindowSpec(**{**GIVEN, **wrong})


@pytest.mark.parametrize("given", ["-PT1H", timedelta(-1), 5, "an hour"])
def test_what_is_no_span_is_named(given: Any) -> None:
    """Text or not."""
    with pytest.raises(ConfigError, match="grace"):
        span_of(given, "grace")
    assert span_of(None, "grace") is None
    assert span_of("PT1H", "grace") == timedelta(hours=1)


def test_every_host_has_the_same_default_for_covered_windows() -> None:
    """In the service, in the command line, and in each signature of the hosts that has the parameter."""
    rooms = [
        (airflow_room, airflow_room.__all__),
        (dagster_room, dagster_room.__all__),
    ]
    found = {
        f"{room.__name__}.{name}": signature.parameters["on_covered"].default
        for room, names in rooms
        for name in names
        if callable(public := getattr(room, name))
        and "on_covered" in (signature := inspect.signature(public)).parameters
    }
    assert len(found) >= 8, found
    assert {*found.values(), WindowSpec(topics="orders", group_id="g").on_covered} == {
        Policy().on_covered
    }
    assert Policies().on_covered is Policy().on_covered is OnCovered.AUTO
