"""The times that a task's first attempt found, stored for later attempts.

From 3.3 on, Airflow stores state for a task. It is a hint: without it, the ledger refuses a template that renders
another time at each attempt, because it has the window under its id with the first time.
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
    context: Mapping[str, Any], found: WindowTimes, written: Sequence[str]
) -> WindowTimes:
    """Return the first attempt's times if this attempt finds others although the DAG is unchanged.

    Only the task's own parameters may change between attempts: all others belong to the run. An edited DAG asks for
    another window on purpose, and the ledger decides about that.
    """
    store = context.get("task_state_store")
    if store is None or found.source is not CutoffSource.PARAMETER:
        return found
    # The mode, too: catch-up and an interval that ends at the same time are different windows.
    asked = [*written, found.mode.value]
    first = _kept(store.get(_KEY), asked, found)
    if first is None:
        store.set(_KEY, {"written": asked, **_to_json(found)})
        return found
    if first != found:
        _log.info(
            "The window is what the first attempt found, %s; this one finds %s.", first, found
        )
    return first


def _kept(kept: Any, asked: Sequence[str], found: WindowTimes) -> WindowTimes | None:
    """Return the first attempt's times; None if none were stored, or if those are of other parameters."""
    if not isinstance(kept, Mapping) or kept.get("written") != list(asked):
        return None
    since = kept.get("since")
    try:
        return WindowTimes(
            _moment(kept.get("cutoff")), None if since is None else _moment(since), found.source
        )
    except (ConfigError, OverflowError):
        # People can edit it in the web page.
        return None


def _to_json(times: WindowTimes) -> dict[str, Any]:
    since = times.since
    return {
        "cutoff": time_text(time_ms(times.cutoff, what="cutoff")),
        "since": None if since is None else time_text(time_ms(since, what="since")),
    }


def _moment(text: Any) -> datetime:
    return time_at(parse_time_ms(str(text), what="the first attempt's time"))
