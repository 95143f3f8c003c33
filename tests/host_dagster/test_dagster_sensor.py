"""The sensor of partitions: it asks when the last one is live and not before, once, and in as few runs as can be."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_ordered_ops import BrokerUnreachableError, ConfigError, UnknownTopicError, Window
from kafka_ordered_ops.core.liveness.liveness import Liveness
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.dagster import (
    KafkaResource,
    WindowOp,
    build_ordered_window_asset,
    build_partitions_live_sensor,
    window_id_of,
)
from kafka_ordered_ops.dagster.sensing.cursor import AssetCursor, Cursor, merged
from kafka_ordered_ops.windows import OrderedWindows, Policy
from kafka_ordered_ops.windows.queries.group_watch import GroupWatch
from tests.conftest import MakeTopic, Produce
from tests.support.dagster_support import FIRST, HOUR, House, copied, serial
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house
from tests.support.logs import write_afresh

pytestmark = pytest.mark.timeout(300)

EIGHT = dg.HourlyPartitionsDefinition("2026-01-05-00:00", end_date="2026-01-05-08:00")
KEYS = [f"2026-01-05-{hour:02}:00" for hour in range(8)]
NOTHING_LEFT = "every partition that has ended is delivered"


def write(produce: Produce, topic: str, hour: float, partition: int = 0) -> None:
    """One record, so many hours after the first one began."""
    stamped = FIRST + HOUR * hour
    produce([(topic, partition, None, b"x", round(stamped.timestamp() * 1000), ())])


class Ticks:
    """A sensor whose ticks follow each other, as the daemon has them."""

    def __init__(self, house: House, *assets: dg.AssetsDefinition, **more: Any) -> None:
        self.house = house
        self.cursor: str | None = None
        self.told: str | None = None
        self.replace(*assets, **more)

    def replace(self, *assets: dg.AssetsDefinition, **more: Any) -> None:
        """Deploys other definitions under the same cursor."""
        self.resources = {"kafka": self.house.kafka, **more.pop("resources", {})}
        self.sensor = build_partitions_live_sensor(assets, **more)
        self.definitions = dg.Definitions(
            assets=assets, sensors=[self.sensor], resources=self.resources
        )

    def tick(self) -> list[dg.RunRequest]:
        """One tick, as the daemon makes it; its cursor is the next one's."""
        with dg.build_sensor_context(
            instance=self.house.instance,
            cursor=self.cursor,
            resources=self.resources,
            definitions=self.definitions,
        ) as context:
            found = self.sensor.evaluate_tick(context)
        self.cursor, self.told = found.cursor, found.skip_message
        return list(found.run_requests or ())

    def asked(self) -> list[tuple[str, str]]:
        """The first and the last partition of each run that a tick asks for."""
        return [span_of(request) for request in self.tick()]

    def skipped(self) -> str:
        """Why a tick asks for nothing."""
        assert self.tick() == []
        return self.told or ""


def span_of(request: dg.RunRequest) -> tuple[str, str]:
    """What a run is asked for."""
    if request.partition_key is not None:
        return request.partition_key, request.partition_key
    span = request.partition_key_range
    assert span is not None
    return span.start, span.end


def eight(house: House, topic: str, group_id: str, **more: Any) -> dg.AssetsDefinition:
    """An asset of eight hours, all of them over."""
    return copied(house, topic, group_id, partitions_def=EIGHT, **more)


def test_it_asks_when_the_last_partition_is_live_and_not_before(
    house: House, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """What waits is named until then, with the reason; a record that is too old does not count."""
    name = topic(partitions=2)
    ticks = Ticks(house, eight(house, name, group_id))
    told = ticks.skipped()
    assert f"{name}[0]: the log is empty" in told
    assert f"{name}[1]: the log is empty" in told
    assert "2026-01-05-00:00 to 2026-01-05-07:00 (8)" in told
    write(produce, name, 1)
    write(produce, name, 0.999, partition=1)
    told = ticks.skipped()
    assert f"{name}[1]: no record at or after 2026-01-05T01:00:00Z" in told
    assert f"{name}[0]" not in told
    write(produce, name, 1, partition=1)
    assert ticks.asked() == [(KEYS[0], KEYS[0])]
    assert "2026-01-05-01:00 to 2026-01-05-07:00 (7)" in ticks.skipped()


@pytest.mark.slow
def test_nothing_is_asked_for_twice(
    house: House, hours: str, group_id: str, produce: Produce
) -> None:
    """Not while the run has not delivered it, and not afterwards."""
    asset = eight(house, hours, group_id)
    ticks = Ticks(house, asset)
    assert ticks.asked() == [(KEYS[0], KEYS[5])]
    told = ticks.skipped()
    assert "2026-01-05-00:00 to 2026-01-05-05:00 (6): requested, and not delivered yet" in told
    write(produce, hours, 7)
    assert ticks.asked() == [(KEYS[6], KEYS[6])]
    assert "(7): requested" in ticks.skipped()
    house.materialize(asset, (KEYS[0], KEYS[6]))
    assert "requested" not in ticks.skipped()
    assert json.loads(ticks.cursor or "")["assets"][0]["asked"] == []
    write(produce, hours, 8)
    assert ticks.asked() == [(KEYS[7], KEYS[7])]
    house.materialize(asset, KEYS[7])
    assert ticks.skipped() == NOTHING_LEFT


@pytest.mark.slow
def test_ranges_are_pieces_without_gaps(house: House, hours: str, group_id: str) -> None:
    """Around what is delivered already; the runs deliver exactly what was asked for."""
    asset = eight(house, hours, group_id)
    house.materialize(asset, KEYS[2])
    requests = Ticks(house, asset, tags={"team": "orders"}).tick()
    assert [span_of(one) for one in requests] == [(KEYS[0], KEYS[1]), (KEYS[3], KEYS[5])]
    assert [one.run_key for one in requests] == [
        "orders:2026-01-05-00:00...2026-01-05-01:00",
        "orders:2026-01-05-03:00...2026-01-05-05:00",
    ]
    for one in requests:
        assert (one.asset_selection, one.tags["team"]) == ([dg.AssetKey("orders")], "orders")
        house.materialize(asset, tags=one.tags)
    assert set(house.told("orders")) == set(KEYS[:6])


def test_runs_are_as_large_as_the_backfill_policy_says(
    house: House, hours: str, group_id: str
) -> None:
    """And as the sensor says, if that is less."""
    two = dg.BackfillPolicy.multi_run(2)
    asset = eight(house, hours, group_id, op=WindowOp(backfill_policy=two))
    pairs = [(KEYS[0], KEYS[1]), (KEYS[2], KEYS[3]), (KEYS[4], KEYS[5])]
    assert Ticks(house, asset).asked() == pairs
    assert Ticks(house, asset, partitions_max=1).asked() == [(key, key) for key in KEYS[:6]]


def this_hour() -> datetime:
    """The hour that is not over yet."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


@pytest.mark.slow
def test_what_is_too_old_or_not_over_is_left_alone(
    house: House, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """Though it is live, and nobody has delivered it."""
    name, begun = topic(), this_hour()
    produce([(name, 0, None, b"x", round((begun + HOUR).timestamp() * 1000), ())])
    with_this_hour = dg.HourlyPartitionsDefinition("2026-01-05-00:00", end_offset=1)
    asset = copied(house, name, group_id, partitions_def=with_this_hour)
    [found] = Ticks(house, asset, lookback=HOUR * 3).asked()
    # The next hour may have begun meanwhile.
    spans = [
        tuple((now - HOUR * n).strftime("%Y-%m-%d-%H:%M") for n in (3, 1))
        for now in {begun, this_hour()}
    ]
    assert found in spans


def test_a_grace_ends_the_waiting(house: House, topic: MakeTopic, group_id: str) -> None:
    """A silent partition is idle when the asset's grace is over, as for the step's own check."""
    name = topic()
    assert Ticks(house, eight(house, name, group_id, grace=HOUR)).asked() == [(KEYS[0], KEYS[7])]
    longer = eight(house, name, group_id, grace=timedelta(days=36_500))
    assert "idle from" in Ticks(house, longer).skipped()


@pytest.mark.slow
def test_windows_that_the_ledger_has_forgotten_are_delivered(
    house: House, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """The group remembers the times; also of hours without records, and when partitions came later."""
    name = topic()
    for hour in (0.5, 3):
        write(produce, name, hour)
    asset = eight(house, name, group_id)
    house.materialize(asset, (KEYS[0], KEYS[2]))
    admin = AdminClient({"bootstrap.servers": house.bootstrap})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(30)
    write(produce, name, 4)
    stamped = [FIRST + HOUR * hour for hour in (3.5, 4)]
    write_afresh(house.bootstrap, name, 1, [round(one.timestamp() * 1000) for one in stamped])
    ticks = Ticks(house, asset)
    assert ticks.asked() == [(KEYS[3], KEYS[3])]
    house.materialize(asset, KEYS[3])
    with OrderedWindows({"bootstrap.servers": house.bootstrap}, group_id) as windows:
        assert len(windows.prune(timedelta(0), forget=True)) == 4
        assert windows.list() == []
    ticks.cursor = None
    assert "2026-01-05-04:00 to 2026-01-05-07:00 (4)" in ticks.skipped()


@pytest.mark.slow
def test_a_topic_that_is_no_longer_asked_for_does_not_count(
    house: House, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """What the group delivers without it is delivered."""
    kept, left = topic(), topic()
    for name in (kept, left):
        for hour in (0, 1):
            write(produce, name, hour)
    both = Window([kept, left], starting_offsets="earliest")
    house.materialize(eight(house, kept, group_id, window=both), KEYS[0])
    asset = eight(house, kept, group_id)
    write(produce, kept, 2)
    ticks = Ticks(house, asset)
    assert ticks.asked() == [(KEYS[1], KEYS[1])]
    with OrderedWindows({"bootstrap.servers": house.bootstrap}, group_id) as windows:
        # The group is told, as by the command line.
        asked = Window([kept], FIRST + HOUR * 2, since=FIRST + HOUR)
        windows.plan(asked, window_id_of("orders", KEYS[1]), Policy(redefine=True))
    house.materialize(asset, KEYS[1])
    told = ticks.skipped()
    assert "requested" not in told
    assert "2026-01-05-02:00 to 2026-01-05-07:00 (6)" in told


@pytest.mark.slow
def test_what_was_rewound_is_asked_for_again(
    house: House, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """In one partition of two; by another key, since Dagster skips one that it has seen."""
    name = topic(partitions=2)
    for partition in (0, 1):
        for hour in (0.5, 1.5, 2):
            write(produce, name, hour, partition)
    asset = eight(house, name, group_id)
    ticks = Ticks(house, asset)
    assert ticks.asked() == [(KEYS[0], KEYS[1])]
    house.materialize(asset, (KEYS[0], KEYS[1]))
    ticks.tick()
    moved = [ConsumerGroupTopicPartitions(group_id, [TopicPartition(name, 0, 1)])]
    admin = AdminClient({"bootstrap.servers": house.bootstrap})
    admin.alter_consumer_group_offsets(moved)[group_id].result(30)
    with OrderedWindows({"bootstrap.servers": house.bootstrap}, group_id) as windows:
        windows.adopt()
    [again] = ticks.tick()
    assert span_of(again) == (KEYS[1], KEYS[1])
    assert again.run_key == "orders:2026-01-05-01:00:1"


def test_a_sensor_can_be_called_as_a_function(house: House, hours: str, group_id: str) -> None:
    """As Dagster's own are, in tests."""
    sensor = build_partitions_live_sensor(eight(house, hours, group_id))
    context = dg.build_sensor_context(instance=house.instance, resources={"kafka": house.kafka})
    found = sensor(context)
    assert isinstance(found, dg.SensorResult)
    assert [span_of(one) for one in found.run_requests or ()] == [(KEYS[0], KEYS[5])]


def test_the_next_look_is_given_what_the_last_one_saw(
    house: House, hours: str, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the first window that waits, so that nothing is read twice for it."""
    given: list[tuple[datetime, bool]] = []
    real = GroupWatch.live

    def live(watch: GroupWatch, window: Any, **more: Any) -> Liveness:
        given.append((window.cutoff, more["before"] is not None))
        return real(watch, window, **more)

    monkeypatch.setattr(GroupWatch, "live", live)
    ticks = Ticks(house, eight(house, hours, group_id))
    ticks.asked()
    # Eight hours are halved, not looked at one by one.
    assert len(given) <= 4
    given.clear()
    ticks.skipped()
    assert given == [(FIRST + HOUR * 8, True), (FIRST + HOUR * 7, True)]


def test_the_cursor_survives_other_definitions(
    house: House, hours: str, group_id: str, produce: Produce
) -> None:
    """Times that were asked for stay asked for by another schedule; an asset that is gone is forgotten."""
    ticks = Ticks(house, eight(house, hours, group_id))
    assert ticks.asked() == [(KEYS[0], KEYS[5])]
    two_hours = dg.TimeWindowPartitionsDefinition(
        cron_schedule="0 */2 * * *",
        start="2026-01-05T00",
        end="2026-01-05T08",
        fmt="%Y-%m-%dT%H",
    )
    ticks.replace(copied(house, hours, group_id, partitions_def=two_hours))
    assert "2026-01-05T00 to 2026-01-05T04 (3): requested" in ticks.skipped()
    write(produce, hours, 8)
    assert ticks.asked() == [("2026-01-05T06", "2026-01-05T06")]
    ticks.replace(eight(house, hours, group_id, key="others"))
    assert ticks.asked() == [(KEYS[0], KEYS[7])]
    assert [one["asset"] for one in json.loads(ticks.cursor or "")["assets"]] == ["others"]


@pytest.mark.parametrize("text", ["x", "[]", '{"version":9}', '{"version":1,"assets":[{}]}'])
def test_a_cursor_that_is_not_readable_begins_anew(
    house: House, hours: str, group_id: str, text: str
) -> None:
    """Somebody has edited it, or a newer version has written it: runs have the same keys as before."""
    ticks = Ticks(house, eight(house, hours, group_id))
    ticks.cursor = text
    assert ticks.asked() == [(KEYS[0], KEYS[5])]


def test_a_cursor_survives_its_json() -> None:
    """Times as people read them, in as few ranges as can be."""
    times = merged([TimeRange(2_000, 3_000), TimeRange(5, 10), TimeRange(1_000, 2_000)])
    assert times == (TimeRange(5, 10), TimeRange(1_000, 3_000))
    cursor = Cursor({"a": AssetCursor(times, ("because",)), "b": AssetCursor()})
    assert Cursor.from_text(cursor.to_text()) == cursor
    assert "1970-01-01T00:00:03Z" in cursor.to_text()


@pytest.mark.long
def test_a_broker_that_is_away_is_the_ticks_error(house: House, group_id: str) -> None:
    """And not a quiet skip."""
    away = KafkaResource(config={"bootstrap.servers": "127.0.0.1:9"})
    ticks = Ticks(house, eight(house, "orders", group_id), resources={"kafka": away})
    with pytest.raises(BrokerUnreachableError):
        ticks.tick()


def test_an_asset_that_cannot_be_looked_at_does_not_stop_the_others(
    house: House, hours: str, group_id: str
) -> None:
    """They are asked for; when there is nothing more to ask, the tick fails."""
    lost = eight(house, f"{hours}-lost", f"{group_id}-2", key="lost")
    ticks = Ticks(house, lost, eight(house, hours, group_id))
    assert ticks.asked() == [(KEYS[0], KEYS[5])]
    assert "UnknownTopicError" in (ticks.cursor or "")
    with pytest.raises(UnknownTopicError, match=f"{hours}-lost"):
        ticks.tick()


@pytest.mark.slow
def test_an_asset_without_partitions_is_asked_for_at_each_cutoff(
    house: House, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """Once everything before it is there, and one run for all cutoffs that have passed."""
    name = topic()

    asset = copied(house, name, group_id, partitions_def=None)
    ticks = Ticks(house, asset, every=HOUR)
    assert f"{name}[0]: the log is empty" in ticks.skipped()
    produce([(name, 0, None, b"x", round((this_hour() - HOUR * 3).timestamp() * 1000), ())])
    [first] = ticks.tick()
    assert (first.partition_key, first.partition_key_range) == (None, None)
    assert "requested, and not delivered yet" in ticks.skipped()
    house.materialize(asset)
    # The run has taken what came before it began.
    assert ticks.skipped() == NOTHING_LEFT


@pytest.mark.slow
def test_a_serial_asset_is_asked_for_one_by_one(
    house: House, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """The next partition when the one before is delivered, though all are live; a run has one."""
    name = topic()
    write(produce, name, 8.5)
    asset = eight(house, name, group_id, key=serial("orders"))
    ticks = Ticks(house, asset)
    for key in KEYS[:2]:
        assert ticks.asked() == [(key, key)]
        assert "requested, and not delivered yet" in ticks.skipped()
        house.materialize(asset, key)
    assert ticks.asked() == [(KEYS[2], KEYS[2])]


def test_a_failed_run_of_an_asset_without_partitions(
    house: House, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """Is not asked for again; the next cutoff is."""
    name = topic()
    asset = copied(house, name, group_id, partitions_def=None)
    ticks, now = Ticks(house, asset, every=HOUR), this_hour()
    stamped = [now - HOUR * n for n in (3, 2)]
    keys = []
    for one in stamped:
        produce([(name, 0, None, b"x", round(one.timestamp() * 1000), ())])
        [request] = ticks.tick()
        keys.append(request.run_key)
    assert keys == [f"orders:{one.strftime('%Y-%m-%dT%H:%M:%SZ')}" for one in stamped]


def _daily(**more: Any) -> dg.AssetsDefinition:
    given: dict[str, Any] = {"key": "a", "topics": ["t"], "group_id": "g", "output": "/tmp"}
    return build_ordered_window_asset(**{**given, **more})


@pytest.mark.parametrize(
    ("assets", "more", "told"),
    [
        ([], {}, "needs at least one asset"),
        (["orders"], {}, "not an asset of windows"),
        ([dg.AssetsDefinition(specs=[dg.AssetSpec("a")])], {}, "not an asset of windows"),
        ([_daily()], {}, "give every="),
        ([_daily(partitions_def=EIGHT)], {"every": HOUR}, "without partitions"),
        ([_daily()], {"every": timedelta(0)}, "every is"),
        ([_daily(), _daily()], {"every": HOUR}, "twice"),
        ([_daily(partitions_def=EIGHT)], {"lookback": timedelta(0)}, "lookback"),
        ([_daily(partitions_def=EIGHT)], {"partitions_max": 0}, "partitions_max"),
    ],
)
def test_what_cannot_be_is_named_when_the_sensor_is_built(
    assets: Iterable[Any], more: dict[str, Any], told: str
) -> None:
    """And not at its first tick."""
    with pytest.raises(ConfigError, match=told):
        build_partitions_live_sensor(list(assets), **more)


def test_a_sensor_of_an_asset_with_other_attributes() -> None:
    """An owner, say, is given to a copy of the asset, which is the same asset still."""
    [owned] = dg.map_asset_specs(
        lambda spec: spec.replace_attributes(owners=["team:orders"]), [_daily(partitions_def=EIGHT)]
    )
    sensor = build_partitions_live_sensor(owned)
    assert sensor.name == "a_partitions_live"
    dg.Definitions(assets=[owned], sensors=[sensor], resources={"kafka": KafkaResource(config={})})
