"""The window's times of a task's first attempt, stored for later attempts.

From 3.3 on, Airflow stores state for a task. The state is a hint: without it, the ledger refuses a template that
renders another time at each attempt, because it has the window under its id with the first time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from kafka_ordered_ops.airflow.support.times import CutoffSource, WindowTimes
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import parse_time_ms, time_at, time_ms, time_text

_log = logging.getLogger(__name__)

_KEY: Final = "kafka_ordered_ops.times"


def stored_times(
    context: Mapping[str, Any], times: WindowTimes, written: Sequence[str]
) -> WindowTimes:
    """Return the first attempt's times if this attempt resolves other times although the DAG is unchanged.

    Only the task's own parameters may change between attempts: all others belong to the run. An edited DAG defines
    another window on purpose, and the ledger accepts or refuses it.
    """
    store = context.get("task_state_store")
    if store is None or times.source is not CutoffSource.PARAMETER:
        return times
    # Compare the mode, too: catch-up and an interval that ends at the same time are different windows.
    parameters = [*written, times.mode.value]
    first = _first_times(store.get(_KEY), parameters, times)
    if first is None:
        store.set(_KEY, {"written": parameters, **_to_json(times)})
        return times
    if first != times:
        _log.info(
            "The window keeps the first attempt's times, %s. This attempt resolved %s.",
            first,
            times,
        )
    return first


def _first_times(stored: Any, parameters: Sequence[str], times: WindowTimes) -> WindowTimes | None:
    """Return the first attempt's times; None if they are not stored, or are stored for other parameters."""
    if not isinstance(stored, Mapping) or stored.get("written") != list(parameters):
        return None
    since = stored.get("since")
    try:
        return WindowTimes(
            _moment(stored.get("cutoff")), None if since is None else _moment(since), times.source
        )
    except (ConfigError, OverflowError):
        # Users can edit the state in the web page.
        return None


def _to_json(times: WindowTimes) -> dict[str, Any]:
    since = times.since
    return {
        "cutoff": time_text(time_ms(times.cutoff, what="cutoff")),
        "since": None if since is None else time_text(time_ms(since, what="since")),
    }


def _moment(text: Any) -> datetime:
    return time_at(parse_time_ms(str(text), what="the first attempt's time"))
