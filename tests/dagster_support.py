"""Assets of windows for tests: an instance of one's own, runs in this process, and what they told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops.dagster import KafkaResource

#: Partitions of ten seconds are none of Dagster's; the tests' hours begin here.
FIRST_HOUR = "2026-01-05-00:00"


@dataclass
class House:
    """An instance, a cluster, and a folder for outputs."""

    instance: dg.DagsterInstance
    bootstrap: str
    output: Path

    @property
    def kafka(self) -> KafkaResource:
        return KafkaResource(config={"bootstrap.servers": self.bootstrap})

    def materialize(
        self,
        asset: dg.AssetsDefinition,
        keys: str | tuple[str, str] | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        fails: bool = False,
        **resources: Any,
    ) -> dg.ExecuteInProcessResult:
        """Runs a partition, a range of them, or an asset without."""
        given: dict[str, str] = dict(tags or {})
        if isinstance(keys, tuple):
            given["dagster/asset_partition_range_start"] = keys[0]
            given["dagster/asset_partition_range_end"] = keys[1]
        result = dg.materialize(
            [asset],
            instance=self.instance,
            resources={"kafka": self.kafka, **resources},
            partition_key=keys if isinstance(keys, str) else None,
            tags=given,
            raise_on_error=False,
        )
        assert result.success is not fails, [event.message for event in result.all_events][-5:]
        return result

    def told(self, key: str) -> dict[str | None, dict[str, Any]]:
        """The newest metadata of each partition."""
        found: dict[str | None, dict[str, Any]] = {}
        wanted = dg.AssetRecordsFilter(dg.AssetKey(key))
        for record in self.instance.fetch_materializations(wanted, limit=100).records:
            event = record.asset_materialization
            assert event is not None
            values = {name: value.value for name, value in event.metadata.items()}
            found.setdefault(event.partition, values)
        return found

    def offsets(self, path: str) -> list[int]:
        """What a reader of an output sees, file after file."""
        tables = [
            pq.read_table(file, columns=["offset"]) for file in sorted(Path(path).glob("part-*"))
        ]
        return [offset for table in tables for offset in table["offset"].to_numpy().tolist()]


@pytest.fixture
def house(bootstrap: str, tmp_path: Path) -> Iterator[House]:
    """A Dagster of this test's own, without a server."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield House(instance, bootstrap, tmp_path / "out")


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    """How a run's step failed: the error and its causes."""
    [event] = [event for event in result.all_events if event.is_step_failure]
    error = event.step_failure_data.error
    assert error is not None
    text = error.to_string()
    if event.step_failure_data.user_failure_data is not None:
        text += str(event.step_failure_data.user_failure_data.description)
    return text
