"""The output of a sink, and the check that it belongs to its window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from kafka_ordered_ops.core.arguments import check_function, shown
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.functions import check_does_work
from kafka_ordered_ops.core.group.checks import owned
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.ownership import Publisher
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.windows.checks import (
    check_identity,
    check_result,
    check_same_length,
)
from kafka_ordered_ops.windows.values.dead_letters import check_reported

#: The methods of an output.
_STAGED: Final = ("to_json", "publish", "discard")


class Staged(Protocol):
    """A sink's output that is complete but not visible yet.

    It may have these methods as well:

    - ``check_ready()`` is called before the commit, and raises the errors of `publish`.
    - ``check_ready_with(outputs)`` and ``publish_with(outputs)`` do the same for several outputs, if that is cheaper. They
      may return the outputs that they handled, for which no other method is called.
    - ``is_published()`` returns whether readers see the output. Without it, readers are assumed to see every window that
      is published in the ledger.
    """

    def to_json(self) -> Mapping[str, Any]:
        """Return the JSON from which another process can publish the output; stored in the ledger.

        If the JSON has ``window_id``, and optionally ``claim_id``, ``group``, ``attempt`` and ``part``, it is refused for
        any other plan.
        """

    def publish(self) -> None:
        """Make the output visible. Repeating it changes nothing."""

    def discard(self) -> None:
        """Remove the hidden output. Repeating it changes nothing."""


#: Runs the job of one window, or of several windows in one pass, and writes hidden outputs.
Write = Callable[[WindowPlan], Staged]
WriteMany = Callable[[Sequence[WindowPlan]], Sequence[Staged]]

#: Returns an earlier attempt's output from its JSON; None if it is gone. It may have these methods: ``ask(results)`` is
#: called first, to look up all outputs together if that is cheaper. ``elsewhere(result)`` returns the output of a window
#: that was published to another place. ``left(result)`` returns the output of any other window of the group: committed
#: windows that are not visible yet are then published as well.
Reopen = Callable[[Mapping[str, Any]], Staged | None]


class Place(Protocol):
    """The place where windows will be published; checked before they are claimed."""

    def check(
        self, publishers: Sequence[Publisher], windows: Mapping[str, Window]
    ) -> Sequence[str]:
        """Return notes for people; raise `OutputOwnedError` for a published output that a publisher must not replace.

        Args:
            publishers: the publishers of windows that are not delivered yet.
            windows: the windows, by id.
        """

    def check_columns(self, window: Window, settings: ClientSettings) -> None:
        """Raise `ConfigError` if the decoded columns of new windows, some of which may have been inferred, do not fit.

        Args:
            window: one of the windows, which have the same columns.
            settings: the client settings.
        """


def check_outputs(
    plans: Sequence[WindowPlan],
    outputs: Sequence[Staged],
    read: Callable[[Sequence[str]], GroupView] | None = None,
) -> None:
    """Raise unless each output belongs to its plan, as far as the output identifies its window.

    With `read`, which returns the group's view, also raise for outputs that report that they cannot be published.

    Raises:
        ConfigError: there are more or fewer outputs than plans.
        WindowMismatchError: an output is of another window, claim, group or part.
        SinkError: a value is not an output; or an output is missing, or incomplete, or its place is taken.
        WindowSupersededError: another attempt or a new plan owns a window, or it was abandoned.
    """
    _check_list(outputs)
    check_same_length(plans, outputs, what="outputs")
    check_results(
        plans, [told_by(plan, output) for plan, output in zip(plans, outputs, strict=True)]
    )
    if read is None:
        return
    try:
        _each_once(outputs, "check_ready")
    except SinkError:
        # The attempt that owns the window now may have removed the output: then raise `WindowSupersededError`.
        view = read([plan.window_id for plan in plans])
        for plan in plans:
            owned(view, plan)
        raise


def check_results(plans: Sequence[WindowPlan], results: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless each result belongs to its plan, as far as the result identifies its window.

    Raises:
        ConfigError: there are more or fewer results than plans.
        WindowMismatchError: a result is of another window, claim, group or part.
        SinkError: a value is not a result.
        ConfigError: a result does not say which records become dead letters.
    """
    _check_list(results)
    check_same_length(plans, results, what="results")
    for plan, result in zip(plans, results, strict=True):
        check_result(result)
        check_identity(plan, result)
        # A written window may have been written with another `on_bad`: only the ledger knows whether its result is new.
        if plan.status is WindowStatus.PLANNED:
            check_reported(plan, result)


def publish_each(outputs: Sequence[Staged]) -> None:
    """Make committed windows' outputs visible."""
    _each_once(outputs, "publish")


def _each_once(outputs: Sequence[Staged], name: str) -> None:
    """Call a method of each output, or its ``_with`` method, which may return the outputs that it handled."""
    done: set[int] = set()
    for output in outputs:
        if id(output) in done:
            continue
        together = getattr(output, f"{name}_with", None) if len(outputs) > 1 else None
        if together is not None:
            done.update(map(id, together(outputs) or ()))
        elif (alone := getattr(output, name, None)) is not None:
            alone()


def is_visible(output: Staged) -> bool:
    """Return whether readers see an output, as far as the output reports it."""
    # `Reopen` may have looked already.
    if getattr(output, "seen_published", False):
        return True
    is_published = getattr(output, "is_published", None)
    return is_published is None or bool(is_published())


def told_by(plan: WindowPlan, staged: Staged) -> dict[str, Any]:
    """Return an output's JSON; raise `SinkError` if it is not an output."""
    check_is_output(plan, staged)
    result = staged.to_json()
    check_result(result)
    return dict(result)


def _check_list(outputs: object) -> None:
    if not isinstance(outputs, Sequence) or isinstance(outputs, str | bytes):
        raise SinkError(
            f"expected a list with one staged output for each window, not {shown(outputs)}. Nothing was "
            "changed"
        )


def check_is_output(plan: WindowPlan, value: object) -> None:
    """Raise `SinkError` unless the value is an output; a job that returned nothing is not."""
    is_class = isinstance(value, type)
    missing = [name for name in _STAGED if is_class or not callable(getattr(value, name, None))]
    if missing:
        raise SinkError(
            f"the job of window {plan.window_id} of group {plan.group_id} returned {shown(value)}, which has no "
            f"{', '.join(missing)}: the window may not be delivered, and nothing was committed. Return the "
            "staged output of the window",
            window_id=plan.window_id,
        )


def reopen_each(reopen: Reopen, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Staged]:
    """Return the outputs of earlier attempts that still exist, by the names of their results."""
    if (ask := getattr(reopen, "ask", None)) is not None:
        ask(list(results.values()))
    outputs = {name: reopen(result) for name, result in results.items()}
    return {name: output for name, output in outputs.items() if output is not None}


def check_jobs(write: object, reopen: object) -> None:
    """Raise `ConfigError` for an object that is not callable, an async function or a generator."""
    for name, function in (("write", write), ("reopen", reopen)):
        check_function(function, what=name)
        check_does_work(cast("Callable[..., Any]", function))
