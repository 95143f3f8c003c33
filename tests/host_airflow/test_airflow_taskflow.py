"""Decorated functions on a real broker: what they are given, what the call adds, and what Airflow makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, XComArg, task

from kafka_ordered_ops import Application, ConfigError, OpenWindow, Policy, Window
from kafka_ordered_ops.airflow import OrderedWindowOperator, kafka_window_task
from kafka_ordered_ops.airflow.decorators.taskflow import WindowDecoratedOperator
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from tests.host_airflow.test_airflow_package import stored_dag
from tests.support.airflow_context import (
    committed,
    context_of,
    kafka_connection,
    offsets_in,
    outputs_of,
)
from tests.support.host_words import words

__all__ = ["kafka_connection"]

SMALL = {"spark.master": "local[1]", "spark.ui.enabled": "false"}

Decorate = Callable[..., Callable[[Callable[..., Any]], Any]]


def offsets_of(window: OpenWindow) -> list[Any]:
    """Where the records were."""
    return window.to_arrow().column("offset").to_pylist()


@pytest.fixture
def on(orders: str, group_id: str) -> Decorate:
    """The decorator, for `orders`: on batches, in catch-up, from the earliest record."""

    def decorate(**more: Any) -> Callable[[Callable[..., Any]], Any]:
        given: dict[str, Any] = {
            "topics": orders,
            "group_id": group_id,
            "mode": "catch_up",
            "starting_offsets": "earliest",
        }
        decorator: Callable[[Callable[..., Any]], Any] = kafka_window_task(
            **words(**{**given, **more})
        )
        return decorator

    return decorate


def operator_of(called: XComArg) -> WindowDecoratedOperator:
    """The task that a call has made."""
    operator: Any = cast_operator(called)
    assert isinstance(operator, WindowDecoratedOperator)
    return operator


def cast_operator(called: XComArg) -> Any:
    """The same, mapped or not."""
    return next(iter(called.iter_references()))[0]


def run(operator: Any, until: float = 25, **more: Any) -> dict[str, Any]:
    """Renders and executes a task, as Airflow does; what goes into its XCom, as JSON."""
    context: Any = context_of(until, **more)
    context |= {"task": operator, "dag": operator.get_dag()}
    operator.render_template_fields(context)
    facts: dict[str, Any] = json.loads(json.dumps(context["task"].execute(context)))
    return facts


# --- what a function is given ----------------------------------------------------------------------


def test_a_function_on_batches_gets_the_window_and_the_calls_arguments(
    on: Decorate, windows: OrderedWindows, orders: str
) -> None:
    """After the two that the task gives, by place and by name; what it returns is kept with the window."""

    @on()
    def load(window: OpenWindow, table: str, *, limit: int, extra: str = "none") -> dict[str, Any]:
        """Loads."""
        told = [window.window_id, table, limit, extra]
        return {"offsets": offsets_of(window), "told": told}

    operator = operator_of(load("orders", limit=3))
    facts = run(operator)
    assert operator.task_id == "load"
    assert operator.doc_md == "Loads."
    assert facts["result"] == {
        "offsets": [0, 3, 1, 5, 2],
        "told": [facts["window_id"], "orders", 3, "none"],
    }
    assert facts["records"] == 5
    assert committed(windows, orders) == [4]
    assert windows.show(facts["window_id"]).status is WindowStatus.PUBLISHED


@pytest.mark.slow
@pytest.mark.spark
def test_a_function_with_spark_gets_a_session_and_the_window(
    on: Decorate, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """The default; its output is published with the commit."""

    @on(output=str(tmp_path / "out"), engine="python")
    def copy(window: OpenWindow, least: int) -> None:
        window.write(window.read().where(f"offset >= {least}"))

    facts = run(operator_of(copy(1)))
    assert offsets_in(facts["output"]) == [3, 1, 5, 2]
    assert outputs_of(tmp_path / "out") == [Path(facts["output"]).name]
    assert committed(windows, orders) == [4]


@pytest.mark.slow
def test_arguments_are_templates_and_context_is_given_by_name(on: Decorate, group_id: str) -> None:
    """Of a call as of the decorator; as every decorated task has it."""

    @on(window_id="{{ run_id }}-of-{{ ti.task_id }}")
    def load(
        window: OpenWindow,
        one: str,
        two: dict[str, Any],
        ti: Any = None,
        run_id: str | None = None,
    ) -> list[Any]:
        return [one, two, ti.task_id, run_id]

    facts = run(operator_of(load("{{ run_id }}", two={"x": ["{{ ti.task_id }}"]})), run_id="r")
    assert facts["window_id"] == "r-of-task"
    assert facts["result"] == ["r", {"x": ["task"]}, "task", "r"]


@pytest.mark.slow
def test_a_function_may_take_the_whole_context(on: Decorate) -> None:
    """By two stars, beside arguments of its own; a call's own word goes first."""

    @on()
    def load(window: OpenWindow, one: int, **context: Any) -> list[Any]:
        return [one, context["two"], context["run_id"], context["ti"].task_id]

    assert run(operator_of(load(1, two=2)), run_id="r")["result"] == [1, 2, "r", "task"]


# --- the call --------------------------------------------------------------------------------------


def test_what_another_task_returns_is_waited_for(on: Decorate) -> None:
    """Its place in the DAG follows from the call; so does that of whoever takes the window's facts."""
    with DAG("d"):

        @task
        def table() -> str:
            return "orders"

        @on()
        def load(window: OpenWindow, name: str, other: str) -> None: ...

        @task
        def tell(facts: dict[str, Any]) -> None: ...

        by_place, by_name = table(), table()
        loaded = load(by_place, other=by_name)
        tell(loaded)
    assert operator_of(loaded).upstream_task_ids == {"table", "table__1"}
    assert operator_of(loaded).downstream_task_ids == {"tell"}


@pytest.mark.slow
def test_expand_and_partial_make_a_window_for_each(
    on: Decorate, windows: OrderedWindows, group_id: str
) -> None:
    """Each for its own group, by its index; else they would share the records between them."""
    with DAG("d"):

        @on(group_id=group_id + "-{{ ti.map_index }}")
        def load(window: OpenWindow, table: str, prefix: str) -> list[Any]:
            return [prefix + table, offsets_of(window)]

        mapped = cast_operator(load.partial(prefix="t_").expand(table=["a", "b"]))
    told = [run(mapped, map_index=index) for index in (0, 1)]
    assert [one["result"] for one in told] == [
        ["t_a", [0, 3, 1, 5, 2]],
        ["t_b", [0, 3, 1, 5, 2]],
    ]
    assert [one["group"] for one in told] == [f"{group_id}-0", f"{group_id}-1"]
    assert len({one["window_id"] for one in told}) == 2


@pytest.mark.slow
def test_override_changes_the_task_and_not_the_function(on: Decorate, group_id: str) -> None:
    """The same function for another window; each call is a task of its own."""
    with DAG("d"):

        @on()
        def load(window: OpenWindow) -> list[int]:
            return offsets_of(window)

        other = load.override(task_id="other", group_id=f"{group_id}-other", retries=3)
        mine = load.override(group_id=f"{group_id}-again")
        first, again, another = (operator_of(call()) for call in (load, mine, other))
    assert [one.task_id for one in (first, again, another)] == ["load", "load__1", "other"]
    assert (another.retries, another.group_id) == (3, f"{group_id}-other")
    assert run(first)["result"] == run(another)["result"] == [0, 3, 1, 5, 2]


def test_defaults_of_the_dag_are_the_decorators_too(
    on: Decorate, orders: str, group_id: str
) -> None:
    """Also those of this package's own parameters."""
    with DAG("d", default_args={"policy": Policy("skip"), "topics": orders, "group_id": group_id}):

        @kafka_window_task(mode="auto")
        def load(window: OpenWindow) -> None: ...

        operator = operator_of(load())
    assert (operator.policy, operator.window, operator.group_id) == (
        Policy("skip"),
        Window(orders),
        group_id,
    )


def test_facts_are_pushed_one_by_one_where_that_is_asked_for(on: Decorate) -> None:
    """Never because of what the function's annotation says: the XCom is the operator's."""

    def load(window: OpenWindow) -> dict[str, int]:
        return {}

    assert not operator_of(on()(load)()).multiple_outputs
    assert operator_of(on(multiple_outputs=True)(load)()).multiple_outputs


# --- what cannot be --------------------------------------------------------------------------------


async def waits(window: OpenWindow) -> None:
    """An async function."""


def gives(window: OpenWindow) -> Iterator[int]:
    """A generator."""
    yield 1


async def both(window: OpenWindow) -> Any:
    """An async generator."""
    yield 1


@pytest.mark.parametrize("function", [waits, gives, both], ids=lambda one: str(one.__name__))
def test_a_function_that_does_nothing_when_called_is_refused(
    on: Decorate, function: Callable[..., Any]
) -> None:
    """Its window would be committed, and its records be gone."""
    with pytest.raises(ConfigError, match=f"{function.__name__} is .*plain function"):
        on()(function)()


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [((), {}), ((1, 2), {}), ((1,), {"x": 1}), ((1,), {"window": 2}), ((1,), {"y": 2})],
)
def test_arguments_that_do_not_fit_are_an_error_of_the_dag(
    on: Decorate, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    """Too few, too many, twice, or for what the task gives."""

    @on()
    def load(window: OpenWindow, x: int) -> None: ...

    with pytest.raises(TypeError):
        load(*arguments, **keywords)


def test_a_decorated_task_has_one_job(on: Decorate) -> None:
    """The function."""

    def load(window: OpenWindow) -> None: ...

    with pytest.raises((ConfigError, TypeError), match="job"):
        on(job=Application("/job.py"))(load)()


# --- what Airflow makes of it ----------------------------------------------------------------------

DAG_FILE = """
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, task

from kafka_ordered_ops import Window
from kafka_ordered_ops.airflow import CutoffReachedTrigger

orders = Window("orders", starting_offsets="earliest")
window = dict(window=orders, group_id="g", kafka_conn_id="away")
reached = CutoffReachedTrigger(topics="orders", group_id="g", every=timedelta(hours=1))
hour = Asset("hour", watchers=[AssetWatcher("hour", trigger=reached)])

with DAG("taskflow", schedule=[hour], start_date=datetime(2026, 11, 1, tzinfo=UTC)):

    @task
    def tables():
        return ["a", "b"]

    @task.kafka_window(output="/o", mode="auto", **window)
    def spark(window, table):
        window.write(window.read())

    @task.kafka_window(mode="auto", **window)
    def batches(window, table):
        return {"rows": sum(batch.num_rows for batch in window.to_batches())}

    spark(tables())
    batches.expand(table=tables())
"""


@pytest.mark.slow
def test_airflow_finds_the_decorator_and_stores_its_tasks(tmp_path: Path) -> None:
    """By the provider's name for it, mapped or not, beside a watcher; nothing is loaded that could ask anybody."""
    (tmp_path / "taskflow.py").write_text(DAG_FILE)
    code = (
        "    'tasks': {task.task_id: task.operator_name for task in back.tasks},\n"
        "    'link': back.get_task('spark').extra_links,\n"
        "    'watched': 'CutoffReachedTrigger' in text,\n"
        "    'loaded': sorted({'pyspark', 'confluent_kafka'} & set(sys.modules)),\n"
    )
    told = stored_dag(tmp_path, code)
    ours = "@task.kafka_window"
    assert told == {
        "tasks": {"tables": "@task", "tables__1": "@task", "spark": ours, "batches": ours},
        "link": ["Spark job", "Window"],
        "watched": True,
        "loaded": [],
    }


def test_the_decorator_has_one_name_with_and_without_the_provider() -> None:
    """What a DAG imports is what Airflow finds; and what it makes is an operator like the others."""
    assert task.kafka_window is kafka_window_task
    assert issubclass(WindowDecoratedOperator, OrderedWindowOperator)
