"""The picture of a window in Dagster's metadata: there where there is anything to see, and no reason to fail."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pytest

from kafka_ordered_ops.core import sketch
from kafka_ordered_ops.core.picture import HEIGHT, WIDTH
from kafka_ordered_ops.dagster import AssetWindows, ordered_window_asset
from kafka_ordered_ops.dagster.metadata import results
from tests.support.dagster_support import KEYS, House, copied, windows_of
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house

pytestmark = pytest.mark.timeout(300)

SMALL = "kafka_ordered_ops/picture"
PICTURE = "kafka_ordered_ops/picture_large"
#: Dagster's page has a link in the place of longer Markdown.
SHOWN_MAX = 1_000


def svg_of(values: dict[str, Any]) -> str:
    """The large picture as Dagster's page takes it out of its Markdown."""
    found = re.fullmatch(r"!\[\w+\]\(data:image/svg\+xml;base64,([\w+/=]+)\)", values[PICTURE])
    assert found, values[PICTURE]
    return base64.b64decode(found[1]).decode()


def words_of(values: dict[str, Any]) -> str:
    """What is written in the large picture; both are whole ones."""
    found = re.fullmatch(r"!\[\w+\]\(data:image/svg\+xml,([^\s()]+)\)", values[SMALL])
    assert found, values[SMALL]
    assert len(values[SMALL]) < SHOWN_MAX
    assert ET.fromstring(unquote(found[1])).get("width") == str(sketch.WIDTH)
    root = ET.fromstring(svg_of(values))
    assert (root.get("width"), root.get("height")) == (str(WIDTH), str(HEIGHT))
    return "\n".join(root.itertext())


def warnings_of(house: House, run_id: str) -> list[str]:
    """What a step has warned of."""
    return [
        entry.user_message
        for entry in house.instance.all_logs(run_id)
        if entry.level == 30 and entry.dagster_event is None
    ]


def test_each_partition_has_its_own(house: House, hours: str, group: str) -> None:
    """With the records of its own files."""
    house.materialize(copied(house, hours, group), (KEYS[1], KEYS[2]))
    told = house.told("orders")
    for key in KEYS[1:3]:
        assert f"window orders/{key}: 4 records of 1 partition" in words_of(told[key])
    assert 'stroke-linecap="round"' in svg_of(told[KEYS[1]]), "dots"


def test_an_output_elsewhere(house: House, hours: str, group: str) -> None:
    """Of a job with a sink of its own nothing is read: the offsets are shown."""

    @ordered_window_asset(**{**windows_of(house, hours, group), "output": None})
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        pass

    house.materialize(orders, KEYS[1])
    words = words_of(house.told("orders")[KEYS[1]])
    assert f"window orders/{KEYS[1]}: 4 offsets of 1 partition" in words
    assert "record" not in words


@pytest.mark.parametrize("damage", ["a broken file", "no file", "a folder in its place"])
def test_files_that_cannot_be_read(house: House, hours: str, group: str, damage: str) -> None:
    """The step succeeds, with the offsets alone; why is in its log."""
    asset = copied(house, hours, group, on_covered="skip")
    house.materialize(asset, KEYS[1])
    [file] = Path(house.told("orders")[KEYS[1]]["dagster/uri"]).glob("part-*")
    if damage == "a broken file":
        file.write_bytes(b"PAR1")
    else:
        file.unlink()
    if damage == "a folder in its place":
        file.mkdir()
    result = house.materialize(asset, KEYS[1])
    words = words_of(house.told("orders")[KEYS[1]])
    assert f"window orders/{KEYS[1]}: 4 offsets of 1 partition" in words
    warned = [text for text in warnings_of(house, result.run_id) if "picture" in text]
    assert len(warned) == (damage != "no file"), warned


def test_a_picture_that_cannot_be_drawn(
    house: House, hours: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is committed by then: the step succeeds without it, and says so."""

    def broken(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(results, "window_picture", broken)
    result = house.materialize(copied(house, hours, group), KEYS[1])
    told = house.told("orders")[KEYS[1]]
    assert told["dagster/partition_row_count"] == 4
    assert not told.keys() & {SMALL, PICTURE}
    assert any(
        "has no picture: ZeroDivisionError" in one for one in warnings_of(house, result.run_id)
    )


def test_a_step_of_very_many_windows_has_none(
    house: House, hours: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster's event log is a database. A window that takes nothing has none either, and does not count."""
    monkeypatch.setattr(results, "PICTURES_MAX", 2)
    asset = copied(house, hours, group)
    house.materialize(asset, (KEYS[0], KEYS[2]))
    assert not any(PICTURE in values for values in house.told("orders").values())
    house.materialize(asset, (KEYS[5], "2026-01-05-07:00"))
    told = house.told("orders")
    assert {key: PICTURE in told[key] for key in list(told) if key not in KEYS[:3]} == {
        KEYS[5]: True,
        "2026-01-05-06:00": True,
        "2026-01-05-07:00": False,
    }
