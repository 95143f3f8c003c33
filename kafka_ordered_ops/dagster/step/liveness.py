"""An asset's check that the partitions have reached a step's cutoff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    Failure,
)

from kafka_ordered_ops.core.errors import UnknownWindowError
from kafka_ordered_ops.dagster.metadata.tables import partitions_table
from kafka_ordered_ops.dagster.settings import OnNotLive, WindowSettings
from kafka_ordered_ops.dagster.step.times import StepWindow
from kafka_ordered_ops.delivery.search import NewestReached
from kafka_ordered_ops.spec.asked import span_of

if TYPE_CHECKING:
    from kafka_ordered_ops.core.liveness.liveness import Liveness
    from kafka_ordered_ops.windows import OrderedWindows

#: The name of the check.
PARTITIONS_LIVE: Final = "partitions_live"

_FAILS: Final = "Otherwise the step fails before anything is planned (on_not_live='fail')."
_WARNS: Final = (
    "A failure only warns (on_not_live='warn'): the window is delivered, downstream assets run, and records that "
    "arrive later are delivered with a later window, flagged late. on_not_live='fail' fails the step instead."
)


def live_about(settings: WindowSettings) -> dict[str, str]:
    """Return the name of the check, with its description; an empty dict if liveness is ignored."""
    if settings.on_not_live is OnNotLive.IGNORE:
        return {}
    text = (
        "Every Kafka partition has a record stamped at or after the window's cutoff, or is idle. "
    )
    fails = settings.on_not_live is OnNotLive.FAIL
    text += _FAILS if fails else _WARNS
    return {PARTITIONS_LIVE: text}


def check_liveness(
    windows: OrderedWindows, settings: WindowSettings, step_windows: Sequence[StepWindow]
) -> dict[str | None, Liveness]:
    """Return the liveness of the windows that are not delivered yet, by partition; an empty dict if it is ignored.

    A piece of a partition that has not ended is not checked: records up to the present may always follow. Topics that
    have reached a cutoff have reached all earlier cutoffs: of many windows only a few are checked.

    Raises:
        Failure: a window is not live, and the asset requires it; the step may be retried.
    """
    if settings.on_not_live is OnNotLive.IGNORE:
        return {}
    over = [step_window for step_window in step_windows if step_window.is_over]
    # Retention may have removed the records of a finished window, and later ones.
    due = [step_window for step_window in over if not _is_done(windows, step_window.window_id)]
    liveness_of: dict[int, Liveness] = {}
    search = NewestReached(0, len(due))
    while (step := search.step) is not None:
        liveness = windows.live(due[step].window, grace=span_of(settings.grace, "grace"))
        if settings.on_not_live is OnNotLive.FAIL and not liveness.is_live:
            raise Failure(
                f"window {due[step].window_id} is not live: {liveness}. Nothing was planned; try again later, or give a "
                "grace for partitions without new records",
                metadata={"partitions": partitions_table(liveness)},
            )
        liveness_of[step] = liveness
        search.saw(liveness.is_live)
    # Between two checked windows the later one decides: it is live, or the earliest window that is not.
    return {
        step_window.partition_key: liveness_of[min(at for at in liveness_of if at >= number)]
        for number, step_window in enumerate(due)
    }


def not_live_text(
    step_windows: Sequence[StepWindow], liveness_of: Mapping[str | None, Liveness]
) -> str | None:
    """Return the log line about windows that are delivered although they are not live; None if all are live."""
    names = {step_window.partition_key: step_window.window_id for step_window in step_windows}
    waiting = [key for key, liveness in liveness_of.items() if not liveness.is_live]
    if not waiting:
        return None
    more = f" (and {len(waiting) - 1:,} earlier windows)" if len(waiting) > 1 else ""
    return (
        f"window {names[waiting[-1]]}{more} is not live: {liveness_of[waiting[-1]]}. It is delivered nevertheless "
        "(on_not_live='warn'): records that arrive later are delivered with a later window, flagged late"
    )


def live_result(liveness: Liveness | None, settings: WindowSettings) -> AssetCheckResult | None:
    """Return the check's result; None if the asset has no such check."""
    if settings.on_not_live is OnNotLive.IGNORE:
        return None
    if liveness is None:
        return AssetCheckResult(
            passed=True,
            check_name=PARTITIONS_LIVE,
            description="the window was delivered before, or its partition has not ended",
        )
    return AssetCheckResult(
        passed=liveness.is_live,
        check_name=PARTITIONS_LIVE,
        severity=AssetCheckSeverity.WARN,
        description=str(liveness),
        metadata={"partitions": partitions_table(liveness)},
    )


def _is_done(windows: OrderedWindows, window_id: str) -> bool:
    try:
        return windows.show(window_id).status.is_done
    except UnknownWindowError:
        return False
