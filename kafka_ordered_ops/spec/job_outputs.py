"""Check the output of a user's function, after it ends and before anything is committed.

With an output folder, only a written or reported output delivers a window. Otherwise a function that returns early
would be published without files, with its offsets done. Without an output folder, the function's normal return is the
delivery.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError, SinkError, WindowMismatchError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.output.writing.lettered import LetteredOutput
from kafka_ordered_ops.output.writing.reported import Reported

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.dead_letters import DeadLetters
    from kafka_ordered_ops.windows import Staged

_Output = TypeVar("_Output")


def outputs_of(
    plans: Sequence[WindowPlan],
    reported: Sequence[Staged] | None,
    returned: Any,
    *,
    output: object,
    facts: Mapping[str, Any] | None = None,
) -> list[Staged]:
    """Return the outputs of a function, for each window.

    Args:
        plans: the windows.
        reported: the written or reported outputs; None if there are none.
        returned: the return value. An output, or a list of outputs, counts as reported.
        output: the folder for outputs; None if the function has its own sink.
        facts: further facts about the window.

    Raises:
        SinkError: the function delivered nothing, not every window, or the output of another window.
    """
    if reported is None:
        reported = _staged_in(returned)
    if reported is not None:
        check_each(plans, reported)
        return list(reported)
    if inspect.isawaitable(returned) or isinstance(returned, Iterator | AsyncIterator):
        raise SinkError(
            f"{windows_text(plans)}: the function returned {shown(returned)}, which does its work only when it is "
            "iterated or awaited. Nothing was committed: do the work inside the function, and return nothing, or a "
            "little JSON"
        )
    # A window without offsets does not need files. A part without offsets does, to be joined with the other parts.
    if output is not None and any(plan.offsets or plan.part is not None for plan in plans):
        raise SinkError(
            f"{windows_text(plans)}: the function ended but has neither written nor reported an output, although there is "
            f"a folder for it ({output}). Nothing was committed: call write with a result (it may be empty), or "
            "report an output that is staged elsewhere. For a function with its own sink, leave out output=",
            window_id=plans[0].window_id,
        )
    return [Reported.of(returned, facts) for _ in plans]


def with_letters(
    plans: Sequence[WindowPlan], outputs: Sequence[_Output], letters: Sequence[DeadLetters] | None
) -> list[_Output]:
    """Return the outputs of windows with the records that their reading has left out.

    Raises:
        ConfigError: nothing was read to its end, so that these records are not known; or the output cannot name them.
    """
    known: Sequence[DeadLetters | None] = [None] * len(plans) if letters is None else letters
    return [
        _with_letters(plan, output, left_out)
        for plan, output, left_out in zip(plans, outputs, known, strict=True)
    ]


def _with_letters(plan: WindowPlan, output: _Output, letters: DeadLetters | None) -> _Output:
    if plan.window.dead_letter is None or not plan.offsets:
        return output
    if letters is None and getattr(output, "dead_letters", None) is not None:
        # Staged by the caller, or by an application.
        return output
    if letters is None:
        raise ConfigError(
            f"{windows_text([plan])}: its records were not read to their end, so it is not known which of them become dead letters. "
            "Nothing was committed: call read(), or read all batches of one to_batches() or to_arrow(); or use on_bad='keep'"
        )
    if isinstance(output, Mapping):
        raise ConfigError(
            f"{windows_text([plan])}: JSON that an application reports cannot name the records that become dead letters. Nothing was "
            "committed: give it a folder or a table, or use on_bad='keep'"
        )
    if is_dataclass(output) and hasattr(output, "dead_letters"):
        return replace(output, dead_letters=letters)  # type: ignore[type-var]
    lettered: Any = LetteredOutput(output, letters)
    return lettered  # type: ignore[no-any-return]


def _staged_in(returned: Any) -> Sequence[Staged] | None:
    """Return the outputs in a function's return value, if it has any."""
    every = returned if isinstance(returned, list | tuple) else [returned]
    return every if every and all(map(_is_staged, every)) else None


def _is_staged(value: Any) -> bool:
    if inspect.isclass(value):
        return False
    return all(callable(getattr(value, name, None)) for name in ("to_json", "publish", "discard"))


def check_each(plans: Sequence[WindowPlan], reported: Sequence[Staged]) -> None:
    """Raise `SinkError` unless there is one output for each window, in the order of the windows."""
    from kafka_ordered_ops.windows.checks import check_identity

    if len(reported) != len(plans):
        raise SinkError(
            f"{windows_text(plans)}: the function has delivered {len(reported)} outputs for {len(plans)} windows. Nothing was "
            "committed: deliver one for each window, in the order of the plans"
        )
    for plan, staged in zip(plans, reported, strict=True):
        if not _is_staged(staged):
            raise SinkError(
                f"window {plan.window_id} of group {plan.group_id}: the function reported {shown(staged)}, which is not an "
                "output: it needs to_json, publish and discard. Nothing was committed",
                window_id=plan.window_id,
            )
        try:
            check_identity(plan, staged.to_json())
        except WindowMismatchError as error:
            raise SinkError(str(error), window_id=plan.window_id) from error


def check_parts_alike(plan: WindowPlan, result: Any) -> None:
    """Raise `SinkError` for a split window of which some parts have files, and others their own sinks.

    The files could neither be joined nor left out.
    """
    parts = result.get("parts") if isinstance(result, Mapping) else None
    if not isinstance(parts, list):
        return
    own = [isinstance(part, Mapping) and Reported.found(part) is not None for part in parts]
    if any(own) and not all(own):
        raise SinkError(
            f"window {plan.window_id} of group {plan.group_id}: {sum(own)} of its {len(own)} parts reported to their "
            "own sinks, but the others wrote files. Nothing was committed: abandon the window, and run all "
            "of its parts with the same job",
            window_id=plan.window_id,
        )


def windows_text(plans: Sequence[WindowPlan]) -> str:
    """Return the first window, the number of others, and their group, for messages."""
    more = f" and {len(plans) - 1} more" if len(plans) > 1 else ""
    return f"window {plans[0].window_id}{more} of group {plans[0].group_id}"
