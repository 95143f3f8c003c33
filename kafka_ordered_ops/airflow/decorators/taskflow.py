"""The decorator: a function of the DAG's file as the job of a window's task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
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
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.spec.jobs import Function, Job, check_function

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import Task

P = ParamSpec("P")
R = TypeVar("R")

#: The placeholder of the window, which a function takes before its own arguments.
_WINDOW = (None,)


class WindowDecoratedOperator(DecoratedOperator, OrderedWindowOperator):
    """The operator that ``@task.kafka_window`` creates from a function; see `kafka_window_task`.

    Raises:
        ConfigError: a function that cannot be called as a job, or another job in addition.
        TypeError: the call's arguments do not fit the function.
    """

    custom_operator_name = "@task.kafka_window"
    template_fields: Sequence[str] = (
        *OrderedWindowOperator.template_fields,
        "op_args",
        "op_kwargs",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    #: A function's module may hold objects that cannot be copied.
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        engine: str | None = None,
        **kwargs: Any,
    ) -> None:
        #: Values of the running attempt's context, for parameters of the function.
        self._from_context: Mapping[str, Any] = {}
        self._engine = engine
        super().__init__(
            python_callable=python_callable,
            # The base class binds the function's arguments, to check that they fit.
            op_args=(*_WINDOW, *op_args),
            op_kwargs=op_kwargs,
            kwargs_to_upstream={"job": Function(_of_window(python_callable), engine=engine)},
            **kwargs,
        )
        self.python_callable = python_callable
        self.op_args = tuple(op_args)

    def execute(self, context: Context) -> Any:
        """Execute the operator, with values of the context for the function's parameters."""
        bound = inspect.signature(self.python_callable).bind_partial(
            *_WINDOW, *self.op_args, **self.op_kwargs
        )
        self._from_context = _context_values(self.python_callable, bound.arguments, context)
        return super().execute(context)

    def job_to_run(self) -> Job:
        """Return the function as the job: its arguments are from the call and the context."""
        return Function(self._call, engine=self._engine)

    def _call(self, window: Any) -> Any:
        return self.python_callable(
            window, *self.op_args, **{**self._from_context, **self.op_kwargs}
        )


def _of_window(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function with the window as its only argument: Airflow checks the other arguments."""
    check_function(function, "window")

    @functools.wraps(function)
    def called(window: Any) -> Any:
        return function(window)

    vars(called).pop("__wrapped__")
    return called


@overload
def kafka_window_task(python_callable: Callable[Concatenate[Any, P], R]) -> Task[P, R]: ...


@overload
def kafka_window_task(
    python_callable: None = None,
    multiple_outputs: bool | None = None,
    *,
    topics: str | Sequence[str] | None = None,
    window: Window | None = None,
    group_id: str | None = None,
    mode: WindowMode | str | None = None,
    cutoff: datetime | str | None = None,
    since: datetime | str | None = None,
    partition_span: timedelta | None = None,
    window_id: str | None = None,
    output: Output = None,
    engine: str | None = None,
    policy: Policy = DEFAULT_POLICY,
    on_empty: OnEmpty | str = OnEmpty.SUCCEED,
    kafka_conn_id: str | None = None,
    ledger_topic: str | None = None,
    **kwargs: Any,
) -> Callable[[Callable[Concatenate[Any, P], R]], Task[P, R]]: ...


def kafka_window_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> Any:
    """``@task.kafka_window``: the function is the job of an `OrderedWindowOperator`.

    ::

        @kafka_window_task(topics="orders", group_id="totals", mode="interval", output="/data/totals")
        def totals(window, country):
            orders = window.read()
            window.write(orders.groupBy("key").count())


        totals(country=country())

    The task passes the `OpenWindow` first, and then the call's arguments. These may be templates, or results of other
    tasks. Parameters with the names of Airflow's context (``ti``, ``dag_run``) are filled in.

    Args:
        python_callable: the function, if the decorator is used without arguments.
        multiple_outputs: push each fact of the window as a separate XCom, such as ``totals()["records"]``. It is not
            inferred from the function's annotation: the operator returns the XCom, with the function's return value
            as its ``result``.
        engine: the engine that reads Kafka for ``window.read()``; see `Function`.
        kwargs: the arguments of `OrderedWindowOperator` except its job. The DAG's ``default_args`` may have them, too.
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


def _context_values(
    function: Callable[..., Any], bound: Mapping[str, Any], context: Context
) -> dict[str, Any]:
    """Return the context's values for a function's parameters, or all for ``**context``, as for other decorated tasks."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return {name: context[name] for name in context if name not in bound}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        parameter.name: context[parameter.name]
        for parameter in parameters
        if parameter.kind in by_name and parameter.name not in bound and parameter.name in context
    }
