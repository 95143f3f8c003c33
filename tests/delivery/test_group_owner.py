"""Two users of one group: a group is planned by one owner, and in every host another one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from airflow.sdk import DAG

from kafka_ordered_ops import ConfigError, GroupMismatchError, OrderedWindows, Policy, Window
from kafka_ordered_ops.airflow import OrderedWindowOperator, PlanWindowOperator, kafka_window_task
from kafka_ordered_ops.airflow.compat import AirflowFailException
from kafka_ordered_ops.core.group.group_state import GroupDefinition, GroupState
from kafka_ordered_ops.dagster import KafkaResource, build_ordered_window_asset
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.dagster_support import failure_of
from tests.support.hosts_support import GROUP, asked, executed, task_of
from tests.support.hosts_support import kafka as kafka
from tests.support.hosts_support import windows as windows


def test_a_group_is_planned_by_one_owner(kafka: InMemoryKafka) -> None:
    """Another one is refused, whatever it plans; without an owner nobody is; declared anew, the other one is."""

    def plan(owner: str | None, name: str, until: float, policy: Policy | None = None) -> None:
        with OrderedWindows(kafka.settings, GROUP, owner=owner) as service:
            service.plan(asked(until), name, policy or Policy())

    plan(None, "nobody", 1)
    plan("one", "a", 2)
    for name, until in (("b", 3), ("a", 2), ("nobody", 1)):
        with pytest.raises(
            GroupMismatchError, match="planned by one, and this plan is by two"
        ) as told:
            plan("two", name, until)
        assert told.value.differences == {"owner": ("one", "two")}
    plan(None, "by-hand", 3)
    plan("one", "c", 4)
    # A window that is taken up is enough to declare it.
    plan("two", "c", 4, Policy(redefine=True))
    plan("two", "d", 5)
    with pytest.raises(GroupMismatchError, match="redefine=True"):
        plan("one", "e", 6)
    plan("one", "e", 6, Policy(redefine=True))
    plan("one", "f", 7)


def test_an_owner_survives_the_ledger() -> None:
    """And so does a group without one."""
    unowned = GroupDefinition.of(asked())
    for definition in (unowned, unowned.owned_by("one")):
        state = GroupState("g", 1, definition, (), {}, ())
        assert GroupState.from_json(state.to_json()).definition == definition


def test_two_tasks_of_a_dag_with_one_group_are_an_import_error(tmp_path: Path) -> None:
    """Also decorated or mapped ones; templates, other groups and other connections are not."""
    out = str(tmp_path)

    def dag_of(**second: Any) -> None:
        with DAG("dag"):
            first: dict[str, Any] = {"topics": "t", "group_id": "g", "mode": "auto", "output": out}
            OrderedWindowOperator(task_id="one", **first)
            OrderedWindowOperator(task_id="two", **{**first, **second})

    with pytest.raises(ConfigError, match="tasks one and two of DAG dag"):
        dag_of()
    dag_of(group_id="h")
    dag_of(kafka_conn_id="elsewhere")
    dag_of(ledger_topic="another")
    dag_of(group_id="{{ var.value.group }}")

    def decorated() -> None:
        with DAG("dag"):
            kafka_window_task(mode="auto", topics="t", group_id="g", output=out)(takes_one)()
            PlanWindowOperator(mode="auto", task_id="plan", topics="t", group_id="g")

    def mapped() -> None:
        with DAG("dag"):
            many = OrderedWindowOperator.partial(
                mode="auto", task_id="many", group_id="g", output=out
            )
            many.expand(topics=["a", "b"])
            PlanWindowOperator(mode="auto", task_id="plan", topics="t", group_id="g")

    for make in (decorated, mapped):
        with pytest.raises(ConfigError, match="same group"):
            make()


def takes_one(window: Any) -> None:
    """A job."""


@pytest.mark.slow
def test_another_task_of_airflow_is_refused_at_its_first_plan(
    windows: OrderedWindows, tmp_path: Path
) -> None:
    """It says who plans the group and what to do; runs, tries and map indexes of one task are one owner."""
    for run, index in (("1", -1), ("2", 0), ("3", 1)):
        task = OrderedWindowOperator(**task_of(tmp_path, window_id=f"w{run}"))
        task.execute(context_of(int(run), run_id=run, map_index=index))
    state = windows.state()
    assert state is not None
    assert state.definition.owner == "airflow:dag.task"
    other = task_of(tmp_path, window_id="other")
    with pytest.raises(
        AirflowFailException, match=r"planned by airflow:dag\.task, .* airflow:dag\.two"
    ):
        OrderedWindowOperator(**other).execute(context_of(9, task_id="two"))
    renamed = OrderedWindowOperator(**{**other, "policy": Policy(redefine=True)})
    assert renamed.execute(context_of(9, task_id="two"))["records"] > 0


@pytest.mark.slow
def test_two_assets_of_a_group_do_not_load(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """In one code location; elsewhere the second one's first plan is refused."""

    def made(key: str, group_id: str = "lake.orders") -> dg.AssetsDefinition:
        return build_ordered_window_asset(
            key=key,
            window=Window(["t"], starting_offsets="earliest"),
            group_id=group_id,
            output=str(tmp_path / "out"),
            on_not_live="ignore",
        )

    def load(*assets: dg.AssetsDefinition) -> None:
        resources = {"kafka": KafkaResource(config=kafka.settings)}
        dg.Definitions.validate_loadable(dg.Definitions(assets=[*assets], resources=resources))

    load(made("a"), made("b", "lake_orders"))
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="lake_orders_may_be_planned_by_one"):
        load(made("a"), made("b"))
    assert executed(made("a"), kafka).success
    told = failure_of(executed(made("b"), kafka))
    assert "planned by dagster:a, and this plan is by dagster:b" in told
