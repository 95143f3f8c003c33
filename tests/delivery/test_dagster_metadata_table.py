"""The table of metadata in the docs has what materializations have: each key, and no other."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.dagster import (
    AssetWindows,
    KafkaResource,
    build_ordered_window_asset,
    ordered_window_asset,
)
from kafka_ordered_ops.dagster.metadata.results import window_metadata
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.hosts_support import GROUP, asked
from tests.support.hosts_support import kafka as kafka
from tests.support.hosts_support import windows as windows

DOCS = Path(__file__).parents[2] / "docs/dagster/assets.md"


def documented() -> set[str]:
    """The keys of the table, in full."""
    section = DOCS.read_text().split("## What Dagster shows")[1]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    keys = [key for row in rows for key in re.findall(r"`(.+?)`", row)]
    assert len(keys) == len(set(keys))
    return {key if "/" in key else f"kafka_ordered_ops/{key}" for key in keys}


@pytest.mark.slow
def test_the_docs_have_every_key_of_a_materialization(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path
) -> None:
    """Of a partition that is short, of one in pieces, of assets without partitions, and of a table."""
    pytest.importorskip("matplotlib")
    windows.plan(asked(3), "failed")
    now = datetime.now(UTC)
    given: dict[str, Any] = {
        "window": Window("t", starting_offsets="earliest"),
        "on_not_live": "ignore",
    }

    @ordered_window_asset(key="own", group_id=GROUP, **given)
    def own(context: dg.AssetExecutionContext, windows: AssetWindows) -> dict[str, int]:
        windows._show_page("http://localhost:4040")
        return {"rows": 1}

    alone = build_ordered_window_asset(
        key="alone", group_id="alone", output=str(tmp_path / "alone"), **given
    )
    today = build_ordered_window_asset(
        key="today",
        group_id="today",
        output=str(tmp_path / "today"),
        partitions_def=dg.DailyPartitionsDefinition(
            (now - timedelta(days=1)).strftime("%Y-%m-%d"), end_offset=1
        ),
        open_lag=timedelta(0),
        **given,
    )
    found: dict[str, Any] = {}
    with dg.DagsterInstance.ephemeral() as instance:

        def materialize(asset: dg.AssetsDefinition, key: str | None = None) -> None:
            result = dg.materialize(
                [asset],
                instance=instance,
                partition_key=key,
                resources={"kafka": KafkaResource(config=kafka.settings)},
            )
            for event in result.get_asset_materialization_events():
                found.update(event.materialization.metadata)
            # What is told of one partition only.
            wanted = dg.AssetRecordsFilter(asset.key)
            for record in instance.fetch_materializations(wanted, limit=9).records:
                assert record.asset_materialization is not None
                found.update(record.asset_materialization.metadata)

        materialize(own)
        materialize(alone)
        for _ in range(2):
            stamped = round(datetime.now(UTC).timestamp() * 1000) - 1
            kafka.produce("t", value=b"x", partition=0, timestamp_ms=stamped)
            materialize(today, now.strftime("%Y-%m-%d"))
    in_table = replace(windows.list()[0], result={"table": "lake.orders", "write": {}})
    found.update(window_metadata(in_table, ran=True, is_partition=False))
    assert set(found) - documented() == set()
    assert documented() - set(found) == set()
