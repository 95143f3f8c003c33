"""The decorator: a function of the DAG's file as the job of a window's task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    ParamSpec,
    TypeVar,
    get_overloads,
    overload,
)

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from kafka_ordered_ops.airflow.compat import Context
from kafka_ordered_ops.airflow.operators.ordered import OrderedWindowOperator
from kafka_ordered_ops.airflow.operators.plan_task import OnEmpty
from kafka_ordered_ops.airflow.support.places import Output
from kafka_ordered_ops.airflow.support.times import WindowMode
from kafka_ordered_ops.core.arguments import check_choice
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
)
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.hosting.job import BatchCall, SparkCall

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import Task

P = ParamSpec("P")
R = TypeVar("R")

#: A function gets two arguments before its own: a session and the window, or batches and the plan.
_GIVEN = (None, None)


class JobKind(StrEnum):
    """The input of a decorated function.

    Spark: ``f(spark, window)``, a session in this process and an `OpenWindow`. Batches:
    ``f(batches, plan)``, an iterator of Arrow batches in total order, without Spark.
    """

    SPARK = "spark"
    BATCHES = "batches"


class WindowDecoratedOperator(DecoratedOperator, OrderedWindowOperator):  # type: ignore[misc]
    """The operator that ``@task.kafka_window`` makes of a function; see `kafka_window_task`.

    Raises:
        ConfigError: a function that cannot be called as a job, or another job beside it.
        TypeError: the call's arguments do not fit the function.
    """

    custom_operator_name = "@task.kafka_window"
    template_fields: Sequence[str] = (*OrderedWindowOperator.template_fields, "op_args")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **OrderedWindowOperator.template_fields_renderers,
        "op_args": "py",
    }
    #: A function's module may hold objects that cannot be copied.
    shallow_copy_attrs: Sequence[str] = ("python_callable", "batch_callable")

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        job: JobKind | str = JobKind.SPARK,
        **kwargs: Any,
    ) -> None:
        self.job = check_choice(job, JobKind, what="job")
        #: Arguments that the function names, of the running attempt's context.
        self._from_context: Mapping[str, Any] | None = None
        name = "python_callable" if self.job is JobKind.SPARK else "batch_callable"
        super().__init__(
            python_callable=python_callable,
            # The base class binds the function's arguments, to check that they fit.
            op_args=(*_GIVEN, *op_args),
            op_kwargs=op_kwargs,
            kwargs_to_upstream={name: python_callable, "op_kwargs": op_kwargs},
            **kwargs,
        )
        self.python_callable = python_callable
        self.op_args = tuple(op_args)

    def execute(self, context: Context) -> Any:
        """Execute the operator, with the values of the context that the function names as parameters."""
        given = inspect.signature(self.python_callable).bind_partial(
            *_GIVEN, *self.op_args, **self.op_kwargs
        )
        self._from_context = _asked_for(self.python_callable, given.arguments, context)
        return super().execute(context)

    def _call_of(self) -> SparkCall | BatchCall | None:
        kind = SparkCall if self.job is JobKind.SPARK else BatchCall
        if self._from_context is not None:
            return kind(self._call, {**self._from_context, **self.op_kwargs})
        # Its arguments are from the call and the context, and Airflow's base class has checked them. While the base
        # class is initialized, the job is the one passed to it.
        given = vars(self).get("python_callable") or self.batch_callable
        return None if given is None else kind(given, None)

    def _call(self, data: Any, window: Any, **keywords: Any) -> Any:
        return self.python_callable(data, window, *self.op_args, **keywords)


@overload
def kafka_window_task(python_callable: Callable[Concatenate[Any, Any, P], R]) -> Task[P, R]: ...


@overload
def kafka_window_task(
    python_callable: None = None,
    multiple_outputs: bool | None = None,
    *,
    topics: str | Sequence[str] | None = None,
    group_id: str | None = None,
    kafka_conn_id: str | None = None,
    kafka_config_id: str | None = None,
    cutoff: datetime | str | None = None,
    since: datetime | str | None = None,
    partition_span: timedelta | None = None,
    starting_offsets: Bound | datetime | str | None = None,
    max_out_of_orderness: timedelta | str | None = None,
    isolation: Isolation | str = Isolation.READ_COMMITTED,
    exclude: str | Sequence[str] = (),
    on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
    window_id: str | None = None,
    settings_allowed: Sequence[str] = (),
    ledger_topic: str | None = None,
    mode: WindowMode | str | None = None,
    on_covered: OnCovered | str = OnCovered.AUTO,
    on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND,
    claim_age: timedelta | str | None = None,
    claim_wait: timedelta | str | None = None,
    on_empty: OnEmpty | str = OnEmpty.SUCCEED,
    on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL,
    redefine: bool = False,
    max_offsets: int | str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    output: Output = None,
    storage_conn_id: str | None = None,
    partition_by: str | None = None,
    table: str | None = None,
    table_mode: str | None = None,
    table_keys: str | Sequence[str] = (),
    delete_tombstones: bool = False,
    ordered: bool = True,
    engine: str = "python",
    window_url: str | None = None,
    job: JobKind | str = JobKind.SPARK,
    **kwargs: Any,
) -> Callable[[Callable[Concatenate[Any, Any, P], R]], Task[P, R]]: ...


def kafka_window_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> Any:
    """``@task.kafka_window``: the function is the job of an `OrderedWindowOperator`.

    ::

        @kafka_window_task(topics="orders", group_id="totals", starting_offsets="earliest", output="/data/totals")
        def totals(spark, window, country):
            orders = window.read()
            window.write(orders.groupBy("key").count())


        totals(country=country())

    The call's arguments follow the two that the task passes. They may be templates, or results of other tasks.
    Arguments by the names of Airflow's context (``ti``, ``dag_run``) are filled in.

    Args:
        python_callable: the function, where the decorator is used without arguments.
        multiple_outputs: push each fact of the window as a separate XCom, so that ``totals()["records"]`` is
            one. Not inferred from the function's annotation: the XCom is the operator's, with the function's return
            value as its ``result``.
        job: a `JobKind`, ``spark`` or ``batches``.
        kwargs: those of `OrderedWindowOperator` without its jobs. Missing ones may be in the DAG's ``default_args``.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=bool(multiple_outputs),
        decorated_operator_class=WindowDecoratedOperator,
        **kwargs,
    )


# Editors show and complete the signature that type checkers see. The function itself passes on only the arguments of
# the call: the others may be in the DAG's `default_args`.
kafka_window_task.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    get_overloads(kafka_window_task)[-1]
)


def _asked_for(
    function: Callable[..., Any], given: Mapping[str, Any], context: Context
) -> dict[str, Any]:
    """Return the values of the context that a function names, or all for ``**context``, as for other decorated tasks."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return {name: context[name] for name in context if name not in given}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        one.name: context[one.name]
        for one in parameters
        if one.kind in by_name and one.name not in given and one.name in context
    }
