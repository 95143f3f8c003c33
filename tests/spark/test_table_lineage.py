"""OpenLineage's events of windows that are written to tables, by its own client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafka_ordered_ops import Earliest, OrderedWindows, Table
from tests.support.spark_support import spark
from tests.support.tables_support import CATALOG, WAREHOUSE, Lake, lake_spark
from tests.support.windows_support import before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(600)]


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_a_table_is_the_output_by_its_files(
    bootstrap: str,
    group_id: str,
    orders: str,
    lake_spark: SparkSession,
    tmp_path: Path,
    format_: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its name in the catalogue, where the session has its address; again when there is nothing left to do."""
    lake = Lake.make(lake_spark, format_, tmp_path, mode="append")
    events = tmp_path / "events"
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(events), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        for _ in range(2):
            asked = before(orders, 12, Earliest())
            windows.run(asked, Table(lake.table), window_id="w", spark=lake_spark)
    sent = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["eventType"] for one in sent] == ["START", "COMPLETE"] * 2
    assert (sent[0]["outputs"], sent[1]["outputs"]) == ([], sent[3]["outputs"])
    [output] = sent[1]["outputs"]
    assert output["namespace"] == "file"
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 3
    if format_ == "delta":
        assert (output["name"], output["facets"]) == (f"{tmp_path}/orders", {})
        return
    warehouse, name = lake_spark.conf.get(WAREHOUSE), lake.table.removeprefix(f"{CATALOG}.")
    assert output["name"] == f"{warehouse}/{name.replace('.', '/')}"
    [symlink] = output["facets"]["symlinks"]["identifiers"]
    assert symlink == {"namespace": f"file:{warehouse}", "name": name, "type": "TABLE"}
