"""Which times a run's window has, and which id: a table for every kind of run, and rules for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.airflow.support.first_try import stored_times
from kafka_ordered_ops.airflow.support.times import (
    CutoffSource,
    WindowMode,
    WindowTimes,
    default_window_id,
    resolve,
    run_token,
)
from kafka_ordered_ops.core.types import Mode
from kafka_ordered_ops.core.window.window_id import WINDOW_ID_LENGTH_MAX, check_window_id


def day(number: int, hour: int = 0) -> datetime:
    """A moment of November 2026."""
    return datetime(2026, 11, number, hour, tzinfo=UTC)


def run(conf: Mapping[str, Any] | None = None, run_after: datetime | None = None) -> Any:
    """A DAG run."""
    return SimpleNamespace(conf=conf, run_after=run_after)


def interval(start: datetime, end: datetime) -> dict[str, Any]:
    """The keys of a run with a data interval, of Airflow's own class of times."""
    return {
        "data_interval_start": pendulum.instance(start),
        "data_interval_end": pendulum.instance(end),
    }


def events(*cutoffs: Any) -> dict[str, list[Any]]:
    """The asset events that started a run, one for each cutoff; None: an event without extra."""
    return {
        f"asset {number}": [SimpleNamespace(extra=None if one is None else {"cutoff": one})]
        for number, one in enumerate(cutoffs)
    }


@pytest.mark.parametrize(
    ("context", "cutoff", "since", "source"),
    [
        pytest.param(
            {"dag_run": run({}), **interval(day(19), day(20))},
            day(20),
            day(19),
            CutoffSource.INTERVAL,
            id="scheduled-by-data-intervals",
        ),
        pytest.param(
            {"dag_run": run(None), **interval(day(20), day(20))},
            day(20),
            None,
            CutoffSource.INTERVAL,
            id="cron-trigger-timetable-has-no-length",
        ),
        pytest.param(
            {"dag_run": run({}, day(21)), **interval(day(12), day(13))},
            day(13),
            day(12),
            CutoffSource.INTERVAL,
            id="backfill-from-the-12th",
        ),
        pytest.param(
            {"dag_run": run({}), **interval(day(11), day(12))},
            day(12),
            day(11),
            CutoffSource.INTERVAL,
            id="dags-test-12-infers-the-interval-before",
        ),
        pytest.param(
            {"dag_run": run({}, day(20, 7))},
            day(20, 7),
            None,
            CutoffSource.RUN_AFTER,
            id="manual-run",
        ),
        pytest.param(
            {
                "dag_run": run({}, day(20, 7)),
                "triggering_asset_events": events(
                    "2026-11-20T03:00:00Z", "2026-11-20T05:00:00+00:00", None
                ),
            },
            day(20, 5),
            None,
            CutoffSource.EVENT,
            id="several-asset-events-the-greatest-counts",
        ),
        pytest.param(
            {
                "dag_run": run({}, day(20, 7)),
                "triggering_asset_events": events(None),
            },
            day(20, 7),
            None,
            CutoffSource.RUN_AFTER,
            id="asset-events-without-a-cutoff",
        ),
        pytest.param(
            {
                "dag_run": run({}, day(20, 7)),
                "partition_key": "2026-11-20T00:00:00",
                "partition_date": pendulum.instance(day(20)),
            },
            day(20),
            None,
            CutoffSource.PARTITION,
            id="partition-by-its-date",
        ),
        pytest.param(
            {
                "dag_run": run({}, day(20, 7)),
                "partition_key": "berlin",
                "partition_date": None,
            },
            day(20, 7),
            None,
            CutoffSource.RUN_AFTER,
            id="partition-that-is-no-time",
        ),
        pytest.param(
            {
                "dag_run": run({"cutoff": "2026-11-18 06:00:00+00:00"}, day(20)),
                **interval(day(19), day(20)),
            },
            day(18, 6),
            None,
            CutoffSource.CONF,
            id="conf-before-the-interval",
        ),
        pytest.param(
            {"dag_run": run({"cutoff": "2026-11-18T06:00:00Z", "since": "2026-11-18T05:00:00Z"})},
            day(18, 6),
            day(18, 5),
            CutoffSource.CONF,
            id="conf-with-a-start",
        ),
        pytest.param(
            {"dag_run": run({"cutoff": None, "since": ""}), **interval(day(19), day(20))},
            day(20),
            day(19),
            CutoffSource.INTERVAL,
            id="conf-with-nothing-in-it",
        ),
    ],
)
def test_every_kind_of_run_says_its_times_somewhere(
    context: dict[str, Any], cutoff: datetime, since: datetime | None, source: CutoffSource
) -> None:
    """Keys that a run does not have are absent from its context, not None."""
    assert resolve(context) == WindowTimes(cutoff, since, source)


EVERYTHING: dict[str, Any] = {
    "dag_run": run({"cutoff": "2026-11-02T00:00:00Z"}, day(6)),
    "partition_date": day(3),
    "triggering_asset_events": events("2026-11-05T00:00:00Z"),
    **interval(day(3), day(4)),
}


def test_the_sources_are_asked_in_order() -> None:
    """Each one, taken away, leaves the word to the next."""
    context, found = dict(EVERYTHING), []
    found.append(resolve(context, cutoff=day(1)))
    found.append(resolve(context))
    context["dag_run"] = run({}, day(6))
    found.append(resolve(context))
    del context["partition_date"]
    found.append(resolve(context))
    del context["data_interval_start"], context["data_interval_end"]
    found.append(resolve(context))
    del context["triggering_asset_events"]
    found.append(resolve(context))
    assert [one.source for one in found] == list(CutoffSource)
    assert [one.cutoff for one in found] == [day(number) for number in range(1, 7)]


def test_the_length_of_a_partition_makes_an_interval_of_its_date() -> None:
    """The date is the partition's start then, and its end is the cutoff."""
    context = {"dag_run": run(), "partition_date": pendulum.instance(day(20))}
    found = resolve(context, partition_span=timedelta(days=1))
    assert found == WindowTimes(day(21), day(20), CutoffSource.PARTITION)
    assert found.mode is Mode.INTERVAL


def test_the_mode_says_whether_there_is_a_start() -> None:
    """Auto takes the interval that there is, catch-up none, and interval insists on one."""
    scheduled = {"dag_run": run(), **interval(day(19), day(20))}
    manual = {"dag_run": run(None, day(20))}
    assert resolve(scheduled).mode is Mode.INTERVAL
    assert resolve(manual).mode is Mode.CATCH_UP
    assert resolve(scheduled, mode=WindowMode.CATCH_UP) == WindowTimes(
        day(20), None, CutoffSource.INTERVAL
    )
    assert resolve(scheduled, mode=WindowMode.INTERVAL).since == day(19)
    with pytest.raises(ConfigError, match=r"run has no interval.*dag_run\.run_after"):
        resolve(manual, mode=WindowMode.INTERVAL)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (day(20), day(20)),
        (pendulum.datetime(2026, 11, 20, tz="Europe/Berlin"), day(19, 23)),
        (datetime(2026, 11, 20, tzinfo=timezone(timedelta(hours=2))), day(19, 22)),
        ("2026-11-20T00:00:00+00:00", day(20)),
        (" 2026-11-20 01:00:00+01:00\n", day(20)),
        ("2026-11-20T00:00:00.123456Z", day(20) + timedelta(milliseconds=123)),
        (datetime(9999, 12, 31, 23, 59, 59, 123_999, UTC), None),
    ],
)
def test_a_time_is_taken_in_any_form_and_becomes_plain(
    value: datetime | str, expected: datetime | None
) -> None:
    """In UTC, in whole milliseconds, of the standard library's class, and exact up to the last year."""
    found = resolve({}, cutoff=value).cutoff
    assert type(found) is datetime
    assert found.tzinfo is UTC
    assert found == (expected or datetime(9999, 12, 31, 23, 59, 59, 123_000, UTC))


@pytest.mark.parametrize("nothing", [None, "", "None", "  ", " None "])
def test_a_template_that_found_nothing_is_no_cutoff(nothing: str | None) -> None:
    """It is rendered to an empty text, or to "None"."""
    found = resolve({"dag_run": run(None, day(20))}, cutoff=nothing, since=nothing)
    assert found.source is CutoffSource.RUN_AFTER


NAIVE = datetime(2026, 11, 20)  # noqa: DTZ001  (what is to be refused)


@pytest.mark.parametrize(
    ("context", "arguments", "told"),
    [
        ({}, {"cutoff": NAIVE}, "cutoff .*no time zone"),
        ({}, {"cutoff": "2026-11-20"}, "cutoff .*no time zone"),
        ({}, {"cutoff": day(20), "since": NAIVE}, "since .*no time zone"),
        ({"dag_run": run({"cutoff": "2026-11-20T00:00:00"})}, {}, r"conf\[.*no time zone"),
        ({"partition_date": NAIVE}, {}, "partition_date .*no time zone"),
        (
            {"data_interval_start": NAIVE, "data_interval_end": NAIVE},
            {},
            "data_interval_end .*no time zone",
        ),
        ({"triggering_asset_events": events("2026-11-20")}, {}, "asset event.*no time zone"),
        ({"dag_run": run(None, NAIVE)}, {}, "run_after .*no time zone"),
        ({}, {"cutoff": "tomorrow"}, "not an ISO 8601 time"),
        ({"dag_run": run({"cutoff": 1_700_000_000})}, {}, "is a int"),
        ({}, {"cutoff": "@999999999999999999"}, "beyond the calendar"),
        ({}, {"since": day(19)}, "without a cutoff: give cutoff"),
        ({"dag_run": run({"since": "2026-11-19T00:00:00Z"})}, {}, r"give dag_run\.conf"),
        (
            {},
            {"cutoff": day(20), "since": day(19), "mode": WindowMode.CATCH_UP},
            "has no start",
        ),
        ({}, {}, "the run has no time"),
    ],
)
def test_what_is_no_time_is_refused_by_name(
    context: dict[str, Any], arguments: dict[str, Any], told: str
) -> None:
    """A time without a zone names no moment, wherever it comes from: never the worker's own zone."""
    with pytest.raises(ConfigError, match=told):
        resolve(context, **arguments)


def test_the_log_line_says_where_the_cutoff_is_from() -> None:
    """Mode, times and source in one line."""
    assert str(resolve({"dag_run": run(), **interval(day(19), day(20))})) == (
        "interval, from 2026-11-19T00:00:00Z up to 2026-11-20T00:00:00Z (by data_interval_end)"
    )


# --- ids ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A task of a run, as far as the window's id goes."""

    dag_id: str = "dag"
    task_id: str = "task"
    map_index: int = -1
    group_id: str = "group"
    token: dict[str, Any] = field(default_factory=dict, compare=False)
    #: `token` by its text, so that equal ones are equal.
    token_text: str = ""

    def window_id(self, *, try_number: int = 1) -> str:
        """The id that an attempt of this task comes to."""
        ti = SimpleNamespace(
            dag_id=self.dag_id,
            task_id=self.task_id,
            map_index=self.map_index,
            try_number=try_number,
        )
        return default_window_id({"ti": ti, "dag_run": run(), **self.token}, self.group_id)


# Dots and brackets in names are what could make two tasks look alike.
_NAMES = st.text("ab.[]0-_é", min_size=1, max_size=30) | st.text("x", min_size=240, max_size=250)
_TIMES = st.integers(0, 31 * 86_400_000).map(lambda ms: day(1) + timedelta(milliseconds=ms))
_TOKENS = st.one_of(
    st.text(min_size=1, max_size=250).map(lambda key: {"run_id": "any", "partition_key": key}),
    st.tuples(_TIMES, _TIMES).map(lambda pair: {"run_id": "any", **interval(min(pair), max(pair))}),
    _NAMES.map(lambda name: {"run_id": f"manual__{name}"}),
)
_ASKED = st.builds(
    lambda token, **names: Asked(token=token, token_text=run_token(token), **names),
    _TOKENS,
    dag_id=_NAMES,
    task_id=_NAMES,
    map_index=st.integers(-1, 3),
    group_id=_NAMES,
)


@pytest.mark.slow
@given(_ASKED, st.integers(1, 9))
def test_an_id_is_the_same_for_every_try_and_fits_the_ledger(asked: Asked, try_number: int) -> None:
    """Also for the longest names, and for keys with control characters."""
    assert asked.window_id(try_number=try_number) == asked.window_id()
    assert check_window_id(asked.window_id()) == asked.window_id()
    assert len(asked.window_id()) <= WINDOW_ID_LENGTH_MAX


@given(_ASKED, _ASKED)
def test_ids_differ_where_anything_differs(one: Asked, other: Asked) -> None:
    """Group, DAG, task, map index and run."""
    assert (one.window_id() == other.window_id()) == (one == other)


@pytest.mark.parametrize(
    "other",
    [
        Asked(group_id="other", token={"run_id": "r"}),
        Asked(dag_id="other", token={"run_id": "r"}),
        Asked(task_id="other", token={"run_id": "r"}),
        Asked(map_index=0, token={"run_id": "r"}),
        Asked(token={"run_id": "other"}),
        Asked(token={"run_id": "r", "partition_key": "k"}),
        Asked(token={"run_id": "r", **interval(day(1), day(2))}),
    ],
)
def test_each_part_alone_makes_another_id(other: Asked) -> None:
    """The smallest steps away from one task of one run."""
    assert Asked(token={"run_id": "r"}).window_id() != other.window_id()


def test_names_with_dots_are_not_mistaken_for_each_other() -> None:
    """Task c of DAG a.b reads like task b.c of DAG a."""
    token = {"run_id": "r"}
    one, other = Asked("a.b", "c", token=token), Asked("a", "b.c", token=token)
    assert one.window_id() != other.window_id()
    readable, expected = (asked.window_id().rpartition("-")[0] for asked in (one, other))
    assert readable == expected == "r-a.b.c"


def test_an_id_can_be_read_by_people() -> None:
    """It has times, DAG, task and map index, and sorts by the times."""
    scheduled = Asked(map_index=2, token={"run_id": "r", **interval(day(19), day(20))})
    assert scheduled.window_id().startswith("2026-11-19T00-00-00Z_2026-11-20T00-00-00Z-dag.task-2-")
    instant = Asked(token={"run_id": "r", **interval(day(20), day(20))})
    assert instant.window_id().startswith("2026-11-20T00-00-00Z-dag.task-")


def test_runs_of_one_partition_or_interval_share_their_window() -> None:
    """Reprocessing a partition makes a new run with the same key; a lost database makes new run ids."""
    for same in ({"partition_key": "2026-11-20"}, interval(day(19), day(20))):
        first, again = Asked(token={"run_id": "a", **same}), Asked(token={"run_id": "b", **same})
        assert first.window_id() == again.window_id()


def test_a_run_with_a_cutoff_of_its_own_has_a_window_of_its_own() -> None:
    """Airflow gives a manual run the newest schedule's interval; its conf asks for something else."""
    scheduled = {"run_id": "scheduled__x", "dag_run": run({}), **interval(day(19), day(20))}
    asked = {"cutoff": "2026-11-20T06:00:00Z"}
    manual = {**scheduled, "run_id": "manual__y", "dag_run": run(asked)}
    assert run_token(scheduled) == "2026-11-19T00:00:00Z_2026-11-20T00:00:00Z"
    assert run_token(manual) == "manual__y"


def test_a_sensor_comes_to_the_id_of_the_task_it_names() -> None:
    """Whatever its own name and map index are."""
    token = {"run_id": "r"}
    sensor = SimpleNamespace(dag_id="dag", task_id="wait", map_index=4)
    found = default_window_id({"ti": sensor, **token}, "group", task_id="task")
    assert found == Asked(token=token).window_id()


def test_a_context_of_no_task_or_run_has_no_id() -> None:
    """Named, and with the way out."""
    with pytest.raises(ConfigError, match="no task instance"):
        default_window_id({"run_id": "r"}, "group")
    with pytest.raises(ConfigError, match="window_id="):
        Asked(token={}).window_id()


# --- frozen ------------------------------------------------------------------------------------------


class Store(dict[str, Any]):
    """A task's state store, as far as it is used."""

    def set(self, key: str, value: Any) -> None:
        """Keeps a value."""
        self[key] = value


def told(moment: datetime, since: datetime | None = None) -> WindowTimes:
    """What a task's own parameters say."""
    return WindowTimes(moment, since, CutoffSource.PARAMETER)


WRITTEN = ("{{ macros.datetime.now() }}", "None")


def test_the_first_try_decides_for_the_next_ones(caplog: pytest.LogCaptureFixture) -> None:
    """A template that moves from try to try is held still, and a line says so."""
    context = {"task_state_store": Store()}
    first = told(day(20), day(19))
    assert stored_times(context, first, WRITTEN) == first
    with caplog.at_level("INFO"):
        assert stored_times(context, first, WRITTEN) == first
        assert caplog.messages == []
        assert stored_times(context, told(day(21), day(19)), WRITTEN) == first
    assert "keeps the first attempt's times" in caplog.text


def test_another_mode_is_another_question() -> None:
    """An edit to the DAG, after which an interval may end where catch-up did."""
    context = {"task_state_store": Store()}
    stored_times(context, told(day(20)), WRITTEN)
    assert stored_times(context, told(day(20), day(19)), WRITTEN) == told(day(20), day(19))


def test_what_belongs_to_the_run_is_not_kept() -> None:
    """It cannot move, and a cleared run of an edited schedule asks anew."""
    context = {"task_state_store": Store()}
    for source in CutoffSource:
        stored_times(context, WindowTimes(day(20), None, source), WRITTEN)
        assert bool(context["task_state_store"]) == (source is CutoffSource.PARAMETER)
        context["task_state_store"].clear()


@pytest.mark.parametrize(
    "kept",
    [
        "an old version's text",
        {"written": ["other", "None", "catch_up"], "cutoff": "2026-11-19T00:00:00Z", "since": None},
        {"written": [*WRITTEN, "interval"], "cutoff": "2026-11-19T00:00:00Z", "since": None},
        {"written": [*WRITTEN, "catch_up"], "cutoff": "no time", "since": None},
        {"written": [*WRITTEN, "catch_up"], "cutoff": "@99999999999999999", "since": None},
        {"written": [*WRITTEN, "catch_up"]},
    ],
)
def test_what_was_kept_is_a_hint_and_no_law(kept: Any) -> None:
    """An edited DAG, another mode, and what people did to the store: this attempt's times are kept instead."""
    store = Store({"kafka_ordered_ops.times": kept})
    context = {"task_state_store": store}
    assert stored_times(context, told(day(20)), WRITTEN) == told(day(20))
    assert stored_times(context, told(day(21)), WRITTEN) == told(day(20))


def test_without_a_store_every_try_finds_its_own() -> None:
    """Airflow before 3.3 has none."""
    assert stored_times({}, told(day(20)), WRITTEN) == told(day(20))
    assert stored_times({}, told(day(21)), WRITTEN) == told(day(21))


@given(_TIMES, st.none() | st.timedeltas(timedelta(milliseconds=1), timedelta(days=3)))
def test_kept_times_come_back_as_they_were(cutoff: datetime, length: timedelta | None) -> None:
    """To the millisecond, as everything here."""
    times = resolve({}, cutoff=cutoff, since=None if length is None else cutoff - length)
    context = {"task_state_store": Store()}
    stored_times(context, times, WRITTEN)
    moved = told(day(1), None if times.since is None else day(1) - timedelta(hours=1))
    assert stored_times(context, moved, WRITTEN) == times
