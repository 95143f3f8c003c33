"""The check of an asset's own, and the condition that catches up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import ConfigError, Policy
from kafka_ordered_ops.dagster import (
    AssetWindows,
    catch_up_condition,
    ordered_window_asset,
    partitions_live_check,
    windows_held_check,
)
from tests.conftest import MakeTopic, Produce
from tests.support.dagster_support import HOUR, House, check_of, copied, windows_of
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house

pytestmark = pytest.mark.timeout(300)

EIGHT = dg.HourlyPartitionsDefinition("2026-01-05-00:00", end_date="2026-01-05-08:00")
KEYS = [f"2026-01-05-{hour:02}:00" for hour in range(8)]


def checked(
    house: House, asset: dg.AssetsDefinition, checks: dg.AssetChecksDefinition, **run: Any
) -> dg.AssetCheckEvaluation:
    """Runs the check alone."""
    definitions = dg.Definitions(
        assets=[asset],
        asset_checks=[checks],
        jobs=[dg.define_asset_job("check", dg.AssetSelection.checks(checks))],
        resources={"kafka": house.kafka},
    )
    result = definitions.resolve_job_def("check").execute_in_process(
        instance=house.instance, raise_on_error=False, **run
    )
    [found] = result.get_asset_check_evaluations()
    return found


def span(first: str, last: str) -> dict[str, str]:
    """The tags of a run of several partitions."""
    return {
        "dagster/asset_partition_range_start": first,
        "dagster/asset_partition_range_end": last,
    }


@pytest.mark.slow
def test_the_check_is_about_the_last_partition_of_its_run(
    house: House, hours: str, group_id: str
) -> None:
    """Or, in a run without partitions, about the newest that has ended."""
    asset = copied(house, hours, group_id, partitions_def=EIGHT)
    checks = partitions_live_check(asset)
    found = checked(house, asset, checks, tags={"dagster/partition": KEYS[5]})
    assert (found.passed, found.check_name) == (True, "topics_live")
    assert found.metadata["cutoff"].value == "2026-01-05T06:00:00Z"
    for run in ({"tags": span(KEYS[2], KEYS[6])}, {}):
        found = checked(house, asset, checks, **run)
        assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.ERROR)
        last = KEYS[6] if run else KEYS[7]
        assert (found.description or "").startswith(f"{last}: 0 of 1 partitions live, 1 waiting")
        table = found.metadata["partitions"]
        assert isinstance(table, dg.TableMetadataValue)
        [row] = table.records
        assert (row.data["topic"], row.data["state"]) == (hours, "waiting")
        assert "no record at or after" in str(row.data["why"])


@pytest.mark.slow
def test_the_check_blocks_downstream_assets_by_default(
    house: House, hours: str, group_id: str
) -> None:
    """In one run with the asset; the window itself is delivered. With blocking=False the check only warns."""
    asset = copied(house, hours, group_id, partitions_def=EIGHT)

    @dg.multi_asset(
        specs=[dg.AssetSpec("report", deps=[asset], partitions_def=EIGHT)],
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def report() -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult()

    checks = partitions_live_check(asset, name="complete")
    [spec] = checks.check_specs
    assert (spec.name, spec.blocking) == ("complete", True)

    def materialized(key: str, checks: dg.AssetChecksDefinition) -> set[str]:
        definitions = dg.Definitions(
            assets=[asset, report],
            asset_checks=[checks],
            jobs=[dg.define_asset_job("all", "*")],
            resources={"kafka": house.kafka},
        )
        result = definitions.resolve_job_def("all").execute_in_process(
            instance=house.instance, partition_key=key, raise_on_error=False
        )
        events = result.get_asset_materialization_events()
        return {event.node_name for event in events}

    assert materialized(KEYS[5], checks) == {"orders", "report"}
    assert materialized(KEYS[6], checks) == {"orders"}
    warns = partitions_live_check(asset, blocking=False)
    [spec] = warns.check_specs
    assert "only warns" in str(spec.description)
    assert materialized(KEYS[6], warns) == {"orders", "report"}


@pytest.mark.slow
def test_without_partitions_the_clock_and_a_lag_decide(
    house: House, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """The records may be so far behind, and no farther."""
    name = topic()
    stamped = datetime.now(UTC) - HOUR
    produce([(name, 0, None, b"x", round(stamped.timestamp() * 1000), ())])
    asset = copied(house, name, group_id, partitions_def=None)
    for lag, passes in ((HOUR * 2, True), (HOUR / 2, False)):
        assert checked(house, asset, partitions_live_check(asset, lag=lag)).passed is passes


@pytest.mark.slow
def test_a_partition_that_is_not_over_is_not_the_newest(
    house: House, hours: str, group_id: str
) -> None:
    """Where there is one for the hour that runs; nor is one that ended less than the lag ago."""
    definition = dg.HourlyPartitionsDefinition("2026-01-05-00:00", end_offset=1)
    asset = copied(house, hours, group_id, partitions_def=definition)
    for lag in (timedelta(0), HOUR * 5):
        least = datetime.now(UTC) - lag - HOUR
        found = checked(house, asset, partitions_live_check(asset, lag=lag))
        cutoff = datetime.fromisoformat(str(found.metadata["cutoff"].value))
        assert least < cutoff <= datetime.now(UTC) - lag


def test_before_the_first_partition_has_ended_nothing_is_missing(
    house: House, group_id: str
) -> None:
    """Nobody asks Kafka then."""
    begun = datetime.now(UTC) + timedelta(days=2)
    definition = dg.DailyPartitionsDefinition(begun.strftime("%Y-%m-%d"))
    asset = copied(house, "orders", group_id, partitions_def=definition)
    found = checked(house, asset, partitions_live_check(asset))
    assert (found.passed, found.description) == (True, "no partition has ended yet")


def test_what_cannot_be_checked_is_named_when_the_check_is_built(house: House) -> None:
    """No lag where the clock alone decides, or a negative one."""
    asset = copied(house, "orders", "orders", partitions_def=None)
    with pytest.raises(ConfigError, match="give lag="):
        partitions_live_check(asset)
    with pytest.raises(ConfigError, match="negative"):
        partitions_live_check(asset, lag=-HOUR)


@pytest.mark.slow
def test_windows_that_hold_records_fail_a_check(house: House, hours: str, group_id: str) -> None:
    """A partition whose run ended in the middle; the others are delivered, and say so too."""

    @ordered_window_asset(
        **{**windows_of(house, hours, group_id), "policy": Policy(claim_age="PT0.001S")}
    )
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        if context.partition_key == KEYS[2]:
            raise OSError("the disk is full")
        windows.copy()

    house.materialize(orders, KEYS[2], fails=True)
    found = checked(house, orders, windows_held_check(orders))
    assert (found.check_name, found.passed) == ("no_windows_held", False)
    assert found.severity == dg.AssetCheckSeverity.ERROR
    said = f"group {group_id} has 1 open window untouched for long: 2026-01-05-02-00-orders-"
    assert (found.description or "").startswith(said)
    assert "(4 offsets, planned, untouched for" in (found.description or "")
    complete = check_of(house.materialize(orders, KEYS[3]), "windows_complete")
    assert (complete.passed, complete.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (complete.description or "").startswith(said)
    assert checked(house, orders, windows_held_check(orders, age=HOUR)).passed
    delivered = copied(house, hours, group_id)
    house.materialize(delivered, KEYS[2])
    assert checked(house, delivered, windows_held_check(delivered, age=timedelta(0))).passed
    with pytest.raises(ConfigError, match="age"):
        windows_held_check(delivered, age=-HOUR)


@pytest.mark.slow
def test_catching_up_asks_for_all_that_is_missing(house: House, hours: str, group_id: str) -> None:
    """Not for what is there, and not again for what has failed."""
    broken = dg.HourlyPartitionsDefinition("2026-01-05-00:00", end_date="2026-01-05-09:00")
    asset = copied(
        house,
        hours,
        group_id,
        partitions_def=broken,
        on_not_live="fail",
        key=dg.AssetSpec("orders", automation_condition=catch_up_condition()),
    )
    house.materialize(asset, KEYS[2])
    house.materialize(asset, KEYS[7], fails=True)
    definitions = dg.Definitions(assets=[asset], resources={"kafka": house.kafka})

    def asked(cursor: Any = None) -> tuple[set[str], Any]:
        found = dg.evaluate_automation_conditions(
            definitions,
            instance=house.instance,
            # To leave it to Dagster is to make it use what it warns of.
            asset_selection=dg.AssetSelection.assets("orders"),
            cursor=cursor,
        )
        keys = found.get_requested_partitions(dg.AssetKey("orders"))
        return {str(key) for key in keys}, found.cursor

    keys, cursor = asked()
    assert keys == {*KEYS, "2026-01-05-08:00"} - {KEYS[2], KEYS[7]}
    house.materialize(asset, (KEYS[3], KEYS[5]))
    keys, _ = asked(cursor)
    assert keys == {KEYS[0], KEYS[1], KEYS[6], "2026-01-05-08:00"}
