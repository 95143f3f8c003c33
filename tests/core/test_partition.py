"""The folders of dates and hours: of which a window is, and which windows are of none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, Window
from kafka_ordered_ops.core.times import TIME_MS_MAX, TIME_MS_MIN, time_at
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.core.window.partition import (
    check_partition_by,
    is_partition,
    partition_kind,
    partition_of,
)

_UNIT_MS = {PartitionBy.DATE: 86_400_000, PartitionBy.HOUR: 3_600_000}

moments_ms = st.integers(TIME_MS_MIN, TIME_MS_MAX)
kinds = st.sampled_from(PartitionBy)


def of(since: str | None, cutoff: str, by: str) -> str | None:
    """The folders of a window."""
    return partition_of(Window("t", cutoff, since=since), PartitionBy(by))


@given(moments_ms, st.integers(1, 3 * 86_400_000), kinds)
def test_a_window_of_one_date_or_hour_is_of_that_and_any_other_is_refused(
    since_ms: int, length_ms: int, by: PartitionBy
) -> None:
    """Every moment of an interval has the date and the hour in its folders' names."""
    cutoff_ms = min(since_ms + length_ms, TIME_MS_MAX)
    if cutoff_ms == since_ms:
        return
    window = Window("t", time_at(cutoff_ms), since=time_at(since_ms))
    unit_ms = _UNIT_MS[by]
    if since_ms // unit_ms != (cutoff_ms - 1) // unit_ms:
        with pytest.raises(ConfigError, match="leave out partition_by"):
            partition_of(window, by)
        return
    found = partition_of(window, by)
    assert found is not None
    assert is_partition(found)
    assert partition_kind(found) is by
    values = dict(part.split("=") for part in found.split("/"))
    for moment in (time_at(since_ms), time_at(cutoff_ms - 1)):
        assert values["date"] == moment.date().isoformat()
        assert values.get("hour") in (None, str(moment.hour))


@given(moments_ms, moments_ms, kinds)
def test_dates_and_hours_sort_as_their_windows_do(
    one_ms: int, other_ms: int, by: PartitionBy
) -> None:
    """Dates as texts, also before the year 1000, and hours as numbers."""
    first, second = sorted((one_ms, other_ms))
    found = [partition_of(Window("t", time_at(ms)), by) or "" for ms in (first, second)]
    dates = [one.partition("/hour=")[::2] for one in found]
    values = [(date, int(number or 0)) for date, number in dates]
    assert values == sorted(values)


@pytest.mark.parametrize(
    ("since", "cutoff", "by", "expected"),
    [
        ("2026-11-20T11:00Z", "2026-11-20T12:00Z", "hour", "date=2026-11-20/hour=11"),
        ("2026-11-20T00:00Z", "2026-11-21T00:00Z", "date", "date=2026-11-20"),
        # In UTC, whatever zone the times are given in.
        ("2026-11-21T00:00+02:00", "2026-11-21T01:00+02:00", "hour", "date=2026-11-20/hour=22"),
        # Without a start: the last millisecond.
        (None, "2026-11-21T00:00Z", "date", "date=2026-11-20"),
        (None, "2026-11-20T12:00:00.001Z", "hour", "date=2026-11-20/hour=12"),
        (None, "0001-01-01T00:00Z", "hour", "date=0001-01-01/hour=0"),
    ],
)
def test_the_folders_of_windows(since: str | None, cutoff: str, by: str, expected: str) -> None:
    """As Hive writes them."""
    assert of(since, cutoff, by) == expected


def test_a_day_of_another_zone_is_refused_by_name() -> None:
    """Its records are of two dates in UTC: a filter on one of them would miss the others."""
    with pytest.raises(ConfigError, match=r"of date=2026-11-19 and of date=2026-11-20") as caught:
        of("2026-11-20T00:00+01:00", "2026-11-21T00:00+01:00", "date")
    assert "partition_by='date'" in str(caught.value)
    with pytest.raises(ConfigError, match="or partition_by='date'"):
        of("2026-11-20T00:00Z", "2026-11-21T00:00Z", "hour")


@pytest.mark.parametrize("value", ["", "day", "Date", ["date"], 1, True, b"date"])
def test_what_is_no_way_to_partition_is_refused(value: Any) -> None:
    """With the words that are allowed."""
    with pytest.raises(ConfigError, match=r"partition_by is .*'date', 'hour'"):
        check_partition_by(value)


def test_nothing_is_no_partition() -> None:
    """The default, and what is no folder of this package's."""
    assert check_partition_by(None) is None
    assert partition_of(Window("t", datetime(2026, 11, 20, tzinfo=UTC)), None) is None
    for text in (
        "",
        "date=2026-11-20/",
        "date=2026-1-2",
        "hour=11",
        "date=2026-11-20/hour=09",
        "date=2026-11-20/hour=24",
        "x",
    ):
        assert not is_partition(text)
