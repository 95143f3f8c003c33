"""Partitions that are not over yet: delivered in pieces, and whole in the end, with each record once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import ConfigError, Policy
from kafka_ordered_ops.dagster import (
    AssetWindows,
    WindowOp,
    build_partitions_live_sensor,
    ordered_window_asset,
    window_id_of,
)
from kafka_ordered_ops.dagster.step import delivery
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import Produce
from tests.support.dagster_support import (
    FIRST,
    HOUR,
    HOURLY,
    KEYS,
    House,
    check_of,
    copied,
    expected,
    failure_of,
    windows_of,
)
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house

pytestmark = pytest.mark.timeout(300)

#: The hour that is taken in pieces, and times in it that no record has.
KEY = KEYS[1]
THIRD = FIRST + HOUR * 4 / 3
TWO_THIRDS = FIRST + HOUR * 5 / 3
AFTER = FIRST + HOUR * 3

At = Callable[[datetime], None]


#: A run takes what is older than this.
LAG = HOUR / 12

#: The newest of its partitions is not over by the real clock.
YEARLY = dg.TimeWindowPartitionsDefinition(
    start="2025", fmt="%Y", cron_schedule="0 0 1 1 *", end_offset=1
)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    """Runs from now on began when this was the present of an asset with the lag."""

    def set_to(present: datetime) -> None:
        monkeypatch.setattr(delivery, "began", lambda _instance, _run: present + LAG)

    return set_to


@pytest.fixture
def asset(house: House, hours: str, group_id: str) -> dg.AssetsDefinition:
    """Copies hours, also those that are not over."""
    return copied(house, hours, group_id, open_lag=LAG)


def rows(house: House, key: str = KEY) -> tuple[int, bool, int]:
    """Of a partition: its rows, whether it is complete, and its pieces."""
    told = house.told("orders")[key]
    names = (
        "dagster/partition_row_count",
        *(f"kafka_ordered_ops/{n}" for n in ("complete", "pieces")),
    )
    count, complete, pieces = (told[name] for name in names)
    return count, complete, pieces


def in_files(house: House) -> list[int]:
    """All offsets that a reader of the output sees."""
    folders = sorted(house.output.glob("window_id=*"))
    return sorted(offset for folder in folders for offset in house.offsets(str(folder)))


@pytest.mark.slow
def test_pieces_come_to_a_whole(house: House, asset: dg.AssetsDefinition, at: At) -> None:
    """Each takes what those before it have not; the last one, when the hour is over, the rest."""
    at(THIRD)
    house.materialize(asset, KEY)
    assert rows(house) == (2, False, 1)
    assert in_files(house) == expected(1)[:2]
    at(TWO_THIRDS)
    house.materialize(asset, KEY)
    assert rows(house) == (3, False, 2)
    at(AFTER)
    house.materialize(asset, KEY)
    assert rows(house) == (4, True, 3)
    told = house.told("orders")[KEY]
    assert told["kafka_ordered_ops/window_id"] == window_id_of("orders", KEY)
    folders = told["kafka_ordered_ops/folders"]
    assert [offset for folder in folders for offset in house.offsets(folder)] == expected(1)
    at(AFTER)
    house.materialize(asset, KEYS[2])
    assert rows(house, KEYS[2]) == (4, True, 1)
    assert in_files(house) == sorted([*expected(1), *expected(2)])


@pytest.mark.slow
def test_what_comes_late_for_a_piece_is_in_the_next(
    house: House, asset: dg.AssetsDefinition, at: At, hours: str, produce: Produce
) -> None:
    """It stays in its own partition, flagged, for the next piece asks for the whole time again."""
    at(TWO_THIRDS)
    house.materialize(asset, KEY)
    late = FIRST + HOUR * 9 / 8
    [offset] = produce([(hours, 0, None, b"x", round(late.timestamp() * 1000), ())])
    at(AFTER)
    house.materialize(asset, KEY)
    told = house.told("orders")[KEY]
    assert rows(house) == (5, True, 2)
    assert told["kafka_ordered_ops/late"] == 1
    assert in_files(house) == sorted([offset, *expected(1)])


@pytest.mark.slow
def test_a_piece_that_failed_is_delivered_with_the_next(
    house: House, hours: str, group_id: str, at: At
) -> None:
    """Its records are not lost to the partition, and they come once."""
    calls: list[list[str]] = []
    broken = [True]

    @ordered_window_asset(**windows_of(house, hours, group_id), open_lag=LAG)
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        calls.append([plan.window_id for plan in windows.plans])
        if broken[0]:
            raise OSError("no")
        windows.copy()

    at(THIRD)
    house.materialize(orders, KEY, fails=True)
    broken[0] = False
    at(TWO_THIRDS)
    house.materialize(orders, KEY)
    assert rows(house) == (3, False, 2)
    assert len(calls[1]) == 2
    assert calls[0] == calls[1][:1]
    at(AFTER)
    house.materialize(orders, KEY)
    assert rows(house) == (4, True, 3)
    assert in_files(house) == expected(1)


@pytest.mark.slow
def test_the_same_run_takes_the_same_piece(house: House, hours: str, group_id: str) -> None:
    """A step that is tried again in its run asks for the time before that run, as the first attempt did."""
    calls: list[list[str]] = []
    arguments = {
        **windows_of(house, hours, group_id),
        "partitions_def": YEARLY,
        "op": WindowOp(retry_policy=dg.RetryPolicy(max_retries=1)),
    }

    @ordered_window_asset(**arguments, open_lag=LAG)
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        calls.append([plan.window_id for plan in windows.plans])
        if len(calls) == 1:
            raise OSError("no")
        windows.copy()

    year = f"{datetime.now(UTC):%Y}"
    house.materialize(orders, year)
    assert len(calls) == 2
    assert calls[0] == calls[1]
    assert rows(house, year) == (25, False, 1)


@pytest.mark.slow
@pytest.mark.parametrize("on_covered", ["replay", "skip", "fail"])
def test_a_whole_partition_materialised_again(
    house: House, hours: str, group_id: str, on_covered: str, at: At
) -> None:
    """All of its pieces are read again, or told again, or refused; while it is open they are left alone."""
    calls: list[int] = []

    @ordered_window_asset(
        **windows_of(house, hours, group_id), open_lag=LAG, policy=Policy(on_covered=on_covered)
    )
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        calls.append(len(windows.plans))
        windows.copy()

    for present in (THIRD, TWO_THIRDS, AFTER):
        at(present)
        house.materialize(orders, KEY)
    assert calls == [1, 1, 1]
    at(AFTER)
    again = house.materialize(orders, KEY, fails=on_covered == "fail")
    assert calls == ([1, 1, 1, 3] if on_covered == "replay" else [1, 1, 1])
    if on_covered == "fail":
        assert "WindowCoveredError" in failure_of(again)
    assert rows(house) == (4, True, 3)
    assert in_files(house) == expected(1)


@pytest.mark.slow
def test_pieces_that_took_everything(house: House, hours: str, group_id: str, at: At) -> None:
    """The whole partition has nothing left to take: it is complete all the same, and no other's."""
    orders = copied(house, hours, group_id, open_lag=LAG, on_covered="fail")
    at(FIRST + HOUR * 1.9)
    house.materialize(orders, KEY)
    assert rows(house) == (4, False, 1)
    at(AFTER)
    house.materialize(orders, KEY)
    assert rows(house) == (4, True, 2)
    assert in_files(house) == expected(1)


@pytest.mark.slow
def test_a_range_with_an_open_partition(house: House, asset: dg.AssetsDefinition, at: At) -> None:
    """Those that are over are whole, the open one is a piece; each has a check of its own."""
    at(FIRST + HOUR * 2.3)
    result = house.materialize(asset, (KEYS[0], KEYS[2]))
    checks = result.get_asset_check_evaluations()
    live = {one.partition: one.passed for one in checks if one.check_name == "partitions_live"}
    assert live == dict.fromkeys(KEYS[:3], True)
    assert [rows(house, key) for key in KEYS[:3]] == [(4, True, 1), (4, True, 1), (2, False, 1)]


@pytest.mark.slow
def test_the_sensor_asks_for_what_makes_it_whole(
    house: House, hours: str, group_id: str, at: At
) -> None:
    """A partition that has pieces and is not whole is missing for the sensor, and no longer afterwards."""
    ended = dg.HourlyPartitionsDefinition("2026-01-05-01:00", end_date="2026-01-05-02:00")
    asset = copied(house, hours, group_id, partitions_def=ended, open_lag=LAG)
    sensor = build_partitions_live_sensor(asset)
    definitions = dg.Definitions([asset], sensors=[sensor], resources={"kafka": house.kafka})

    def asked() -> list[str | None]:
        with dg.build_sensor_context(
            instance=house.instance, definitions=definitions, resources={"kafka": house.kafka}
        ) as context:
            found = sensor.evaluate_tick(context)
        return [request.partition_key for request in found.run_requests or ()]

    at(TWO_THIRDS)
    house.materialize(asset, KEY)
    assert asked() == [KEY]
    # Within the lag, and yet it is over: nobody has to ask once more.
    at(FIRST + HOUR * 2 - LAG / 2)
    house.materialize(asset, KEY)
    assert rows(house) == (4, True, 2)
    assert asked() == []


def test_a_partition_that_has_not_begun(house: House, asset: dg.AssetsDefinition, at: At) -> None:
    """It has no piece: it is asked for whole, which is refused while that is in the future by the clock."""
    at(FIRST)
    house.materialize(asset, KEYS[3])
    assert rows(house, KEYS[3]) == (4, True, 1)


@pytest.mark.slow
def test_the_year_that_is_not_over(house: House, hours: str, group_id: str) -> None:
    """With Dagster's own open partition: refused without a lag, and taken up to the present with one."""
    now = datetime.now(UTC)
    key = f"{now:%Y}"
    refused = copied(house, hours, group_id, partitions_def=YEARLY)
    assert "CutoffInFutureError" in failure_of(house.materialize(refused, key, fails=True))
    result = house.materialize(
        copied(house, hours, group_id, partitions_def=YEARLY, open_lag=timedelta(0)), key
    )
    check = check_of(result)
    assert (check.passed, check.description) == (
        True,
        "the window was delivered before, or its partition has not ended",
    )
    assert rows(house, key) == (25, False, 1)
    with OrderedWindows({"bootstrap.servers": house.bootstrap}, group_id) as windows:
        [record] = windows.list()
    assert record.plan.window_id.startswith(f"{window_id_of('orders', key)}@")
    assert record.plan.cutoff_ms >= round(now.timestamp() * 1000) - 1_000


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"open_lag": timedelta(seconds=-1)}, "negative"),
        ({"open_lag": timedelta(0), "partitions_def": None}, "requires partitions_def"),
    ],
)
def test_a_lag_that_cannot_be(house: House, settings: dict[str, Any], told: str) -> None:
    """It is named when the asset is defined."""
    with pytest.raises(ConfigError, match=told):
        copied(house, "t", "g", **{"partitions_def": HOURLY, **settings})
