"""The base of every task that continues a window which another task has planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.airflow.compat import Context, XComArg
from kafka_ordered_ops.airflow.connection import DEFAULT_CONN_ID, open_windows
from kafka_ordered_ops.airflow.support.facts import PLANNED_VERSION
from kafka_ordered_ops.airflow.support.parameters import NamedParameters, check_parameters
from kafka_ordered_ops.airflow.support.places import check_known_output, text_of
from kafka_ordered_ops.airflow.support.values import ValueTask
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import check_count
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import INT64_MAX

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.windows import OrderedWindows

#: The keys that a task needs to continue a window.
_NEEDED = ("version", "window_id", "group", "claim_id", "attempt")

#: The limit of a planning task's result that is rendered as text.
_TEXT_BYTES_MAX: Final = 1024 * 1024

#: The result of a planning task, its output in the DAG's file, or a template that renders it as JSON.
PlannedWindow = Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | XComArg


class WindowFollower(NamedParameters, ValueTask):
    """A task that continues a window that another task has planned.

    Args:
        window: the result of `PlanWindowOperator`: its ``output``, or a template that renders it as JSON.
            (templated)
    """

    template_fields: Sequence[str] = ("window",)

    def __init__(self, *, window: PlannedWindow, **kwargs: Any) -> None:
        check_parameters(self, kwargs)
        super().__init__(**kwargs)
        self.window = window

    @classmethod
    def partial(cls, **parameters: Any) -> Any:
        """Raise `ConfigError` for a relative path while the DAG is parsed: mapped tasks are created when they run."""
        check_known_output(text_of(parameters.get("output")))
        return super().partial(**parameters)

    def open_windows(self, context: Context) -> OrderedWindows:
        """Return the service for the window's group; raise `ConfigError` if `window` is not a planned window."""
        planned_facts = self.planned_facts()
        return open_windows(
            planned_facts.get("conn_id") or DEFAULT_CONN_ID,
            str(planned_facts["group"]),
            ledger_topic=planned_facts.get("ledger_topic"),
            run_id=context.get("run_id"),
        )

    def places(self) -> dict[str, str | None]:
        """Return what an error of this task must name."""
        planned_facts: Mapping[str, Any] = {}
        with suppress(ConfigError):
            planned_facts = self.planned_facts()
        names = {"group": planned_facts.get("group"), "window": planned_facts.get("window_id")}
        return {kind: None if name is None else str(name) for kind, name in names.items()}

    def planned_facts(self) -> Mapping[str, Any]:
        """Return the planning task's result, or the first of a list of parts; raise `ConfigError`."""
        window: Any = self.window
        if isinstance(window, str):
            window = _parsed(window)
        if isinstance(window, Sequence) and not isinstance(window, str) and window:
            # The result of mapped tasks is a lazy sequence.
            window = window[0]
        if not isinstance(window, Mapping) or not set(_NEEDED) <= set(window):
            raise ConfigError(
                f"window= is {str(self.window)[:200]!r}, not the result of PlanWindowOperator: give its task's "
                "`output`. The result is None if that task was skipped, or did not run in this DAG run"
            )
        if (version := whole_fact(window, "version", greatest=INT64_MAX)) != PLANNED_VERSION:
            raise ConfigError(
                f"window= has version {version}; this package reads version {PLANNED_VERSION}: the planning task ran with a newer "
                "version of this package. Upgrade this worker"
            )
        return window

    def planned(self, windows: OrderedWindows) -> WindowPlan:
        """Return the plan with the attempt of the planning task.

        If another attempt has resumed the window since, the commit is refused.
        """
        planned_facts = self.planned_facts()
        return as_planned(windows.show(str(planned_facts["window_id"])).plan, planned_facts)


def as_planned(plan: WindowPlan, planned_facts: Mapping[str, Any]) -> WindowPlan:
    """Return the plan with the attempt of the planning task."""
    return replace(
        plan,
        claim_id=str(planned_facts["claim_id"]),
        attempt=whole_fact(planned_facts, "attempt", greatest=INT64_MAX),
    )


def whole_fact(
    planned_facts: Mapping[str, Any], name: str, *, least: int = 0, greatest: int
) -> int:
    """Return a number that the planning task returned; raise `ConfigError` if it is not one."""
    value = planned_facts[name]
    # A template renders a number as text.
    if isinstance(value, str):
        with suppress(strict_json.JsonError):
            value = strict_json.whole_number(value)
    return check_count(value, what=f"{name} in window=", least=least, greatest=greatest)


def _parsed(text: str) -> Any:
    try:
        return strict_json.loads(text, limit_bytes=_TEXT_BYTES_MAX)
    except strict_json.JsonError:
        return None
