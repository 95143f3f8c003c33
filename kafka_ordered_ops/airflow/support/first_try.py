"""The times that a task's first attempt found, kept for its next ones.

Airflow keeps a little state for a task from 3.3 on. It is a hint: without it a template that gives another
time at every attempt is found out by the ledger, which has the window under its id with the first one.
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


def frozen_times(
    context: Mapping[str, Any], found: WindowTimes, written: Sequence[str]
) -> WindowTimes:
    """What the first attempt found, where this one finds something else though the DAG says the same.

    Only what the task itself says may move: all else belongs to the run. A DAG that was edited since asks
    for something else on purpose, and the ledger answers that.
    """
    store = context.get("task_state_store")
    if store is None or found.source is not CutoffSource.PARAMETER:
        return found
    # The mode, too: catch-up and an interval that ends at the same time are different questions.
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
    """The first attempt's times; None where nothing was kept, or nothing that answers this question."""
    if not isinstance(kept, Mapping) or kept.get("written") != list(asked):
        return None
    since = kept.get("since")
    try:
        return WindowTimes(
            _moment(kept.get("cutoff")), None if since is None else _moment(since), found.source
        )
    except (ConfigError, OverflowError):
        # People can edit it, by the web page.
        return None


def _to_json(times: WindowTimes) -> dict[str, Any]:
    since = times.since
    return {
        "cutoff": time_text(time_ms(times.cutoff, what="cutoff")),
        "since": None if since is None else time_text(time_ms(since, what="since")),
    }


def _moment(text: Any) -> datetime:
    return time_at(parse_time_ms(str(text), what="the first attempt's time"))
