"""A window's facts in the asset events of its task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

#: The facts for downstream tasks of an asset, without the ranges.
_FACTS: Final = (
    "window_id",
    "group",
    "topics",
    "since",
    "cutoff",
    "offsets",
    "records",
    "late",
    "output",
)


def add_to_outlets(
    context: Mapping[str, Any], outlets: Iterable[Any], facts: Mapping[str, Any]
) -> None:
    """Add the window's facts to the events of the task's outlets, and its partition, if it has one.

    A task that an event starts takes its cutoff from the event.
    """
    events = context.get("outlet_events")
    if events is None:
        return
    extra = {name: facts.get(name) for name in _FACTS}
    extra["empty"] = not facts.get("offsets")
    key = context.get("partition_key")
    for outlet in outlets:
        try:
            event = events[outlet]
        except TypeError:
            continue  # Not an asset: outlets may be other objects, for lineage.
        event.extra.update(extra)
        if type(outlet).__name__ == "AssetAlias":
            continue  # An alias has the events of the assets that the task adds to it.
        # Assets of Airflow before 3.3 have no partitions.
        if key and (add := getattr(event, "add_partitions", None)) is not None:
            add(key)
