"""What the tests of the watcher's trigger share."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Final

from kafka_ordered_ops.airflow import CutoffReachedTrigger

PATH: Final = "kafka_ordered_ops.airflow.triggers.cutoff_reached.CutoffReachedTrigger"


def revived(trigger: CutoffReachedTrigger) -> CutoffReachedTrigger:
    """What the triggerer makes of what Airflow has stored."""
    path, kwargs = trigger.serialize()
    assert path == PATH
    again = CutoffReachedTrigger(**json.loads(json.dumps(kwargs)))
    assert again.serialize() == (path, kwargs)
    return again


def told_by_watchers(*payloads: Any) -> dict[str, list[Any]]:
    """The events of watchers that started a run, as Airflow keeps what their triggers said."""
    extras = [{"from_trigger": True, "payload": payload} for payload in payloads]
    return {"asset": [SimpleNamespace(extra=extra) for extra in extras]}
