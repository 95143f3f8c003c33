"""An asset's check that the partitions have reached a step's cutoff."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    Failure,
)

from kafka_ordered_ops.core.errors import UnknownWindowError
from kafka_ordered_ops.dagster.metadata.tables import partitions_table
from kafka_ordered_ops.dagster.settings import OnNotLive, WindowSettings
from kafka_ordered_ops.dagster.step.times import Asked
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


def live_specs(key: AssetKey, settings: WindowSettings) -> list[AssetCheckSpec]:
    """Return the check of an asset; none if liveness is ignored."""
    if settings.on_not_live is OnNotLive.IGNORE:
        return []
    text = (
        "Every Kafka partition has a record stamped at or after the window's cutoff, or is idle. "
    )
    fails = settings.on_not_live is OnNotLive.FAIL
    text += _FAILS if fails else _WARNS
    return [AssetCheckSpec(PARTITIONS_LIVE, asset=key, description=text)]


def look_at(
    windows: OrderedWindows, settings: WindowSettings, asked: Sequence[Asked]
) -> Liveness | None:
    """Return the liveness of the last window; None if it is ignored or the window is delivered already.

    A piece of a partition that has not ended is not checked: records up to the present may always follow.

    Raises:
        Failure: it is not live, and the asset requires it; the step may be retried.
    """
    over = [one for one in asked if one.is_over]
    if settings.on_not_live is OnNotLive.IGNORE or not over:
        return None
    last = over[-1]
    # Retention may have removed the records of a finished window, and later ones.
    if _is_done(windows, last.window_id):
        return None
    found = windows.live(last.window, grace=span_of(settings.grace, "grace"))
    if settings.on_not_live is OnNotLive.FAIL and not found.is_live:
        raise Failure(
            f"window {last.window_id} is not live: {found}. Nothing was planned; try again later, or give a grace "
            "for partitions without new records",
            metadata={"partitions": partitions_table(found)},
        )
    return found


def not_live_text(asked: Sequence[Asked], found: Liveness) -> str:
    """Return the log line about a window that is delivered although it is not live."""
    return (
        f"window {asked[-1].window_id} is not live: {found}. It is delivered nevertheless (on_not_live='warn'): records "
        "that arrive later are delivered with a later window, flagged late"
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
