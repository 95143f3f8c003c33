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
from kafka_ordered_ops.dagster.step.times import Asked
from kafka_ordered_ops.hosting.search import NewestReached
from kafka_ordered_ops.hosting.window_spec import span_of

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
    """Return the name of the check, and what it is about; nothing if liveness is ignored."""
    if settings.on_not_live is OnNotLive.IGNORE:
        return {}
    text = (
        "Every Kafka partition has a record stamped at or after the window's cutoff, or is idle. "
    )
    fails = settings.on_not_live is OnNotLive.FAIL
    text += _FAILS if fails else _WARNS
    return {PARTITIONS_LIVE: text}


def look_at(
    windows: OrderedWindows, settings: WindowSettings, asked: Sequence[Asked]
) -> dict[str | None, Liveness]:
    """Return the liveness of the windows that are not delivered yet, by partition; nothing if it is ignored.

    A piece of a partition that has not ended is not checked: records up to the present may always follow. What has
    reached a cutoff has reached all earlier ones: of many windows only a few are checked.

    Raises:
        Failure: it is not live, and the asset requires it; the step may be retried.
    """
    if settings.on_not_live is OnNotLive.IGNORE:
        return {}
    over = [one for one in asked if one.is_over]
    # Retention may have removed the records of a finished window, and later ones.
    due = [one for one in over if not _is_done(windows, one.window_id)]
    found: dict[int, Liveness] = {}
    search = NewestReached(0, len(due))
    while (step := search.step) is not None:
        looked = windows.live(due[step].window, grace=span_of(settings.grace, "grace"))
        if settings.on_not_live is OnNotLive.FAIL and not looked.is_live:
            raise Failure(
                f"window {due[step].window_id} is not live: {looked}. Nothing was planned; try again later, or give a "
                "grace for partitions without new records",
                metadata={"partitions": partitions_table(looked)},
            )
        found[step] = looked
        search.saw(looked.is_live)
    # Between two that were checked, the nearest later one decides: it is live, or the earliest that is not.
    return {
        one.partition_key: found[min(at for at in found if at >= number)]
        for number, one in enumerate(due)
    }


def not_live_text(asked: Sequence[Asked], found: Mapping[str | None, Liveness]) -> str | None:
    """Return the log line about windows that are delivered although they are not live; None if all are."""
    names = {one.partition_key: one.window_id for one in asked}
    waiting = [key for key, one in found.items() if not one.is_live]
    if not waiting:
        return None
    more = f" (and {len(waiting) - 1:,} earlier windows)" if len(waiting) > 1 else ""
    return (
        f"window {names[waiting[-1]]}{more} is not live: {found[waiting[-1]]}. It is delivered nevertheless "
        "(on_not_live='warn'): records that arrive later are delivered with a later window, flagged late"
    )


def live_result(found: Liveness | None, settings: WindowSettings) -> AssetCheckResult | None:
    """Return the check's result; None if the asset has no such check."""
    if settings.on_not_live is OnNotLive.IGNORE:
        return None
    if found is None:
        return AssetCheckResult(
            passed=True,
            check_name=PARTITIONS_LIVE,
            description="the window was delivered before, or its partition has not ended",
        )
    return AssetCheckResult(
        passed=found.is_live,
        check_name=PARTITIONS_LIVE,
        severity=AssetCheckSeverity.WARN,
        description=str(found),
        metadata={"partitions": partitions_table(found)},
    )


def _is_done(windows: OrderedWindows, window_id: str) -> bool:
    try:
        return windows.show(window_id).status.is_done
    except UnknownWindowError:
        return False
