"""What help, completion and type checkers see of the public names: their arguments, each with its type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

import kafka_ordered_ops.airflow as airflow_room
import kafka_ordered_ops.dagster as dagster_room
from kafka_ordered_ops import ConfigError, OrderedWindows, Process
from kafka_ordered_ops.airflow.compat import BaseOperator
from kafka_ordered_ops.airflow.operators.base import WindowTask
from kafka_ordered_ops.airflow.operators.deferrable_task import DeferrableTask
from kafka_ordered_ops.airflow.operators.follower import WindowFollower
from kafka_ordered_ops.airflow.operators.job_task import JobTask
from kafka_ordered_ops.airflow.operators.plan_task import PlanTask
from kafka_ordered_ops.core.processing.options import ProcessorOptions
from kafka_ordered_ops.dagster import (
    KafkaResource,
    WindowSettings,
    build_ordered_window_asset,
    build_ordered_window_op,
    build_process_window_op,
    ordered_window_asset,
    ordered_window_op,
)
from kafka_ordered_ops.delivery.arguments import arguments
from kafka_ordered_ops.processing import Processor

if TYPE_CHECKING:
    # Each of these is an error for a type checker; one that lets it pass finds the comment to be of no use.
    from kafka_ordered_ops import OrderedWindos  # type: ignore[attr-defined]  # noqa: F401
    from kafka_ordered_ops.airflow import OrderedWindowOp  # type: ignore[attr-defined]  # noqa: F401
    from kafka_ordered_ops.dagster import ordered_asset  # type: ignore[attr-defined]  # noqa: F401
    from kafka_ordered_ops.spark import read_windo  # type: ignore[attr-defined]  # noqa: F401

    ordered_window_asset(key="a", topics=["t"], group_id="g", widnow="earliest")  # type: ignore[call-arg]
    build_ordered_window_op(name="a", topics="t", group_id="g", output=1)  # type: ignore[arg-type]
    airflow_room.CutoffReachedTrigger(topics="t", group_id="g", evry="PT1H")  # type: ignore[call-arg]
    airflow_room.OrderedWindowOperator(mode="auto", task_id="t", topics="t", group_id=1)  # type: ignore[arg-type]
    airflow_room.kafka_window_task(mode="auto", topics="t", group_id="g", policy="yes")  # type: ignore[call-overload]

Parameters = dict[str, inspect.Parameter]

#: The options of a `Processor` that its hosts take as well.
OF_PROCESSOR = inspect.signature(ProcessorOptions.of).parameters.keys()

#: Of Airflow's own base class, which every provider passes on.
_OF_AIRFLOW = {
    inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD, annotation="Any"),
}


def spelled_out(function: Callable[..., Any]) -> Parameters:
    """A function's parameters, without those that are passed on to Airflow."""
    found = inspect.signature(function).parameters
    return {name: one for name, one in found.items() if name != "self" and one not in _OF_AIRFLOW}


def public(room: Any) -> Iterator[Any]:
    """Its functions, and what makes objects of its classes."""
    for name in room.__all__:
        one = getattr(room, name)
        # Of the window handle only methods are called by others than this package.
        is_made_here = one is dagster_room.AssetWindows
        if not is_made_here and not (inspect.isclass(one) and issubclass(one, str)):
            yield pytest.param(one, id=name)


@pytest.mark.parametrize("one", [*public(airflow_room), *public(dagster_room)])
def test_every_parameter_has_a_name_and_a_type(one: Any) -> None:
    """No catch-all but Airflow's own, and nothing that may be anything."""
    is_task = inspect.isclass(one) and issubclass(one, BaseOperator)
    is_config = inspect.isclass(one) and issubclass(one, dg.ConfigurableResource)
    signature = inspect.signature(one.__init__ if is_task else one)
    passed_on = is_task or one is airflow_room.kafka_window_task
    for parameter in signature.parameters.values():
        if parameter.name == "self" or (passed_on and parameter in _OF_AIRFLOW):
            continue
        assert parameter.kind is not inspect.Parameter.VAR_KEYWORD or is_config, parameter
        assert parameter.kind is not inspect.Parameter.VAR_POSITIONAL, parameter
        assert parameter.annotation not in (inspect.Parameter.empty, Any, "Any"), parameter


#: How many parameters one call may have.
PARAMETERS_MAX = 14
#: Airflow's own word for every operator that can leave its worker.
_IN_AIRFLOW = {"deferrable"}


@pytest.mark.parametrize(
    "one", [*public(airflow_room), *public(dagster_room), OrderedWindows.run, OrderedWindows.open]
)
def test_a_call_has_few_parameters(one: Any) -> None:
    """Values carry the rest. Those of Airflow's own classes do not count; a component is a file."""
    is_task = inspect.isclass(one) and issubclass(one, BaseOperator)
    if one is dagster_room.OrderedWindowComponent:
        return
    own = spelled_out(one.__init__ if is_task else one).keys() - _IN_AIRFLOW
    of_decorator = {"python_callable", "multiple_outputs"}
    assert len(own - of_decorator) <= PARAMETERS_MAX, sorted(own)


@pytest.mark.parametrize(
    ("operator", "parts", "own"),
    [
        (
            airflow_room.OrderedWindowOperator,
            [WindowTask, PlanTask, JobTask, DeferrableTask],
            set(),
        ),
        (airflow_room.PlanWindowOperator, [WindowTask, PlanTask], {"parts"}),
        (airflow_room.ProcessWindowOperator, [WindowTask, PlanTask], {"job"}),
        (
            airflow_room.PartitionsLiveSensor,
            [WindowTask],
            {"until", "grace", "window_task_id", "deferrable"},
        ),
        (airflow_room.WindowPartOperator, [WindowFollower, JobTask], set()),
        (airflow_room.CommitWindowOperator, [WindowFollower], {"output", "result"}),
        (airflow_room.AbandonWindowOperator, [WindowFollower], {"output"}),
    ],
)
def test_an_operator_takes_what_its_parts_take(
    operator: type[BaseOperator], parts: list[type[BaseOperator]], own: set[str]
) -> None:
    """With the same types and defaults; and nothing that none of them knows."""
    wanted: Parameters = {}
    for part in parts:
        wanted |= spelled_out(part.__init__)
    found = spelled_out(operator.__init__)
    assert found.keys() == wanted.keys() | own
    assert {name: found[name] for name in wanted} == wanted


def test_the_decorator_takes_what_the_operator_takes() -> None:
    """But the job, which is its function; the window and the group may come from the DAG, which the operator sees by itself."""
    operator = spelled_out(airflow_room.OrderedWindowOperator.__init__)
    found = spelled_out(airflow_room.kafka_window_task)
    own = {"python_callable", "multiple_outputs", "engine"}
    assert found.keys() == (operator.keys() - {"job", "deferrable"}) | own
    differ = {name for name in found.keys() & operator.keys() if found[name] != operator[name]}
    assert differ == {"group_id", "mode"}


@pytest.mark.parametrize("make", [ordered_window_asset, ordered_window_op])
def test_a_decorator_takes_all_settings_of_windows(make: Callable[..., Any]) -> None:
    """With the same types and defaults."""
    found, wanted = spelled_out(make), spelled_out(WindowSettings)
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("build", "decorator"),
    [
        (build_ordered_window_asset, ordered_window_asset),
        (build_ordered_window_op, ordered_window_op),
    ],
)
def test_a_builder_takes_what_the_decorator_takes(
    build: Callable[..., Any], decorator: Callable[..., Any]
) -> None:
    """And a job; a folder or a table is needed then."""
    found, wanted = spelled_out(build), spelled_out(decorator)
    assert found.keys() == (wanted.keys() - {"engine"}) | {"job"}
    assert {name: found[name] for name in wanted if name != "engine"} == {
        name: one for name, one in wanted.items() if name != "engine"
    }
    given = {"key": "a"} if "key" in wanted else {"name": "a"}
    with pytest.raises(ConfigError, match="output= is missing"):
        build(topics="t", group_id="g", **given)


def test_a_process_takes_the_options_of_a_processor_as_it_does() -> None:
    """With the same types and defaults."""
    processor, found = spelled_out(Processor.__init__), spelled_out(Process)
    assert found.keys() == OF_PROCESSOR | {"call", "keywords", "batch_size"}
    for name in OF_PROCESSOR:
        assert (found[name].annotation, found[name].default) == (
            processor[name].annotation,
            processor[name].default,
        )


def test_an_op_for_records_takes_the_settings_of_windows() -> None:
    """But what is about files and tables, and who reads for Spark."""
    found, wanted = spelled_out(build_process_window_op), spelled_out(ordered_window_op)
    assert found.keys() - {"job"} == wanted.keys() - {"output", "engine"}
    assert all(found[name] == wanted[name] for name in found.keys() - {"job"})


def test_the_resource_opens_windows_by_arguments_with_names() -> None:
    """Those of the service, but its clock, which is for tests."""
    from kafka_ordered_ops.windows import OrderedWindows

    found, wanted = spelled_out(KafkaResource.open_windows), spelled_out(OrderedWindows)
    assert found.keys() == (wanted.keys() - {"settings", "group", "clock"}) | {"group_id"}


def test_arguments_are_passed_on_by_name() -> None:
    """All but one's own, and those without a value; what a catch-all holds stands beside the others."""

    class Passing:
        def __init__(
            self, *, one: int, two: int = 2, four: int | None = None, **kwargs: int
        ) -> None:
            super().__init__()
            self.found = arguments(locals(), own=["two"])

    assert Passing(one=1, three=3).found == {"one": 1, "three": 3}


@pytest.mark.parametrize("missing", ["topics", "group_id"])
def test_none_for_what_is_needed_is_this_packages_own_error(missing: str) -> None:
    """Whichever class or function finds it."""
    given: dict[str, Any] = {"topics": ["t"], "group_id": "g", "output": "/lake", missing: None}
    with pytest.raises(ConfigError):
        airflow_room.OrderedWindowOperator(task_id="t", mode="auto", **given)
    with pytest.raises(ConfigError):
        build_ordered_window_asset(key="a", **given)
