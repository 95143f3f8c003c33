"""The picture of a window in Dagster's metadata: there where there is anything to see, and no reason to fail."""

from __future__ import annotations

import base64
import re
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops.dagster import AssetWindows, ordered_window_asset
from kafka_ordered_ops.dagster.metadata import results
from kafka_ordered_ops.delivery import plots
from tests.support.dagster_support import KEYS, House, copied, windows_of
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house

pytestmark = pytest.mark.timeout(300)

PICTURE = "kafka_ordered_ops/picture"
#: Of each, in Dagster's database.
BYTES_MAX = 10_000


def png_of(values: dict[str, Any]) -> bytes:
    """The picture as Dagster's page takes it out of its Markdown."""
    assert len(values[PICTURE]) < BYTES_MAX
    found = re.fullmatch(r"!\[\w+\]\(data:image/png;base64,([\w+/=]+)\)", values[PICTURE])
    assert found, values[PICTURE]
    return base64.b64decode(found[1])


def warnings_of(house: House, run_id: str) -> list[str]:
    """What a step has warned of."""
    return [
        entry.user_message
        for entry in house.instance.all_logs(run_id)
        if entry.level == 30 and entry.dagster_event is None
    ]


@pytest.mark.slow
def test_each_partition_has_its_own(house: House, hours: str, group_id: str) -> None:
    """Also with a sink of one's own: it is drawn from the plan, and nothing is read."""

    @ordered_window_asset(**{**windows_of(house, hours, group_id), "output": None})
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        pass

    house.materialize(orders, (KEYS[1], KEYS[2]))
    told = house.told("orders")
    pictures = [png_of(told[key]) for key in KEYS[1:3]]
    assert all(one.startswith(b"\x89PNG") for one in pictures)
    assert pictures[0] != pictures[1]


@pytest.mark.slow
def test_without_matplotlib_there_is_none(
    house: House, hours: str, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is said of it: who wants pictures installs the extra."""
    monkeypatch.setattr(plots, "is_installed", lambda: False)
    result = house.materialize(copied(house, hours, group_id), KEYS[1])
    told = house.told("orders")[KEYS[1]]
    assert told["dagster/partition_row_count"] == 4
    assert PICTURE not in told
    assert warnings_of(house, result.run_id) == []


@pytest.mark.slow
def test_a_picture_that_cannot_be_drawn(
    house: House, hours: str, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is committed by then: the step succeeds without it, and says so."""

    def broken(*_: object, **__: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(plots, "small_plot", broken)
    result = house.materialize(copied(house, hours, group_id), KEYS[1])
    told = house.told("orders")[KEYS[1]]
    assert told["dagster/partition_row_count"] == 4
    assert PICTURE not in told
    assert any(
        "has no picture: ZeroDivisionError" in one for one in warnings_of(house, result.run_id)
    )


@pytest.mark.slow
def test_a_step_of_very_many_windows_has_none(
    house: House, hours: str, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster's event log is a database. A window that takes nothing has none either, and does not count."""
    monkeypatch.setattr(results, "PICTURES_MAX", 2)
    asset = copied(house, hours, group_id)
    house.materialize(asset, (KEYS[0], KEYS[2]))
    assert not any(PICTURE in values for values in house.told("orders").values())
    house.materialize(asset, (KEYS[5], "2026-01-05-07:00"))
    told = house.told("orders")
    assert {key: PICTURE in told[key] for key in list(told) if key not in KEYS[:3]} == {
        KEYS[5]: True,
        "2026-01-05-06:00": True,
        "2026-01-05-07:00": False,
    }
