"""A parameter with a slip of the pen: every public name of the hosts says which one was meant, under its own name."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops import airflow as airflow_room
from kafka_ordered_ops import dagster as dagster_room
from kafka_ordered_ops.dagster import KafkaResource

#: What is called by the package and not by people; enumerations and classes without parameters.
NOT_CALLED = {"AssetWindows", "OnNotLive", "KafkaWindowTranslator"}

#: A parameter of each public name, with a slip.
SLIPS = {
    "AbandonWindowOperator": "windw",
    "CheckWindowsOperator": "agee",
    "CommitWindowOperator": "ouput",
    "CutoffReachedTrigger": "max_out_of_ordernes",
    "KafkaResource": "confg",
    "KafkaResourceComponent": "ledger_topc",
    "KafkaTopicsComponent": "exclud",
    "KafkaWindowsHook": "gruop_id",
    "OrderedWindowComponent": "starting_offset",
    "OrderedWindowMultiComponent": "asets",
    "OrderedWindowOperator": "topcs",
    "PartitionsLiveSensor": "grcae",
    "PlanWindowOperator": "on_coverd",
    "ProcessWindowOperator": "max_concurency",
    "SparkResource": "cnf",
    "WindowPartOperator": "engin",
    "WindowOp": "retry_polcy",
    "WindowSettings": "on_coverd",
    "build_kafka_topic_assets": "group_nme",
    "build_ordered_window_asset": "ouput",
    "build_ordered_window_op": "ouput",
    "build_partitions_live_sensor": "lookbak",
    "build_process_window_op": "max_concurency",
    "catch_up_condition": "lookback",
    "kafka_window_task": "topcs",
    "ordered_window_asset": "grop_id",
    "ordered_window_multi_asset": "asets",
    "ordered_window_op": "grop_id",
    "partitions_live_check": "blokcing",
    "window_id_of": "asset_kye",
    "window_retry_policy": "bussy_delay",
    "windows_held_check": "agee",
}


def called(name: str, given: dict[str, Any]) -> Any:
    """Calls a public name as a DAG's or a project's file does."""
    room = airflow_room if name in airflow_room.__all__ else dagster_room
    made = getattr(room, name)
    if name == "kafka_window_task":
        return made(**given)(lambda window: None)()
    if isinstance(made, type) and "Operator" in name + made.__mro__[1].__name__:
        given = {"task_id": "t", **given}
    return made(**given)


def test_every_public_name_is_tried() -> None:
    """A new one has its slip here."""
    assert {*airflow_room.__all__, *dagster_room.__all__} - NOT_CALLED == SLIPS.keys()


@pytest.mark.parametrize("name", sorted(SLIPS))
def test_an_unknown_parameter_is_named_with_the_nearest(name: str) -> None:
    """Also where required ones are missing, of which the misspelt one may be the first."""
    slip = SLIPS[name]
    host = "@task.kafka_window" if name == "kafka_window_task" else name
    hint = (
        ""
        if name == "catch_up_condition"
        else r" \((did you mean '\w+'\?|give \w+=\w+\(\.\.\., \w+=\.\.\.\))\)"
    )
    with pytest.raises(ConfigError, match=rf"^{host} has no parameter '{slip}'{hint}"):
        called(name, {slip: "x"})


def test_the_resources_service_is_as_exact() -> None:
    """And what is right passes, by position or by name; the resource can be copied, and derived from."""
    kafka = KafkaResource(config={"bootstrap.servers": "localhost:9092"})
    unknown: Any = kafka.open_windows
    with pytest.raises(ConfigError, match=r"open_windows has no parameter 'rum_id'.*'run_id'"):
        unknown("g", rum_id="x")
    assert kafka.model_copy(update={"ledger_topic": "l"}).ledger_topic == "l"

    class Ours(KafkaResource):
        team: str

    assert Ours(config={}, team="lake").team == "lake"
    unknown = Ours
    with pytest.raises(ConfigError, match="Ours has no parameter 'teem'"):
        unknown(config={}, teem="lake")
    assert "group_id" in inspect.signature(airflow_room.OrderedWindowOperator).parameters
