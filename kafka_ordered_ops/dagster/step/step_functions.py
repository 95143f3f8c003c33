"""Adapts a step's function to Dagster, and provides functions for steps without one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dagster import ResourceParam

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.functions import name_of
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.step.job import AssetWindows
from kafka_ordered_ops.delivery.full_paths import check_full_path, check_full_paths
from kafka_ordered_ops.delivery.job import WindowJob
from kafka_ordered_ops.spec.jobs import Application, Copy, check_function, job_of
from kafka_ordered_ops.spec.table import Table

#: The resource that steps require.
KAFKA: Final = "kafka"

#: The parameter of a function that is called for one window at a time.
_ONE: Final = "window"
#: The parameter of a function that is called once, for all windows.
_ALL: Final = "windows"

#: A function may have keyword-only parameters after the windows.
_BY_POSITION: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)

#: A resource that a step requires and does not use.
_MARK: Final = ResourceParam[Any]  # type: ignore[misc]

Function = Callable[..., Any]
Results = Callable[[Any, KafkaResource, Function], Iterator[Any]]


def job_without_function(job: Copy | Application | None, output: object) -> Function:
    """Return a function that runs a Spark application for the windows, or copies their records.

    Raises:
        ConfigError: a job of another type, a template, invalid options of spark-submit, or a relative path.
    """
    spark_job = job_of(job)
    if isinstance(spark_job, Copy):
        return Copied(spark_job)
    if not isinstance(spark_job, Application):
        raise ConfigError(
            f"job is {shown(job)}: give a Copy or an Application; a function is an asset by ordered_window_asset"
        )
    to = output if isinstance(output, Table) else None
    WindowJob(job=spark_job, to=to, may_start_spark=True).check_form()
    check_full_path(spark_job.path, what="application")
    check_full_paths(spark_job.how)
    return Submitted(spark_job)


def check_has_place(output: object) -> None:
    """Raise `ConfigError` for a step without a function that has no output."""
    if output is None:
        raise ConfigError("output= is missing: give a folder or a Table")


@dataclass(frozen=True)
class WithoutFunction:
    """Runs a job that needs no user function; the docstring of a subclass is the asset's description."""

    job: Copy | Application

    def __call__(self, _context: Any, windows: AssetWindows) -> None:
        """Run the job of the windows' step."""
        windows.deliver()


class Copied(WithoutFunction):
    """Copies the windows' records."""


class Submitted(WithoutFunction):
    """Runs a Spark application for the windows."""


@dataclass(frozen=True)
class Called:
    """A user's function, as one of a step's context and its windows.

    ``f(window)`` and ``f(context, window)`` are called for one window at a time, by time; ``f(windows)`` and
    ``f(context, windows)`` once, for all of them. Resources come after them.

    Args:
        function: the user's function.
        takes_context: whether a context comes before the windows.
        is_each: whether it is called for one window at a time.
    """

    function: Function
    takes_context: bool
    is_each: bool

    @classmethod
    def of(cls, function: Function, parameters: Sequence[inspect.Parameter]) -> Called:
        """Return the call of a function with these parameters; raise `ConfigError` without a parameter for the windows."""
        first = [parameter.name for parameter in parameters[:2] if parameter.kind in _BY_POSITION]
        for place, name in enumerate(first):
            if name in (_ONE, _ALL):
                return cls(function, takes_context=place == 1, is_each=name == _ONE)
        raise ConfigError(
            f"{name_of(function)} takes no windows: its first parameter, or the one after the context, is named window, for "
            "one window at a time, or windows, for all of them. Resources come after it"
        )

    def __call__(self, context: Any, windows: AssetWindows, **resources: Any) -> Any:
        """Call the function; return its result if it takes all windows."""
        first = (context,) if self.takes_context else ()
        function = partial(self.function, *first)
        if not self.is_each:
            return function(windows, **resources)
        windows.deliver_each(lambda window: function(window, **resources))
        return None


def step_function(
    function: Function,
    kafka_resource: str,
    results: Results,
    context_type: type,
    *,
    marks: Sequence[str] = (),
) -> Function:
    """Return the function with the signature for Dagster: with the resource of the cluster, and without the windows.

    Args:
        function: see `Called`, with resources after the windows.
        kafka_resource: the name of the `KafkaResource`.
        results: called with the context, the resource and the function, which takes a context and windows; yields the
            step's results.
        context_type: of the step's context.
        marks: names of resources that are required but not used.

    Raises:
        ConfigError: it takes no windows; an async function or a generator.
    """
    check_function(function, "context", "windows")
    # As values: Dagster would resolve names in this module.
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    of_user = Called.of(function, parameters)
    delivering = function if isinstance(function, WithoutFunction) else of_user
    own_parameters = parameters[1 + of_user.takes_context :]
    own = [parameter.name for parameter in own_parameters]

    def step(context: Any, **resources: Any) -> Iterator[Any]:
        kafka = resources[kafka_resource]
        yield from results(
            context, kafka, partial(delivering, **{name: resources[name] for name in own})
        )

    # By position or by name: Dagster takes only such parameters for inputs.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    remaining = [parameter.replace(kind=kind) for parameter in own_parameters]
    if kafka_resource not in own:
        remaining.append(inspect.Parameter(kafka_resource, kind, annotation=KafkaResource))
    remaining += [inspect.Parameter(name, kind, annotation=_MARK) for name in marks]
    step.__doc__ = function.__doc__
    return with_signature(step, context_type, remaining)


def with_signature(
    step: Function, context_type: type, parameters: Iterable[inspect.Parameter]
) -> Function:
    """Return a step's function with the signature that Dagster reads: a context, then the parameters.

    Args:
        step: takes a context, and the parameters by name.
        context_type: of the step's context.
        parameters: the resources and inputs, in any order.
    """
    # Those with a default come last.
    own = sorted(parameters, key=lambda one: one.default is not inspect.Parameter.empty)
    context = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=context_type
    )
    signature: Any = step
    signature.__signature__ = inspect.Signature([context, *own])
    signature.__annotations__ = {one.name: one.annotation for one in (context, *own)}
    return step


def function_of(bound: Function) -> object:
    """Return the function of a step without its resources."""
    return bound.func if isinstance(bound, partial) else bound
