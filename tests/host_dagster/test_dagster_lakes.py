"""A whole Dagster whose windows go into an object store, and whose processes are killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from kafka_ordered_ops.core.types import WindowStatus
from tests.support.dagster_house import HOUR, KEYS, T0, House, dagster_house
from tests.support.delivered import times, within
from tests.support.host_kills import KILLS, check_exact, killed
from tests.support.lakes import LakeSide
from tests.support.lakes import side as side

# Dagster alone takes half a minute to start, and every wait below has an end of its own.
pytestmark = [pytest.mark.dagster_real, pytest.mark.long, pytest.mark.timeout(2400)]

#: So long a run may take that waits for the others, on a busy machine.
_RUN_S = 900


@pytest.fixture(scope="module")
def house(bootstrap: str, side: LakeSide) -> Iterator[House]:
    """One Dagster for all tests here."""
    modules = {"lakes": "tests.support.dagster_lakes"}
    with dagster_house(bootstrap, side.output.parent, modules, side.variables) as found:
        yield found


def _again(house: House, run_ids: Sequence[str], *, failed: int) -> None:
    """Runs those again from failure whose step was killed: so many."""
    ended = [house.dagster.await_end(run_id, _RUN_S) for run_id in run_ids]
    dead = [run["runId"] for run in ended if run["status"] == "FAILURE"]
    assert len(dead) == failed
    for run_id in [house.dagster.reexecute(one, "FROM_FAILURE") for one in dead]:
        assert house.dagster.await_end(run_id, _RUN_S)["status"] == "SUCCESS"


def test_a_backfill_into_a_store_is_killed_everywhere(house: House, side: LakeSide) -> None:
    """Four windows, each step or its store killed between other writes; one of them is replayed then."""
    asset, root = "to_store", "s3://bucket/lake/to_store"
    victims = {hour: KILLS[hour].victim for hour in (2, 3, 5, 7)}
    house.fill(asset, times(T0, T0 + 9 * HOUR, 400))
    records = house.records[asset]
    wanted = sorted(
        place
        for hour in victims
        for place in within(records, T0 + (hour + 1) * HOUR, T0 + hour * HOUR)
    )
    runs = [house.dagster.launch("lakes", asset, KEYS[hour]) for hour in victims]
    _again(house, runs, failed=list(victims.values()).count("task"))
    signals = house.output / f"{asset}.signals"
    assert killed(signals) == victims
    check_exact(root, side.options, wanted)
    (signals / "5.killed").unlink()
    _again(house, [house.dagster.launch("lakes", asset, KEYS[5])], failed=1)
    assert killed(signals) == victims
    check_exact(root, side.options, wanted)
    assert house.statuses(asset) == [WindowStatus.PUBLISHED] * len(victims)
