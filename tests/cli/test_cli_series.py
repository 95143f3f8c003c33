"""Intervals, series of windows and sweeps through the command line, against a real broker."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, Window
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.cli.options.question import WINDOWS_AT_ONCE_MAX, Series
from tests.conftest import Produce
from tests.support.cli_support import (
    FIRST_WINDOW,
    NOWHERE,
    SECOND_WINDOW,
    Cluster,
    Outcome,
    at,
    cli,
    values,
    visible,
)
from tests.support.cli_support import cluster as cluster
from tests.support.kill_points import KillPoint
from tests.support.stages import stages_of

#: What the windows of 15 s hold, by the seconds at which they end. One is empty.
SERIES = {15: [0, 5, 10], 30: [15, 20], 45: [30], 60: [], 75: [65, 70], 90: [80]}

#: Written behind the 70.
OUT_OF_ORDER = [0, 0, 1, 0, 0, 0]


class Backfill:
    """One command for several windows, run again and again."""

    def __init__(self, cluster: Cluster, *times: str) -> None:
        self._words = (
            "-t",
            cluster.topic,
            "--starting-offsets",
            "earliest",
            "--every",
            "PT15S",
            *times,
        )
        self._cluster = cluster

    def run(
        self,
        until: int = 90,
        *more: object,
        engine: str = "local",
        kill_at: KillPoint | None = None,
    ) -> Outcome:
        words = (*self._cluster.where, *self._words, "--until", at(until))
        return cli("run", *words, *self._cluster.sink(engine), *more, kill_at=kill_at)


@pytest.fixture
def cutoffs(cluster: Cluster) -> Backfill:
    """Cutoffs every 15 s."""
    return Backfill(cluster, "--cutoff", at(15))


@pytest.fixture
def intervals(cluster: Cluster) -> Backfill:
    """Intervals of 15 s."""
    return Backfill(cluster, "--since", at(0))


def told(time: str) -> str:
    """A time as results tell it."""
    return time.replace("+00:00", "Z")


def delivered(outcome: Outcome) -> list[list[int]]:
    """The values of each window of a series."""
    assert outcome.code == 0, outcome.stderr
    return [values(one["output"]) for one in outcome.json["windows"]]


def each(outcome: Outcome, name: str) -> list[Any]:
    """One fact of each window of a series."""
    assert outcome.code == 0, outcome.stderr
    return [one[name] for one in outcome.json["windows"]]


# --- which windows a series has -------------------------------------------------------------------

#: Up to the year 2999, in whole milliseconds.
_MOMENTS = st.integers(0, 32_472_144_000_000).map(
    lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
)
_COUNTS = st.integers(1, 60)


def windows_of(series: Series) -> list[Window]:
    """The questions to some group."""
    return series.windows()


@given(
    since=_MOMENTS,
    every_s=st.integers(1, 10_000_000),
    count=_COUNTS,
    zone_h=st.integers(-12, 14),
)
def test_intervals_cover_their_time_and_meet_nowhere(
    since: datetime, every_s: int, count: int, zone_h: int
) -> None:
    """From --since to --until each moment is in exactly one interval, whatever zone the times are told in."""
    until = since + timedelta(seconds=every_s) * count
    series = Series(
        topic=["t"],
        since=since.isoformat(),
        every=f"PT{every_s}S",
        until=(until + timedelta(hours=zone_h)).replace(tzinfo=None).isoformat()
        + f"{zone_h:+03d}:00",
    )
    windows = windows_of(series)
    assert (windows[0].since, windows[-1].cutoff, len(windows)) == (since, until, count)
    assert all(one.cutoff == other.since for one, other in pairwise(windows))


@given(
    first=_MOMENTS,
    every_s=st.integers(1, 10_000_000),
    count=_COUNTS,
    rest=st.floats(0, 0.999),
)
def test_cutoffs_go_on_up_to_the_last_one_allowed(
    first: datetime, every_s: int, count: int, rest: float
) -> None:
    """The first is --cutoff, all steps are equal, and one more would lie behind --until."""
    every = timedelta(seconds=every_s)
    until = first + every * (count - 1) + every * rest
    series = Series(
        topic=["t"], cutoff=first.isoformat(), every=f"PT{every_s}S", until=until.isoformat()
    )
    found = [window.cutoff for window in windows_of(series)]
    assert found == [first + every * number for number in range(count)]


def test_a_series_is_bounded() -> None:
    """The greatest series is planned, and one more window is refused with the numbers."""
    first, every = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=1)

    def series(count: int) -> Series:
        until = first + every * (count - 1)
        return Series(topic=["t"], cutoff=first.isoformat(), every="PT1M", until=until.isoformat())

    assert len(windows_of(series(WINDOWS_AT_ONCE_MAX))) == WINDOWS_AT_ONCE_MAX
    with pytest.raises(ConfigError, match=f"{WINDOWS_AT_ONCE_MAX + 1:,} windows"):
        windows_of(series(WINDOWS_AT_ONCE_MAX + 1))


# --- series ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_series_is_delivered_in_one_pass(cluster: Cluster, cutoffs: Backfill) -> None:
    """Each window holds what was stamped since the one before; the same command again finds all done."""
    first = cutoffs.run(90, "--json")
    assert delivered(first) == list(SERIES.values())
    assert each(first, "cutoff") == [told(at(seconds)) for seconds in SERIES]
    assert each(first, "records") == [len(found) for found in SERIES.values()]
    assert each(first, "out_of_order") == OUT_OF_ORDER
    assert each(first, "content") == ["records"] * 3 + ["empty"] + ["records"] * 2
    assert set(each(first, "since")) == {None}
    assert [size > 0 for size in each(first, "bytes")] == [bool(one) for one in SERIES.values()]
    assert cluster.committed == {0: 6, 1: 3}

    again = cutoffs.run(90, "--json")
    assert again.json["windows"] == [{**one, "ran": False} for one in first.json["windows"]]
    assert len(visible(cluster.output)) == len(SERIES)
    listed = cluster.windows("list").json["windows"]
    assert [one["window_id"] for one in listed] == each(first, "window_id")


@pytest.mark.long
def test_a_series_has_the_windows_of_single_commands(cluster: Cluster, cutoffs: Backfill) -> None:
    """A window that a single command has delivered is found by the series, under the same default name."""
    single = cluster.run(15)
    found = cutoffs.run(30, "--json")
    assert delivered(found) == [SERIES[15], SERIES[30]]
    assert each(found, "ran") == [False, True]
    assert each(found, "window_id")[0] == single.json["window_id"]


@pytest.mark.long
def test_a_series_goes_on_where_it_ended(cutoffs: Backfill) -> None:
    """With a later --until only the windows that are new are read."""
    cutoffs.run(45)
    longer = cutoffs.run(90, "--json")
    assert delivered(longer) == list(SERIES.values())
    assert each(longer, "ran") == [False] * 3 + [True] * 3


@pytest.mark.long
def test_a_series_for_people(cluster: Cluster, cutoffs: Backfill) -> None:
    """One row a window, the sums, where the files are; and in one sentence what was done."""
    first, again = cutoffs.run(90), cutoffs.run(90)
    rows = [line.split() for line in first.stdout.splitlines() if "published" in line]
    assert [row[-5] for row in rows] == [str(len(found)) for found in SERIES.values()]
    assert [row[-4] for row in rows] == [str(count) for count in OUT_OF_ORDER]
    [sums] = [line.split() for line in first.stdout.splitlines() if "6 windows" in line]
    assert (sums[:3], sums[-2:]) == (["9", "1", "0"], ["6", "windows"])
    assert str(cluster.output) in first.stdout
    assert "6 windows: 6 read and published" in first.stderr
    assert "6 windows: 6 published already" in again.stderr


@pytest.mark.long
def test_a_covered_window_of_a_series_gets_no_folder(cluster: Cluster, cutoffs: Backfill) -> None:
    """What another window has taken is not told as empty."""
    cluster.run(30, "--window-id", "before")
    outcome = cutoffs.run(45, "--json")
    assert each(outcome, "content") == ["covered", "covered", "records"]
    assert each(outcome, "output")[:2] == [None, None]
    assert values(each(outcome, "output")[2]) == SERIES[45]
    assert "2 covered by other windows" in cutoffs.run(45).stderr


@pytest.mark.long
@pytest.mark.parametrize("point", list(KillPoint))
def test_a_killed_series_ends_well_when_it_is_run_again(
    cluster: Cluster, cutoffs: Backfill, point: KillPoint
) -> None:
    """Kill -9 between any two steps; the same command finishes what is left, nothing lost, nothing twice."""
    crashed = cutoffs.run(90, "--json", kill_at=point)
    assert (crashed.code, crashed.stdout) == (-signal.SIGKILL, "")
    assert not cluster.output.exists() or visible(cluster.output) == []
    again = cutoffs.run(90, "--json")
    assert delivered(again) == list(SERIES.values())
    # What the dead try had finished is not done again.
    finished = point in (KillPoint.BEFORE_COMMIT, KillPoint.BEFORE_PUBLISH)
    assert each(again, "ran") == [not finished] * len(SERIES)
    assert cluster.committed == {0: 6, 1: 3}
    assert len(visible(cluster.output)) == len(SERIES)
    assert list(stages_of(cluster.output).glob("*/*")) == []


@pytest.mark.long
def test_a_killed_series_is_finished_by_a_longer_one(cutoffs: Backfill) -> None:
    """Windows that wait for their publishing and windows that nobody has planned go together."""
    cutoffs.run(45, kill_at=KillPoint.BEFORE_PUBLISH)
    longer = cutoffs.run(90)
    assert (
        "3 read and published, 3 written by an earlier attempt and published now" in longer.stderr
    )
    again = cutoffs.run(90, "--json")
    assert delivered(again) == list(SERIES.values())
    assert each(again, "ran") == [False] * 6


@pytest.mark.long
@pytest.mark.spark
def test_a_series_with_spark_has_the_same_records(cluster: Cluster, cutoffs: Backfill) -> None:
    """One Spark job for all windows; killed between commit and publish, the next attempt starts no Spark."""
    crashed = cutoffs.run(90, engine="python", kill_at=KillPoint.BEFORE_PUBLISH)
    assert crashed.code == -signal.SIGKILL, crashed.stderr
    again = cutoffs.run(90, "--json", engine="python")
    assert delivered(again) == list(SERIES.values())
    assert each(again, "out_of_order") == OUT_OF_ORDER
    assert each(again, "ran") == [False] * len(SERIES)
    assert cluster.committed == {0: 6, 1: 3}


# --- intervals and sweeps -------------------------------------------------------------------------


@pytest.mark.long
def test_an_interval_takes_its_own_times(cluster: Cluster) -> None:
    """With --since what was stamped before it stays; all results tell where the interval begins."""
    question = (*cluster.question(60), "--since", at(15))
    seen = cli("preview", *cluster.where, *question, "--json")
    assert (seen.json["offsets"], seen.json["since"]) == (3, told(at(15)))
    planned = cluster.windows("plan", *question, "--window-id", "interval")
    assert planned.json["question"]["since"] == told(at(15))
    assert cluster.windows("commit", "interval").json["since"] == told(at(15))
    people = cli("windows", "list", *cluster.where)
    [row] = [line for line in people.stdout.splitlines() if line.rstrip().endswith("interval")]
    assert told(at(15)).removesuffix("Z").replace("T", " ") in row
    assert cluster.run(90, "--since", at(60)).json["records"] == len(SECOND_WINDOW)


@pytest.mark.long
def test_a_series_of_intervals_leaves_the_rest_to_a_sweep(
    cluster: Cluster, intervals: Backfill
) -> None:
    """What was stamped before the first interval is a gap; a sweep delivers it, and then there is none."""
    assert cluster.windows("gaps").json == {"group": cluster.group_id, "gaps": []}
    later = Backfill(cluster, "--since", at(15))
    series = later.run(90, "--json")
    assert delivered(series) == list(SERIES.values())[1:]
    assert each(series, "since") == [told(at(seconds)) for seconds in list(SERIES)[:-1]]
    gap = {"topic": cluster.topic, "since": None, "cutoff": told(at(15)), "partitions": 2}
    assert cluster.windows("gaps").json["gaps"] == [{**gap, "offsets": 3, "offsets_at_most": 3}]
    people = cli("windows", "gaps", *cluster.where)
    [row] = [line.split() for line in people.stdout.splitlines() if cluster.topic in line]
    assert row == [cluster.topic, "(beginning)", told(at(15)), "2", "3", "3"]
    assert "windows sweep" in people.stderr

    words = ("-t", cluster.topic, "--cutoff", at(90), *cluster.sink())
    swept = cluster.windows("sweep", *words)
    assert swept.code == 0, swept.stderr
    assert values(swept.json["output"]) == SERIES[15]
    assert (swept.json["sweep"], swept.json["since"]) == (True, None)
    assert cluster.windows("sweep", *words).json == {**swept.json, "ran": False}
    assert cluster.windows("gaps").json["gaps"] == []
    assert cluster.committed == {0: 6, 1: 3}
    assert "no gaps" in cli("windows", "gaps", *cluster.where).stderr
    assert "(sweep)" in cli("windows", "list", *cluster.where).stdout


@pytest.mark.long
def test_late_records_of_intervals_go_to_the_next_series(
    cluster: Cluster, intervals: Backfill, produce: Produce
) -> None:
    """A record whose interval is gone is in the next one planned, as late."""
    intervals.run(60)
    stamped_ms = int(datetime.fromisoformat(at(7)).timestamp() * 1000)
    produce([(cluster.topic, 1, None, b"7", stamped_ms, [])])
    series = intervals.run(90, "--json")
    assert delivered(series) == [*list(SERIES.values())[:4], [7, *SERIES[75]], SERIES[90]]
    assert each(series, "late") == [0, 0, 0, 0, 1, 0]


@pytest.mark.long
def test_a_sweep_can_be_killed_too(cluster: Cluster) -> None:
    """It is a window like others: the same command finishes it."""
    cluster.run(90, "--since", at(60))
    words = ("sweep", *cluster.where, "-t", cluster.topic, "--cutoff", at(90), *cluster.sink())
    assert cli("windows", *words, kill_at=KillPoint.BEFORE_PUBLISH).code == -signal.SIGKILL
    again = cli("windows", *words, "--json")
    assert (again.json["ran"], values(again.json["output"])) == (False, FIRST_WINDOW)


# --- wrong usage ----------------------------------------------------------------------------------

_WHERE = ("-b", NOWHERE, "-g", "g", "-t", "t")
_RUN = ("run", *_WHERE, "--output", "/nowhere/at/all", "--engine", "local")
_EVERY = (*_RUN, "--every", "PT1H")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(_RUN, "no --cutoff", id="no-cutoff"),
        pytest.param((*_RUN, "--since", at(0)), "no --cutoff", id="only-since"),
        pytest.param((*_RUN, "--cutoff", at(0), "--since", at(0)), "is empty", id="empty"),
        pytest.param((*_RUN, "--cutoff", at(9), "--since", "noon"), "since 'noon'", id="since"),
        pytest.param((*_RUN, "--cutoff", at(0), "--until", at(1)), "--every", id="only-until"),
        pytest.param((*_EVERY, "--cutoff", at(0)), "no end", id="no-end"),
        pytest.param((*_EVERY, "--until", at(0)), "no beginning", id="no-beginning"),
        pytest.param((*_EVERY, "--cutoff", at(1), "--until", at(0)), "before --cutoff", id="back"),
        pytest.param(
            (*_EVERY, "--since", at(0), "--until", at(0)), "no interval", id="no-interval"
        ),
        pytest.param(
            (*_EVERY, "--since", at(0), "--cutoff", at(9), "--until", at(9)),
            "conflicts with --since",
            id="since-and-cutoff",
        ),
        pytest.param(
            (*_EVERY, "--since", at(0), "--until", at(9000)),
            "PT30M remain after 2 intervals",
            id="rest",
        ),
        pytest.param(
            (*_RUN, "--every", "PT0S", "--cutoff", at(0), "--until", at(9)), "is zero", id="no-step"
        ),
        pytest.param(
            (*_RUN, "--every", "P1M", "--cutoff", at(0), "--until", at(9)), "P1M", id="a-month"
        ),
        pytest.param(
            (*_RUN, "--every", f"P{10**15}D", "--cutoff", at(0), "--until", at(9)),
            "longer than",
            id="too-long",
        ),
        pytest.param(
            (*_RUN, "--every", "PT1S", "--cutoff", at(0), "--until", at(90_000)),
            "90,001 windows",
            id="too-many",
        ),
        pytest.param(
            (*_EVERY, "--cutoff", at(0), "--until", at(9), "--window-id", "noon"),
            "--window-id noon",
            id="window-id",
        ),
        pytest.param(
            ("windows", "plan", *_WHERE, "--every", "PT1H"), "--every", id="plan-has-no-series"
        ),
        pytest.param(("windows", "sweep", *_RUN[1:]), "--cutoff", id="sweep-without-cutoff"),
        pytest.param(
            ("windows", "sweep", *_RUN[1:], "--cutoff", at(9), "--since", at(0)),
            "--since",
            id="sweep-with-since",
        ),
    ],
)
def test_wrong_series_exit_2(
    words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is named before anything is touched: no broker answers at this address."""
    assert main([*words, "--json"]) == 2
    captured = capfd.readouterr()
    assert said in json.loads(captured.out)["error"]["message"]
    assert "Traceback" not in captured.err
