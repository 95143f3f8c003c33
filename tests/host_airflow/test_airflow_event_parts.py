"""The parts of the watcher's trigger that ask nobody: arguments, the search for a cutoff, and what a run hears."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.airflow import CutoffReachedTrigger
from kafka_ordered_ops.airflow.support.times import CutoffSource, WindowTimes, resolve
from kafka_ordered_ops.airflow.triggers.cutoff_reached import Steps
from tests.support.event_support import revived, told_by_watchers

# --- what Airflow keeps of it ----------------------------------------------------------------------


FULL: Final[dict[str, Any]] = {
    "topics": ["b", "^a.*"],
    "group_id": "orders-hourly",
    "every": timedelta(hours=1),
    "offset": "PT5M",
    "kafka_conn_id": "kafka_other",
    "max_out_of_orderness": "PT10S",
    "grace": timedelta(minutes=10),
    "isolation": "read_uncommitted",
    "exclude": "abc",
    "ledger_topic": "ledger",
    "poke_interval": 30,
}


def test_a_trigger_survives_what_airflow_stores_of_it() -> None:
    """Every argument; equal triggers are one to Airflow and others are not, or it would start them anew."""
    fewest = {"topics": "orders", "group_id": "g", "every": "PT1H"}
    for arguments in (FULL, fewest):
        trigger = CutoffReachedTrigger(**arguments)
        watcher = AssetWatcher(name="w", trigger=trigger)
        assert Asset("a", watchers=[watcher]).watchers == [watcher]
        path, kwargs = revived(trigger).serialize()
        assert BaseEventTrigger.hash(path, kwargs) == BaseEventTrigger.hash(*trigger.serialize())
    texts = {json.dumps(CutoffReachedTrigger(**FULL).serialize()[1])}
    for name in FULL.keys() - fewest.keys():
        less = {key: value for key, value in FULL.items() if key != name}
        texts.add(json.dumps(CutoffReachedTrigger(**less).serialize()[1]))
    assert len(texts) == 1 + len(FULL.keys() - fewest.keys())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"topics": []}, "at least one"),
        ({"topics": "{{ var.value.topic }}"}, "not a topic name"),
        ({"group_id": ""}, "group_id"),
        ({"group_id": "{{ dag.dag_id }}"}, "cannot be templates"),
        ({"kafka_conn_id": "{{ var.value.conn }}"}, "cannot be templates"),
        ({"every": "an hour"}, "every"),
        ({"every": timedelta(0)}, "every"),
        ({"every": "-PT1H"}, "every"),
        ({"every": timedelta(seconds=2, microseconds=1)}, "whole milliseconds"),
        ({"offset": "PT1H"}, "shorter than every"),
        ({"offset": timedelta(seconds=-1)}, "offset"),
        ({"grace": timedelta(seconds=-1)}, "grace"),
        ({"max_out_of_orderness": timedelta(seconds=-1)}, "negative"),
        ({"isolation": "serializable"}, "give one of 'read_committed', 'read_uncommitted'"),
        ({"poke_interval": 0.5}, "poke_interval"),
        ({"poke_interval": float("nan")}, "poke_interval"),
    ],
)
def test_a_wrong_argument_is_named_when_the_dag_is_parsed(wrong: dict[str, Any], told: str) -> None:
    """Not in the triggerer, where nobody looks."""
    arguments: dict[str, Any] = {"topics": "orders", "group_id": "g", "every": "PT1H"}
    with pytest.raises(ConfigError, match=told):
        CutoffReachedTrigger(**{**arguments, **wrong})


# --- the steps -------------------------------------------------------------------------------------


@given(st.integers(1, 10**7), st.data(), st.integers(0, 4 * 10**12))
def test_every_moment_is_at_one_step(every_ms: int, data: st.DataObject, now_ms: int) -> None:
    """The last one at or before it."""
    steps = Steps(every_ms, data.draw(st.integers(0, every_ms - 1)))
    step = steps.at(now_ms)
    assert steps.time_ms(step) <= now_ms < steps.time_ms(step + 1)


# --- what a run hears ------------------------------------------------------------------------------


def at(hour: int) -> datetime:
    """A moment of a day."""
    return datetime(2026, 11, 20, hour, tzinfo=UTC)


SIX: Final = {"cutoff": "2026-11-20T06:00:00Z"}
SEVEN: Final = {"cutoff": "2026-11-20T07:00:00Z"}


@pytest.mark.parametrize(
    ("events", "hour", "source"),
    [
        (told_by_watchers(SIX), 6, CutoffSource.EVENT),
        (told_by_watchers(SIX, SEVEN, "a message", {"cutoff": None}, None), 7, CutoffSource.EVENT),
        (
            told_by_watchers(SIX) | {"other": [SimpleNamespace(extra=SEVEN)]},
            7,
            CutoffSource.EVENT,
        ),
        (told_by_watchers("2026-11-20T06:00:00Z", 7, ["cutoff"]), 9, CutoffSource.RUN_AFTER),
    ],
)
def test_a_run_takes_the_greatest_cutoff_that_a_watcher_told(
    events: dict[str, Any], hour: int, source: CutoffSource
) -> None:
    """Or a task; what other watchers say is no cutoff."""
    context = {"dag_run": SimpleNamespace(conf={}, run_after=at(9))}
    found = resolve({**context, "triggering_asset_events": events})
    assert found == WindowTimes(at(hour), None, source)


def test_a_watchers_cutoff_without_a_zone_is_refused() -> None:
    """As everybody's."""
    with pytest.raises(ConfigError, match=r"asset event.*no time zone"):
        resolve({"triggering_asset_events": told_by_watchers({"cutoff": "2026-11-20"})})
