"""A whole Dagster on a real broker: backfills, kills, an orphan, retries, and every example."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import pytest

from kafka_ordered_ops import __version__
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.dagster import window_id_of
from tests.support.dagster_house import (
    HOUR,
    KEYS,
    PARTITIONS,
    T0,
    House,
    hours_of,
    make_topic,
    write,
)
from tests.support.dagster_house import house as house
from tests.support.delivered import delivered, times, within
from tests.support.sessions import Process

# Dagster alone takes half a minute to start, and every wait below has an end of its own.
pytestmark = [pytest.mark.dagster_real, pytest.mark.timeout(900)]

#: The backfills, which all wait for the same daemon: started together. The hours of each, and its runs' hours.
BACKFILLS: Final[Mapping[str, list[list[int]]]] = {
    "one_run": [[0, 1, 2, 3, 4, 5]],
    "many_runs": [[0], [1], [2], [3], [4], [5]],
    "a_gap": [[0, 1], [3, 4, 5]],
}

#: An asset whose condition asks for what is missing, and the sensor that looks at it.
MISSING: Final = "missing"
MISSING_SENSOR: Final = "missing_partitions"

#: Each asset of the example, with a partition: the hours of its records.
EXAMPLES: Final[Mapping[str, tuple[str, int]]] = {
    "hourly_orders": ("2026-03-01-00:00", 1),
    "raw_orders": ("2026-03-01", 24),
}
EXAMPLE_T0: Final = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def backfills(house: House) -> dict[str, str]:
    """All backfills, started: what has to wait for them waits once."""
    begun = {}
    for asset, runs in BACKFILLS.items():
        house.fill(asset, times(T0, T0 + 8 * HOUR, 400))
        keys = [KEYS[hour] for run in runs for hour in run]
        begun[asset] = house.dagster.backfill(asset, keys, in_process=asset != "one_run")
    # What its condition asks for is a backfill, too.
    house.fill(MISSING, times(T0, T0 + 8 * HOUR, 400))
    house.dagster.start_sensor("scenarios", MISSING_SENSOR)
    return begun


# --- partitions ------------------------------------------------------------------------------------


@pytest.mark.long
def test_all_definitions_are_loaded(house: House) -> None:
    """The scenarios and the example, also the asset whose broker is away."""
    found = house.dagster.locations()
    assert {*BACKFILLS, "away"} <= set(found["scenarios"])
    assert {*EXAMPLES, "piped_orders"} <= set(found["example"])
    assert [libraries["kafka-ordered-ops"] for libraries in house.dagster.libraries().values()] == [
        __version__
    ] * 2


def test_a_clusters_settings_are_shown_nowhere(house: House) -> None:
    """Neither text nor, where there are variables, what is in them."""
    for location, resource in (("scenarios", "kafka"), ("scenarios", "nowhere")):
        assert "127.0.0.1" not in str(house.dagster.shown(location, resource))


@pytest.mark.long
@pytest.mark.parametrize("asset", BACKFILLS)
def test_a_backfill(house: House, backfills: dict[str, str], asset: str) -> None:
    """One run for all hours, one for each, or one for each piece: every record once, in its own partition."""
    runs = house.dagster.await_backfill(backfills[asset])
    assert sorted(hours_of(run) for run in runs) == BACKFILLS[asset]
    house.check_delivered(asset, [hour for run in BACKFILLS[asset] for hour in run])


@pytest.mark.long
@pytest.mark.usefixtures("backfills")
def test_what_is_missing_is_asked_for_at_once(house: House) -> None:
    """By the condition for it, Dagster's own automation makes one run of all partitions, and no other."""
    [backfill] = house.await_asked(MISSING_SENSOR, 1)
    [run] = house.dagster.await_backfill(backfill)
    assert hours_of(run) == list(range(8))
    house.check_delivered(MISSING, range(8))
    house.await_looks(MISSING_SENSOR, 2)
    assert house.asked(MISSING_SENSOR) == [backfill]


@pytest.mark.long
def test_a_gap_is_filled_later(house: House, backfills: dict[str, str]) -> None:
    """With its own hour, though the ones after it have been delivered."""
    house.dagster.await_backfill(backfills["a_gap"])
    house.dagster.await_run(house.dagster.launch("scenarios", "a_gap", KEYS[2], in_process=True))
    house.check_delivered("a_gap", range(6))


@pytest.mark.long
def test_a_backfill_from_the_last_hour_to_the_first(house: House) -> None:
    """One run after another, by the asset's pool: each holds its own hour."""
    house.fill("newest_first", times(T0, T0 + 7 * HOUR, 300))
    keys = [KEYS[hour] for hour in reversed(range(6))]
    run_ids = house.dagster.backfill_job("scenarios", "newest_first_job", keys)
    runs = [house.dagster.await_run(run_id) for run_id in run_ids]
    runs.sort(key=lambda run: float(run["startTime"]))
    assert [hours_of(run) for run in runs] == [[5], [4], [3], [2], [1], [0]]
    house.check_delivered("newest_first", range(6))


@pytest.mark.long
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


@pytest.mark.long
def test_a_step_is_killed(house: House) -> None:
    """By kill -9, with everything staged: nothing is told; the rerun from failure takes the same plan.

    Meanwhile another partition is delivered, and says what the first one holds; so does a check by itself.
    """
    run_id, pid, _ = _hold(house, "killed")
    with house.windows("killed") as windows:
        [before] = windows.list()
    os.kill(pid, signal.SIGKILL)
    house.dagster.await_run(run_id, "FAILURE")
    assert house.dagster.told("killed") == {}
    assert delivered(house.output / "killed") == []
    house.let_go("killed", 1)
    beside = house.dagster.launch("scenarios", "killed", KEYS[1])
    house.dagster.await_run(beside)
    note = f"group {house.name('killed')} has 1 open window untouched for long: {before.plan.window_id} ("
    assert f"'windows_complete' on 'killed' did not pass. Description: '{note}" in (
        house.dagster.messages(beside)
    )

    def checked() -> str:
        check = house.dagster.launch("scenarios", "killed", check="no_windows_held")
        house.dagster.await_run(check)
        return house.dagster.messages(check)

    assert f"'no_windows_held' on 'killed' did not pass. Description: '{note}" in checked()
    house.let_go("killed", 2)
    house.dagster.await_run(house.dagster.reexecute(run_id, "FROM_FAILURE"))
    assert "'no_windows_held' on 'killed' passed" in checked()
    house.check_delivered("killed", [0, 1])
    with house.windows("killed") as windows:
        [after, _] = windows.list()
    assert (before.plan.attempt, after.plan.attempt) == (1, 2)
    assert after.plan.claim_id == before.plan.claim_id


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_step_is_killed_beside_its_job(house: House) -> None:
    """By kill -9: Pipes ends nothing, so spark-submit and its driver go on; what they write is nobody's."""
    run_id, driver, java = _hold(house, "piped")
    submitted = Process.of(java)
    assert submitted is not None
    os.kill(submitted.parent, signal.SIGKILL)
    house.dagster.await_run(run_id, "FAILURE")
    again = house.dagster.reexecute(run_id, "FROM_FAILURE")
    house.signalled("piped", "2.ready")
    assert not _is_gone(java)
    assert not _is_gone(driver)
    house.let_go("piped", 1)
    # All of it, as attempt 1's, while attempt 2 is under way.
    house.signalled("piped", "1.written")
    assert delivered(house.output / "piped") == []
    assert house.statuses("piped") == [WindowStatus.PLANNED]
    assert house.dagster.told("piped") == {}
    house.let_go("piped", 2)
    house.dagster.await_run(again)
    house.check_delivered("piped", [0])
    [told] = house.dagster.told("piped")[KEYS[0]]
    assert (told["run_id"], told["attempt"]) == (again, 2)
    house.dagster.until(lambda: _is_gone(java), lambda: f"the orphan {java} to end")


def _is_gone(pid: int) -> bool:
    found = Process.of(pid)
    return found is None or found.is_dead


@pytest.mark.long
def test_a_step_and_then_its_run_are_tried_again(house: House) -> None:
    """By its retry policy, and from failure: always the window of the first attempt, with what it held then."""
    house.fill("tried_again", times(T0, T0 + 2 * HOUR))
    run_id = house.dagster.launch("scenarios", "tried_again")
    house.dagster.await_run(run_id, "FAILURE")
    assert house.signalled("tried_again", "1.tried") == run_id
    assert house.signalled("tried_again", "2.tried") == run_id
    assert "attempt 2 fails" in "\n".join(house.dagster.failures(run_id))
    wanted = within(house.records["tried_again"], T0 + 3 * HOUR)
    write(house.bootstrap, house.name("tried_again"), times(T0, T0 + HOUR, 10))
    again = house.dagster.reexecute(run_id, "FROM_FAILURE")
    house.dagster.await_run(again)
    [told] = house.dagster.told("tried_again")[None]
    assert told["kafka_ordered_ops/window_id"] == window_id_of("tried_again", run_id)
    assert told["run_id"] == again
    assert delivered(told["dagster/uri"]) == wanted
    assert told["dagster/row_count"] == len(wanted)


@pytest.mark.long
def test_one_step_of_several_assets(house: House) -> None:
    """What it has delivered when one of them fails stays told; a run from failure tells it again, and reads nothing."""
    several = ("first", "second", "third")
    for asset in several:
        house.fill(asset, times(T0, T0 + 6 * HOUR, 200))
    run_id = house.dagster.launch("scenarios", several, KEYS[0], in_process=True)
    house.dagster.await_run(run_id, "FAILURE")
    assert "the second is broken" in "\n".join(house.dagster.failures(run_id))
    for asset in ("first", "third"):
        house.check_delivered(asset, [0])
    assert house.dagster.told("second") == {}
    again = house.dagster.reexecute(run_id, "FROM_FAILURE")
    house.dagster.await_run(again, "FAILURE")
    newest = house.dagster.told("first")[KEYS[0]][0]
    assert (newest["run_id"], newest["kafka_ordered_ops/ran"]) == (again, False)


# --- waiting, and in vain --------------------------------------------------------------------------


@pytest.mark.long
def test_a_sensor_asks_when_the_last_partition_is_live(house: House) -> None:
    """Not before; and for two hours that have come together it asks for one run."""
    asset, sensor = "live", "live_partitions_live"
    house.fill(asset, times(T0, T0 + HOUR))
    house.mark(asset, T0 + HOUR, range(1, PARTITIONS))
    house.dagster.start_sensor("scenarios", sensor)

    def waited() -> bool:
        looks = [one["status"] for one in house.dagster.ticks("scenarios", sensor)]
        assert set(looks) <= {"STARTED", "SKIPPED"}, house.dagster.ticks("scenarios", sensor)
        return looks.count("SKIPPED") >= 2

    house.dagster.until(waited, lambda: f"two looks: {house.dagster.ticks('scenarios', sensor)}")
    [*_, first] = house.dagster.ticks("scenarios", sensor)
    assert f"{house.name(asset)}[0]" in first["skipReason"]
    house.mark(asset, T0 + HOUR, [0])
    assert [hours_of(run) for run in house.runs_asked(sensor, 1)] == [[0]]
    house.check_delivered(asset, [0])
    house.mark(asset, T0 + 3 * HOUR, range(PARTITIONS))
    assert [hours_of(run) for run in house.runs_asked(sensor, 2)] == [[0], [1, 2]]
    house.check_delivered(asset, range(3))


@pytest.mark.long
def test_a_sensor_asks_for_an_asset_without_partitions(house: House) -> None:
    """When all before a cutoff is there, once; the run takes what is there, and the next cutoff waits for more."""
    asset, sensor = "cutoffs", "cutoffs_partitions_live"
    now = datetime.now(UTC)
    taken: set[tuple[int, int]] = set()
    house.fill(asset, times(now - HOUR, now - HOUR / 2))
    house.dagster.start_sensor("scenarios", sensor)
    for count in (1, 2):
        # The clock has passed a cutoff that no run has taken.
        house.await_told(sensor, f"{house.name(asset)}[0]: no record at or after")
        assert len(house.asked(sensor)) == count - 1
        house.mark(asset, datetime.now(UTC), range(PARTITIONS))
        [*_, run] = house.runs_asked(sensor, count)
        told = house.dagster.told(asset)[None]
        assert [len(told), told[0]["run_id"]] == [count, run["runId"]]
        assert delivered(told[0]["dagster/uri"]) == sorted(house.records[asset].keys() - taken)
        taken = set(house.records[asset])
    assert delivered(house.output / asset) == sorted(house.records[asset])


def test_a_broker_that_is_away(house: House) -> None:
    """The run fails, with the address; what is told of it is nothing."""
    house.dagster.await_run(house.away, "FAILURE")
    told = "\n".join(house.dagster.failures(house.away))
    assert "BrokerUnreachableError" in told
    assert house.dagster.told("away") == {}


# --- and the rest ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("asset", EXAMPLES)
def test_the_example(house: House, asset: str) -> None:
    """Each of its assets delivers one of its partitions, an hour or a day."""
    topic = f"orders-{house.run}"
    if not (records := house.records.get("orders", {})):
        make_topic(house.bootstrap, topic)
        every = times(EXAMPLE_T0 - HOUR, EXAMPLE_T0 + 25 * HOUR, 780)
        records |= write(house.bootstrap, topic, every)
        house.records["orders"] = records
    key, hours = EXAMPLES[asset]
    house.dagster.await_run(house.dagster.launch("example", asset, key))
    [told] = house.dagster.told(asset)[key]
    wanted = within(records, EXAMPLE_T0 + hours * HOUR, EXAMPLE_T0)
    assert delivered(told["dagster/uri"]) == wanted
    assert told["dagster/partition_row_count"] == len(wanted)
