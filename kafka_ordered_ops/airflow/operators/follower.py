"""What every task has in common that goes on with a window which another one has planned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import BaseOperator, Context, XComArg
from kafka_ordered_ops.airflow.connection import DEFAULT_CONN_ID, open_windows
from kafka_ordered_ops.airflow.support.literals import is_literal
from kafka_ordered_ops.airflow.support.parameters import NamedParameters, check_parameters
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.spark.job_checks import check_output

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.windows import OrderedWindows

#: What a task must be told to go on with a window.
_NEEDED = ("window_id", "group", "claim_id", "attempt")

#: What a planning task has returned, its output in the DAG's file, or a template that renders it as JSON.
HandedOn = Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | XComArg


class WindowFollower(NamedParameters, BaseOperator):
    """A task that goes on with a window that another one has planned.

    Args:
        window: what `PlanWindowOperator` returned: its ``output``, or a template that renders it as JSON.
            (templated)
        settings_allowed: more of librdkafka's settings to take from the connection.
    """

    template_fields: Sequence[str] = ("window",)

    def __init__(
        self, *, window: HandedOn, settings_allowed: Sequence[str] = (), **kwargs: Any
    ) -> None:
        check_parameters(self, kwargs)
        super().__init__(**kwargs)
        self.window = window
        self.settings_allowed = tuple(settings_allowed)

    def open_windows(self, context: Context) -> OrderedWindows:
        """The service for the window's group; raises `ConfigError` when `window` is none."""
        told = self.told()
        return open_windows(
            told.get("conn_id") or DEFAULT_CONN_ID,
            str(told["group"]),
            settings_allowed=self.settings_allowed,
            ledger_topic=told.get("ledger_topic"),
            run_id=context.get("run_id"),
        )

    def told(self) -> Mapping[str, Any]:
        """What the planning task returned; of a list of parts, the first. Raises `ConfigError`."""
        window: Any = self.window
        if isinstance(window, str):
            window = _parsed(window)
        if isinstance(window, Sequence) and not isinstance(window, str) and window:
            # A lazy sequence, where it comes from mapped tasks.
            window = window[0]
        if not isinstance(window, Mapping) or not set(_NEEDED) <= set(window):
            raise ConfigError(
                f"window= is {str(self.window)[:200]!r}, not what PlanWindowOperator returned: give its task's "
                "`output`. It is None where that task was skipped, or returned nothing to this run"
            )
        return window

    def planned(self, windows: OrderedWindows) -> WindowPlan:
        """The plan, with the right to commit it that the planning task got.

        If another attempt has taken the window up since, the commit is refused.
        """
        told = self.told()
        return as_told(windows.show(str(told["window_id"])).plan, told)


def check_literal_output(output: str | None) -> None:
    """Raises `ConfigError` for a folder that can be seen to be wrong without a run."""
    if output is not None and is_literal(output):
        check_output(output)


def as_told(plan: WindowPlan, told: Mapping[str, Any]) -> WindowPlan:
    """The plan as of the attempt that the planning task was."""
    return replace(plan, claim_id=str(told["claim_id"]), attempt=int(told["attempt"]))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
