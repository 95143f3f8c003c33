"""What a sink hands over, and whether it is of the window that it is handed over for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.functions import check_does_work
from kafka_ordered_ops.core.group.checks import owned
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.windows.checks import (
    check_function,
    check_identity,
    check_result,
    check_same_length,
)

#: What an output is asked for.
_STAGED: Final = ("to_json", "publish", "discard")


class Staged(Protocol):
    """A sink's output that is complete and not visible yet.

    It may have a method ``check_ready()``, which raises what `publish` would raise; it is called before the commit.
    """

    def to_json(self) -> Mapping[str, Any]:
        """What another process needs to publish it; kept in the ledger.

        With ``window_id``, and perhaps ``claim_id``, ``group``, ``attempt`` and ``part``, it says whose it is, and is
        refused for any other plan.
        """

    def publish(self) -> None:
        """Make it visible; doing it again changes nothing."""

    def discard(self) -> None:
        """Remove what is not visible; doing it again changes nothing."""


#: Runs the job of one window, or of several in one pass, into hidden places.
Write = Callable[[WindowPlan], Staged]
WriteMany = Callable[[Sequence[WindowPlan]], Sequence[Staged]]

#: Finds an earlier attempt's output from what it said of itself; None where it is gone.
Reopen = Callable[[Mapping[str, Any]], Staged | None]


def check_outputs(
    plans: Sequence[WindowPlan],
    outputs: Sequence[Staged],
    read: Callable[[Sequence[str]], GroupView] | None = None,
) -> None:
    """Raise unless each output is of its plan, as far as it says whose it is.

    With `read`, which gives the group's view, also unless it could be published, as far as it can say so.

    Raises:
        ConfigError: they are more or fewer.
        WindowMismatchError: an output is of another window, claim, group or part.
        SinkError: something is no output; or one is not there, or not all of it, or its place is taken.
        WindowSupersededError: another attempt, a new plan or an abandonment owns a window.
    """
    _check_list(outputs)
    check_same_length(plans, outputs, what="outputs")
    check_results(plans, [told_by(plan, one) for plan, one in zip(plans, outputs, strict=True)])
    if read is None:
        return
    try:
        for one in outputs:
            if (check_ready := getattr(one, "check_ready", None)) is not None:
                check_ready()
    except SinkError:
        # Whoever owns the window now may have removed it: then there is nothing to be done.
        view = read([plan.window_id for plan in plans])
        for plan in plans:
            owned(view, plan)
        raise


def check_results(plans: Sequence[WindowPlan], results: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless each result is of its plan, as far as it says whose it is.

    Raises:
        ConfigError: they are more or fewer.
        WindowMismatchError: a result is of another window, claim, group or part.
        SinkError: something is no result.
    """
    _check_list(results)
    check_same_length(plans, results, what="results")
    for plan, one in zip(plans, results, strict=True):
        check_result(one)
        check_identity(plan, one)


def told_by(plan: WindowPlan, staged: Staged) -> dict[str, Any]:
    """What an output says of itself; raises `SinkError` for what is none."""
    check_is_output(plan, staged)
    told = staged.to_json()
    check_result(told)
    return dict(told)


def _check_list(outputs: object) -> None:
    if not isinstance(outputs, Sequence) or isinstance(outputs, str | bytes):
        raise SinkError(
            f"{shown(outputs)} was handed over, and not a list of what was staged for each window. Nothing was "
            "changed"
        )


def check_is_output(plan: WindowPlan, one: object) -> None:
    """Raise `SinkError` for what is no output: what a job that returned nothing handed over, say."""
    is_class = isinstance(one, type)
    missing = [name for name in _STAGED if is_class or not callable(getattr(one, name, None))]
    if missing:
        raise SinkError(
            f"the job of window {plan.window_id} of group {plan.group_id} handed over {shown(one)}, which has no "
            f"{', '.join(missing)}: nothing is known to be delivered, and nothing was committed. Return what was "
            "staged for the window",
            window_id=plan.window_id,
        )


def check_jobs(write: object, reopen: object) -> None:
    """Raise `ConfigError` for what cannot be called, or does no work when it is called."""
    for name, function in (("write", write), ("reopen", reopen)):
        check_function(function, what=name)
        check_does_work(cast("Callable[..., Any]", function))
