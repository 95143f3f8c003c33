"""A whole Dagster on a real broker: backfills, kills, an orphan, retries, and every example."""

from __future__ import annotations

import os
import random
import signal
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import __version__
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.kafka.offsets import read_committed_offsets
from kafka_ordered_ops.windows import OrderedWindows
from tests.airflow_support import Process, free_ports
from tests.dagster_real import Dagster, dagster_dev
from tests.delivered import Records, delivered, ms_of, times, within
from tests.spark_support import _java_home as java_home

# Dagster alone takes half a minute to start, and every wait below has an end of its own.
pytestmark = [pytest.mark.dagster_real, pytest.mark.timeout(900)]

HERE: Final = Path(__file__).parent
T0: Final = datetime(2025, 3, 1, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
PARTITIONS: Final = 3
KEYS: Final = [f"2025-03-01-{hour:02}:00" for hour in range(8)]

#: The backfills, which all wait for the same daemon: started together. The hours of each, and its runs' hours.
BACKFILLS: Final[Mapping[str, list[list[int]]]] = {
    "one_run": [[0, 1, 2, 3, 4, 5]],
    "many_runs": [[0], [1], [2], [3], [4], [5]],
    "a_gap": [[0, 1], [3, 4, 5]],
}

#: Each asset of the example, with a partition: the hours of its records.
EXAMPLES: Final[Mapping[str, tuple[str, int]]] = {
    "hourly_orders": ("2026-03-01-00:00", 1),
    "raw_orders": ("2026-03-01", 24),
}
EXAMPLE_T0: Final = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class House:
    """A Dagster with the definitions of the tests and the example, beside a broker."""

    dagster: Dagster
    bootstrap: str
    run: str
    output: Path
    #: The run of the asset whose broker is away.
    away: str
    #: What was written into each scenario's topic.
    records: dict[str, Records] = field(default_factory=dict)

    def name(self, asset: str) -> str:
        """A scenario's topic and group."""
        return f"{asset}-{self.run}"

    def fill(self, asset: str, times: Iterable[datetime]) -> None:
        """Makes a scenario's topic, with records of these times in no order."""
        _make_topic(self.bootstrap, self.name(asset))
        self.records[asset] = _write(self.bootstrap, self.name(asset), times)

    def windows(self, asset: str) -> OrderedWindows:
        """The service for a scenario's group."""
        return OrderedWindows({"bootstrap.servers": self.bootstrap}, self.name(asset), timeout_s=60)

    def statuses(self, asset: str) -> list[WindowStatus]:
        """What has become of a scenario's windows, by cutoff."""
        with self.windows(asset) as windows:
            return [record.status for record in windows.list()]

    def committed(self, asset: str) -> dict[int, tuple[int, str] | None]:
        """A scenario's committed offsets, with their offset maps, by partition."""
        with self.windows(asset) as windows:
            every = [TopicPartition(self.name(asset), n) for n in range(PARTITIONS)]
            found = read_committed_offsets(windows.settings, windows.group, every, timeout_s=30)
            return {
                tp.partition: None if one is None else (one.offset, str(one.metadata))
                for tp, one in found.items()
            }

    def signalled(self, asset: str, what: str) -> str:
        """Waits for what a held step says."""
        path = self.output / f"{asset}.signals" / what
        self.dagster.until(path.exists, lambda: f"{what}:\n{self.dagster.log_tail()}")
        return path.read_text()

    def let_go(self, asset: str, attempt: int) -> None:
        """Has a held step go on."""
        (self.output / f"{asset}.signals" / f"{attempt}.go").touch()

    def check_delivered(self, asset: str, hours: Iterable[int]) -> None:
        """Each partition holds its own hour, once, and was told its own numbers; nothing else is there."""
        told, every = self.dagster.told(asset), []
        assert set(told) == {KEYS[hour] for hour in hours}
        for hour in hours:
            wanted = within(self.records[asset], T0 + (hour + 1) * HOUR, T0 + hour * HOUR)
            newest = told[KEYS[hour]][0]
            assert delivered(newest["dagster/uri"]) == wanted
            assert newest["dagster/partition_row_count"] == len(wanted)
            assert newest["kafka_ordered_ops/window_id"] == f"{asset}/{KEYS[hour]}"
            every += wanted
        assert delivered(self.output / asset) == sorted(every)
        assert self.statuses(asset) == [WindowStatus.PUBLISHED] * len(list(hours))


@pytest.fixture(scope="module")
def house(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One Dagster for all tests here; its start takes longer than most of them."""
    root, run = tmp_path_factory.mktemp("dagster"), uuid.uuid4().hex[:8]
    home, output = root / "home", root / "output"
    home.mkdir()
    output.mkdir()
    project = HERE.parent / "example_dags" / "dagster_project" / "src"
    java, [nobody] = java_home(), free_ports(1)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(project), str(HERE.parent)]),
        "SCENARIO_RUN": run,
        "SCENARIO_OUTPUT": str(output),
        "SCENARIO_NOBODY": f"127.0.0.1:{nobody}",
        "ORDERS_TOPIC": f"orders-{run}",
        "ORDERS_OUTPUT": str(output),
        "KAFKA_BOOTSTRAP": bootstrap,
        "SPARK_MASTER": "local[1]",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **({} if java is None else {"JAVA_HOME": str(java)}),
    }
    workspace = "load_from:\n" + "".join(
        f"  - python_module: {{module_name: {module}, location_name: {name}}}\n"
        for name, module in (
            ("scenarios", "tests.dagster_scenarios"),
            ("example", "orders_project.definitions"),
        )
    )
    with dagster_dev(home, workspace, environment) as dagster:
        # It takes half a minute to give up.
        away = dagster.launch("scenarios", "away", KEYS[0], in_process=True)
        yield House(dagster, bootstrap, run, output, away)


@pytest.fixture(scope="module")
def backfills(house: House) -> dict[str, str]:
    """All backfills, started: what has to wait for them waits once."""
    begun = {}
    for asset, runs in BACKFILLS.items():
        house.fill(asset, times(T0, T0 + 8 * HOUR, 400))
        keys = [KEYS[hour] for run in runs for hour in run]
        begun[asset] = house.dagster.backfill(asset, keys, in_process=asset != "one_run")
    return begun


def _make_topic(bootstrap: str, name: str) -> None:
    # Nothing expires in it: records with old timestamps would, within seconds.
    new = NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[name].result(30)


def _write(
    bootstrap: str, topic: str, times: Iterable[datetime], partition: int | None = None
) -> Records:
    """Writes records of these times in no order, into one partition or any of them."""
    producer, rng, found = Producer({"bootstrap.servers": bootstrap}), random.Random(topic), {}

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None
        stamp = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
        found[message.partition(), message.offset()] = stamp

    shuffled = list(times)
    rng.shuffle(shuffled)
    for time in shuffled:
        producer.produce(
            topic,
            b"x",
            partition=rng.randrange(PARTITIONS) if partition is None else partition,
            timestamp=ms_of(time),
            on_delivery=on_delivery,
        )
    assert producer.flush(30) == 0
    assert len(found) == len(shuffled)
    return found


def tag(run: Mapping[str, Any], name: str) -> str | None:
    """A run's tag."""
    return next((one["value"] for one in run["tags"] if one["key"] == name), None)


def hours_of(run: Mapping[str, Any]) -> list[int]:
    """The hours of a run's partitions."""
    first, last = (
        tag(run, f"dagster/asset_partition_range_{end}") or tag(run, "dagster/partition")
        for end in ("start", "end")
    )
    assert first is not None
    assert last is not None
    return list(range(KEYS.index(first), KEYS.index(last) + 1))


# --- partitions ------------------------------------------------------------------------------------


def test_all_definitions_are_loaded(house: House) -> None:
    """The scenarios and the example, also the asset whose broker is away."""
    found = house.dagster.locations()
    assert {*BACKFILLS, "away"} <= set(found["scenarios"])
    assert set(EXAMPLES) <= set(found["example"])
    assert [libraries["kafka-ordered-ops"] for libraries in house.dagster.libraries().values()] == [
        __version__
    ] * 2


def test_a_clusters_settings_are_shown_nowhere(house: House) -> None:
    """Neither text nor, where there are variables, what is in them."""
    for location, resource in (("scenarios", "kafka"), ("scenarios", "nowhere")):
        assert "127.0.0.1" not in str(house.dagster.shown(location, resource))


@pytest.mark.parametrize("asset", BACKFILLS)
def test_a_backfill(house: House, backfills: dict[str, str], asset: str) -> None:
    """One run for all hours, one for each, or one for each piece: every record once, in its own partition."""
    runs = house.dagster.await_backfill(backfills[asset])
    assert sorted(hours_of(run) for run in runs) == BACKFILLS[asset]
    house.check_delivered(asset, [hour for run in BACKFILLS[asset] for hour in run])


def test_a_gap_is_filled_later(house: House, backfills: dict[str, str]) -> None:
    """With its own hour, though the ones after it have been delivered."""
    house.dagster.await_backfill(backfills["a_gap"])
    house.dagster.await_run(house.dagster.launch("scenarios", "a_gap", KEYS[2], in_process=True))
    house.check_delivered("a_gap", range(6))


def test_a_backfill_from_the_last_hour_to_the_first(house: House) -> None:
    """One run after another, by the asset's pool: each holds its own hour."""
    house.fill("newest_first", times(T0, T0 + 7 * HOUR, 300))
    keys = [KEYS[hour] for hour in reversed(range(6))]
    run_ids = house.dagster.backfill_job("scenarios", "newest_first_job", keys)
    runs = [house.dagster.await_run(run_id) for run_id in run_ids]
    runs.sort(key=lambda run: float(run["startTime"]))
    assert [hours_of(run) for run in runs] == [[5], [4], [3], [2], [1], [0]]
    house.check_delivered("newest_first", range(6))


def test_a_partition_is_materialised_again(house: House, backfills: dict[str, str]) -> None:
    """The same records, in the same place; the committed offsets stay where they are."""
    house.dagster.await_backfill(backfills["one_run"])
    before = house.committed("one_run")
    run_id = house.dagster.launch("scenarios", "one_run", KEYS[2], in_process=True)
    house.dagster.await_run(run_id)
    again, first = house.dagster.told("one_run")[KEYS[2]][:2]
    assert (again["run_id"], again["kafka_ordered_ops/ran"]) == (run_id, True)
    for name in ("dagster/uri", "dagster/partition_row_count", "kafka_ordered_ops/offsets"):
        assert again[name] == first[name]
    house.check_delivered("one_run", range(6))
    assert house.committed("one_run") == before


# --- killed, and tried again -----------------------------------------------------------------------


def _hold(house: House, asset: str) -> tuple[str, int, int]:
    """Starts the first hour of a held asset: its run, its step's process, and that one's parent."""
    house.fill(asset, times(T0, T0 + 2 * HOUR))
    run_id = house.dagster.launch("scenarios", asset, KEYS[0])
    pid = int(house.signalled(asset, "1.ready"))
    step = Process.of(pid)
    assert step is not None
    return run_id, pid, step.parent


def test_a_step_is_killed(house: House) -> None:
    """By kill -9, with everything staged: nothing is told; the rerun from failure takes the same plan."""
    run_id, pid, _ = _hold(house, "killed")
    with house.windows("killed") as windows:
        [before] = windows.list()
    os.kill(pid, signal.SIGKILL)
    house.dagster.await_run(run_id, "FAILURE")
    assert house.dagster.told("killed") == {}
    assert delivered(house.output / "killed") == []
    house.let_go("killed", 2)
    house.dagster.await_run(house.dagster.reexecute(run_id, "FROM_FAILURE"))
    house.check_delivered("killed", [0])
    with house.windows("killed") as windows:
        [after] = windows.list()
    assert (before.plan.attempt, after.plan.attempt) == (1, 2)
    assert after.plan.claim_id == before.plan.claim_id


def test_a_run_is_killed_and_its_step_lives_on(house: House) -> None:
    """The orphan goes on beside the rerun, which has not committed yet: it commits, overwrites, tells nothing."""
    run_id, pid, worker = _hold(house, "orphaned")
    os.kill(worker, signal.SIGKILL)
    house.dagster.await_run(run_id, "FAILURE")
    again = house.dagster.reexecute(run_id, "ALL_STEPS")
    house.signalled("orphaned", "2.ready")
    orphan = Process.of(pid)
    assert orphan is not None
    assert not orphan.is_dead
    house.let_go("orphaned", 1)
    house.dagster.until(lambda: _is_gone(pid), lambda: f"the orphan {pid} to end")
    assert "WindowSupersededError" in "\n".join(house.dagster.failures(run_id))
    assert delivered(house.output / "orphaned") == []
    assert house.statuses("orphaned") == [WindowStatus.PLANNED]
    assert house.dagster.told("orphaned") == {}
    house.let_go("orphaned", 2)
    house.dagster.await_run(again)
    house.check_delivered("orphaned", [0])


def test_a_step_that_outlives_its_run_and_the_rerun(house: House) -> None:
    """It goes on when the rerun is done: what stays is the rerun's, and nothing else is told."""
    run_id, pid, worker = _hold(house, "outlived")
    os.kill(worker, signal.SIGKILL)
    house.dagster.await_run(run_id, "FAILURE")
    again = house.dagster.reexecute(run_id, "ALL_STEPS")
    house.signalled("outlived", "2.ready")
    house.let_go("outlived", 2)
    house.dagster.await_run(again)
    before, files = house.committed("outlived"), sorted((house.output / "outlived").rglob("*"))
    house.let_go("outlived", 1)
    house.dagster.until(lambda: _is_gone(pid), lambda: f"the orphan {pid} to end")
    assert house.committed("outlived") == before
    assert sorted((house.output / "outlived").rglob("*")) == files
    assert "WindowSupersededError" in "\n".join(house.dagster.failures(run_id))
    assert [one["run_id"] for one in house.dagster.told("outlived")[KEYS[0]]] == [again]
    house.check_delivered("outlived", [0])


def _is_gone(pid: int) -> bool:
    found = Process.of(pid)
    return found is None or found.is_dead


def test_a_step_and_then_its_run_are_tried_again(house: House) -> None:
    """By its retry policy, and from failure: always the window of the first try, with what it held then."""
    house.fill("tried_again", times(T0, T0 + 2 * HOUR))
    run_id = house.dagster.launch("scenarios", "tried_again")
    house.dagster.await_run(run_id, "FAILURE")
    assert house.signalled("tried_again", "1.tried") == run_id
    assert house.signalled("tried_again", "2.tried") == run_id
    assert "attempt 2 fails" in "\n".join(house.dagster.failures(run_id))
    wanted = within(house.records["tried_again"], T0 + 3 * HOUR)
    _write(house.bootstrap, house.name("tried_again"), times(T0, T0 + HOUR, 10))
    again = house.dagster.reexecute(run_id, "FROM_FAILURE")
    house.dagster.await_run(again)
    [told] = house.dagster.told("tried_again")[None]
    assert told["kafka_ordered_ops/window_id"] == f"tried_again/{run_id}"
    assert told["run_id"] == again
    assert delivered(told["dagster/uri"]) == wanted
    assert told["dagster/row_count"] == len(wanted)


# --- waiting, and in vain --------------------------------------------------------------------------


def test_a_sensor_asks_when_the_last_partition_is_live(house: House) -> None:
    """Not before; and for two hours that have come together it asks for one run."""
    asset, sensor = "live", "live_partitions_live"
    house.fill(asset, times(T0, T0 + HOUR))
    mark(house, asset, T0 + HOUR, range(1, PARTITIONS))
    house.dagster.start_sensor("scenarios", sensor)

    def waited() -> bool:
        looks = [one["status"] for one in house.dagster.ticks("scenarios", sensor)]
        assert set(looks) <= {"STARTED", "SKIPPED"}, house.dagster.ticks("scenarios", sensor)
        return looks.count("SKIPPED") >= 2

    house.dagster.until(waited, lambda: f"two looks: {house.dagster.ticks('scenarios', sensor)}")
    [*_, first] = house.dagster.ticks("scenarios", sensor)
    assert f"{house.name(asset)}[0]" in first["skipReason"]
    mark(house, asset, T0 + HOUR, [0])
    assert [hours_of(run) for run in runs_asked(house, sensor, 1)] == [[0]]
    house.check_delivered(asset, [0])
    mark(house, asset, T0 + 3 * HOUR, range(PARTITIONS))
    assert [hours_of(run) for run in runs_asked(house, sensor, 2)] == [[0], [1, 2]]
    house.check_delivered(asset, range(3))


def mark(house: House, asset: str, time: datetime, partitions: Iterable[int]) -> None:
    """Writes one record of a time into each of these partitions of a topic."""
    for partition in partitions:
        house.records[asset] |= _write(house.bootstrap, house.name(asset), [time], partition)


def runs_asked(house: House, sensor: str, count: int) -> list[dict[str, Any]]:
    """Waits until a sensor has asked for so many runs, and all are done; the first one first."""

    def asked() -> list[str]:
        ticks = reversed(house.dagster.ticks("scenarios", sensor))
        found = [run_id for tick in ticks for run_id in tick["runIds"]]
        return found if len(found) >= count else []

    run_ids = house.dagster.until(asked, lambda: f"{house.dagster.ticks('scenarios', sensor)}")
    assert len(run_ids) == count
    return [house.dagster.await_run(run_id) for run_id in run_ids]


def test_a_broker_that_is_away(house: House) -> None:
    """The run fails, with the address; what is told of it is nothing."""
    house.dagster.await_run(house.away, "FAILURE")
    told = "\n".join(house.dagster.failures(house.away))
    assert "BrokerUnreachableError" in told
    assert house.dagster.told("away") == {}


# --- and the rest ----------------------------------------------------------------------------------


@pytest.mark.parametrize("asset", EXAMPLES)
def test_the_example(house: House, asset: str) -> None:
    """Each of its assets delivers one of its partitions, an hour or a day."""
    topic = f"orders-{house.run}"
    if not (records := house.records.get("orders", {})):
        _make_topic(house.bootstrap, topic)
        every = times(EXAMPLE_T0 - HOUR, EXAMPLE_T0 + 25 * HOUR, 780)
        records |= _write(house.bootstrap, topic, every)
        house.records["orders"] = records
    key, hours = EXAMPLES[asset]
    house.dagster.await_run(house.dagster.launch("example", asset, key))
    [told] = house.dagster.told(asset)[key]
    wanted = within(records, EXAMPLE_T0 + hours * HOUR, EXAMPLE_T0)
    assert delivered(told["dagster/uri"]) == wanted
    assert told["dagster/partition_row_count"] == len(wanted)
