"""Assets of windows from YAML whose columns are inferred."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from dagster.components.testing.utils import DefsFolderSandbox

from tests.conftest import MakeTopic, Produce
from tests.support.dagster_support import FIRST, HOUR, KEYS, House
from tests.support.dagster_support import house as house
from tests.support.dagster_yaml import READS_YAML, asset_in, attributes, loaded
from tests.support.dagster_yaml import sandbox as sandbox

pytestmark = [pytest.mark.timeout(300), *READS_YAML]


@pytest.mark.slow
def test_columns_are_inferred(
    house: House, topic: MakeTopic, produce: Produce, group_id: str, sandbox: DefsFolderSandbox
) -> None:
    """In the first run; a later one has the same columns, whatever its values have besides."""
    name = topic()
    values = {1: b'{"id": 7, "note": null}', 2: b'{"id": 8, "new": 1}', 3: b"{}"}
    times = {hour: round((FIRST + HOUR * hour).timestamp() * 1000) for hour in values}
    produce((name, 0, None, value, times[hour], ()) for hour, value in values.items())
    window = {"topics": [name], "starting_offsets": "earliest", "values": "json-inferred:discard"}
    given = attributes(house, name, group_id, window={**window, "flatten": True})
    with loaded(sandbox, given) as defs:
        for hour in (1, 2):
            house.materialize(asset_in(defs, "orders"), KEYS[hour])
    rows = []
    for hour in (1, 2):
        [file] = Path(house.told("orders")[KEYS[hour]]["dagster/uri"]).glob("*.parquet")
        table = pq.read_table(file)
        assert "note" not in table.schema.names
        assert "new" not in table.schema.names
        rows += table["id"].to_pylist()
    assert rows == [7, 8]
    told = house.told("orders")[KEYS[2]]
    assert told["kafka_ordered_ops/discarded"] == 1
    assert told["kafka_ordered_ops/discarded_fields"] == {"value.new": 1}


@pytest.mark.slow
def test_a_window_that_is_read_again_keeps_its_columns(
    house: House, topic: MakeTopic, produce: Produce, group_id: str, sandbox: DefsFolderSandbox
) -> None:
    """Beside one with more columns, in one step: each is decoded by its own."""
    name = topic()
    values = {1: b'{"id": 7}', 2: b'{"id": 8, "new": 1}', 3: b"{}"}
    times = {hour: round((FIRST + HOUR * hour).timestamp() * 1000) for hour in values}
    produce((name, 0, None, value, times[hour], ()) for hour, value in values.items())
    window = {"topics": [name], "starting_offsets": "earliest", "values": "json-inferred:evolve"}
    policy = {"on_covered": "replay"}
    given = attributes(house, name, group_id, window={**window, "flatten": True}, policy=policy)
    with loaded(sandbox, given) as defs:
        asset = asset_in(defs, "orders")
        house.materialize(asset, KEYS[1])
        house.materialize(asset, (KEYS[1], KEYS[2]))
    for hour, columns in ((1, {"id"}), (2, {"id", "new"})):
        [file] = Path(house.told("orders")[KEYS[hour]]["dagster/uri"]).glob("*.parquet")
        table = pq.read_table(file)
        assert columns == {"id", "new"} & {*table.schema.names}
        assert table["id"].to_pylist() == [6 + hour]
