"""The task that fails while windows of a group hold records."""

from __future__ import annotations

import pytest

from kafka_ordered_ops import ConfigError, Earliest, WindowsHeldError
from kafka_ordered_ops.airflow import CheckWindowsOperator
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.airflow_context import context_of
from tests.support.airflow_context import kafka_connection as kafka_connection
from tests.support.windows_support import before, no_age


def test_a_group_that_holds_records_fails_its_check(
    windows: OrderedWindows, orders: str, group_id: str
) -> None:
    """An open window that no attempt works on, by its age; not before, and not when it is delivered."""
    plan = windows.plan(before(orders, 60, Earliest()), "marked")
    no_age()
    CheckWindowsOperator(task_id="check", group_id=group_id).execute(context_of())
    strict = CheckWindowsOperator(task_id="strict", group_id=group_id, age="PT0S")
    with pytest.raises(WindowsHeldError) as caught:
        strict.execute(context_of())
    assert caught.value.group_id == group_id
    assert f"group {group_id} has 1 open window" in caught.value.message
    assert "marked (" in caught.value.message
    windows.commit(plan)
    strict.execute(context_of())


def test_what_cannot_be_checked_is_named_when_the_dag_is_parsed() -> None:
    """An age that is none, and a group that Kafka would not have; a template is rendered first."""
    with pytest.raises(ConfigError, match="age"):
        CheckWindowsOperator(task_id="check", group_id="g", age="soon")
    with pytest.raises(ConfigError, match="0 characters"):
        CheckWindowsOperator(task_id="check", group_id="")
    CheckWindowsOperator(task_id="check", group_id="{{ params.group }}", age="{{ params.age }}")
