"""Adapts a step's function to Dagster, and provides functions for steps without one."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dagster import ResourceParam

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.functions import name_of
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.step.job import AssetWindows
from kafka_ordered_ops.hosting.full_paths import check_full_path, check_full_paths
from kafka_ordered_ops.spark.job_checks import check_submit
from kafka_ordered_ops.spec.jobs import Application, check_function

if TYPE_CHECKING:
    from kafka_ordered_ops.spark import SparkSubmit

#: The resource that steps require.
KAFKA: Final = "kafka"

#: A resource that a step requires and does not use.
_MARK: Final = ResourceParam[Any]  # type: ignore[misc]

Function = Callable[..., Any]
Results = Callable[[Any, KafkaResource, dict[str, Any]], Iterator[Any]]


def job_without_function(
    application: str | os.PathLike[str] | None,
    application_args: Sequence[str],
    submit: SparkSubmit | Mapping[str, Any] | None,
    *,
    table_conf: Mapping[str, str] | None = None,
) -> Function:
    """Return a job that runs a Spark application for the windows, or copies them if there is none.

    Raises:
        ConfigError: arguments for an application, but no application; settings of the step's own session for one; or a
            relative path.
    """
    if table_conf and application is not None:
        raise ConfigError(
            "application and table_conf are both given: the application has its own session, which writes the table. Give "
            "its settings in submit, as {'conf': {...}}"
        )
    if application is None:
        if application_args or submit is not None:
            raise ConfigError(
                "application_args= and submit= are an application's: give application="
            )
        return copied
    job = Application(application, application_args, submit)
    check_submit(job.how)
    check_full_path(job.path, what="application")
    check_full_paths(job.how)
    return Submitted(job)


def check_has_place(output: str | None, table: str | None) -> None:
    """Raise `ConfigError` unless there is a place for what no function delivers."""
    if output is None and table is None:
        raise ConfigError("there is nowhere to write to: give output= or table=")


def copied(_context: Any, windows: AssetWindows) -> None:
    """Copy the windows' records, as Parquet."""
    windows.copy()


@dataclass(frozen=True)
class Submitted:
    """Runs a Spark application for the windows."""

    job: Application

    def __call__(self, _context: Any, windows: AssetWindows) -> None:
        """Run the application."""
        windows.submit(self.job.path, self.job.arguments, self.job.how)


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
        function: ``f(context, windows, ...)``.
        kafka_resource: the name of the `KafkaResource`.
        results: called with the context, the resource and the arguments after the windows; yields the step's results.
        context_type: of the step's context.
        marks: names of resources that are required but not used.

    Raises:
        ConfigError: it does not take a context and windows; an async function or a generator.
    """
    check_function(function, "context", "windows")
    # As values: Dagster would resolve names in this module.
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    if len(parameters) < 2:
        raise ConfigError(
            f"{name_of(function)} is called with a context and windows, and resources after them"
        )
    context, rest = parameters[0], parameters[2:]
    own = [one.name for one in rest]

    def step(context: Any, **given: Any) -> Iterator[Any]:
        kafka = given[kafka_resource]
        yield from results(context, kafka, {name: given[name] for name in own})

    keyword = inspect.Parameter.KEYWORD_ONLY
    others = [one.replace(kind=keyword) for one in rest]
    if kafka_resource not in own:
        others.append(inspect.Parameter(kafka_resource, keyword, annotation=KafkaResource))
    others += [inspect.Parameter(name, keyword, annotation=_MARK) for name in marks]
    shown = [context.replace(name="context", annotation=context_type), *others]
    step.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    step.__annotations__ = {one.name: one.annotation for one in shown}
    step.__doc__ = function.__doc__
    return step
