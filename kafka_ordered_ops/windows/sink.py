"""The output of a sink, and the check that it belongs to its window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from kafka_ordered_ops.core.arguments import check_function, shown
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.functions import check_does_work
from kafka_ordered_ops.core.group.checks import owned
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.window.ownership import Publisher
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.windows.checks import (
    check_identity,
    check_result,
    check_same_length,
)

#: The methods of an output.
_STAGED: Final = ("to_json", "publish", "discard")


class Staged(Protocol):
    """A sink's output that is complete but not visible yet.

    It may have a method ``check_ready()``, which is called before the commit and raises the errors of `publish`;
    ``check_ready_with(outputs)`` and ``publish_with(outputs)``, which do the same for others of these outputs as well, if
    that is cheaper together, and may return for which, so that it is not called for these again; and ``is_published()``, which says whether readers see the output: without it, a window that the ledger has as published
    counts as seen.
    """

    def to_json(self) -> Mapping[str, Any]:
        """Return the JSON from which another process can publish the output; stored in the ledger.

        With ``window_id``, and optionally ``claim_id``, ``group``, ``attempt`` and ``part``, the JSON names its window and
        is refused for any other plan.
        """

    def publish(self) -> None:
        """Make the output visible. Repeating it changes nothing."""

    def discard(self) -> None:
        """Remove the hidden output. Repeating it changes nothing."""


#: Runs the job of one window, or of several in one pass, into hidden places.
Write = Callable[[WindowPlan], Staged]
WriteMany = Callable[[Sequence[WindowPlan]], Sequence[Staged]]

#: Finds an earlier attempt's output from its JSON; None if it is gone. It may have a method ``ask(results)``, which is
#: called before, if it is cheaper to look for all of them together; ``elsewhere(result)``, which returns the output of a
#: published window that was published to another place; and ``left(result)``, which finds the output of any other window
#: of the group: then those that are committed and not visible yet are published as well.
Reopen = Callable[[Mapping[str, Any]], Staged | None]


class Place(Protocol):
    """Where windows are to be published; asked before they are claimed."""

    def check(
        self, publishers: Sequence[Publisher], windows: Mapping[str, Window]
    ) -> Sequence[str]:
        """Return notes for people; raise `OutputOwnedError` where readers see what these must not replace.

        Args:
            publishers: who will ask for the places of windows that are not delivered yet.
            windows: the windows, by id.
        """


def check_outputs(
    plans: Sequence[WindowPlan],
    outputs: Sequence[Staged],
    read: Callable[[Sequence[str]], GroupView] | None = None,
) -> None:
    """Raise unless each output belongs to its plan, as far as the output names its window.

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
        _each_once(outputs, "check_ready")
    except SinkError:
        # The attempt that owns the window now may have removed it: then there is nothing to do.
        view = read([plan.window_id for plan in plans])
        for plan in plans:
            owned(view, plan)
        raise


def check_results(plans: Sequence[WindowPlan], results: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless each result belongs to its plan, as far as the result names its window.

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


def publish_each(outputs: Sequence[Staged]) -> None:
    """Make committed windows' outputs visible."""
    _each_once(outputs, "publish")


def _each_once(outputs: Sequence[Staged], name: str) -> None:
    """Call a method of each output; where it has one, that for several together, which may return for which it was."""
    done: set[int] = set()
    for one in outputs:
        if id(one) in done:
            continue
        together = getattr(one, f"{name}_with", None) if len(outputs) > 1 else None
        if together is not None:
            done.update(map(id, together(outputs) or ()))
        elif (alone := getattr(one, name, None)) is not None:
            alone()


def is_visible(found: Staged) -> bool:
    """Return whether readers see an output that was found, as far as it can say so."""
    # Whoever found it may have looked already.
    if getattr(found, "seen_published", False):
        return True
    is_published = getattr(found, "is_published", None)
    return is_published is None or bool(is_published())


def told_by(plan: WindowPlan, staged: Staged) -> dict[str, Any]:
    """Return an output's JSON; raise `SinkError` if it is not an output."""
    check_is_output(plan, staged)
    told = staged.to_json()
    check_result(told)
    return dict(told)


def _check_list(outputs: object) -> None:
    if not isinstance(outputs, Sequence) or isinstance(outputs, str | bytes):
        raise SinkError(
            f"expected a list with one staged output for each window, not {shown(outputs)}. Nothing was "
            "changed"
        )


def check_is_output(plan: WindowPlan, one: object) -> None:
    """Raise `SinkError` unless the value is an output; a job that returned nothing is not."""
    is_class = isinstance(one, type)
    missing = [name for name in _STAGED if is_class or not callable(getattr(one, name, None))]
    if missing:
        raise SinkError(
            f"the job of window {plan.window_id} of group {plan.group_id} returned {shown(one)}, which has no "
            f"{', '.join(missing)}: nothing is known to be delivered, and nothing was committed. Return the "
            "staged output of the window",
            window_id=plan.window_id,
        )


def reopen_each(reopen: Reopen, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Staged]:
    """Return the outputs of earlier attempts that are still there, by the names of their results."""
    if (ask := getattr(reopen, "ask", None)) is not None:
        ask(list(results.values()))
    found = {name: reopen(result) for name, result in results.items()}
    return {name: one for name, one in found.items() if one is not None}


def check_jobs(write: object, reopen: object) -> None:
    """Raise `ConfigError` for an object that is not callable, an async function or a generator."""
    for name, function in (("write", write), ("reopen", reopen)):
        check_function(function, what=name)
        check_does_work(cast("Callable[..., Any]", function))
