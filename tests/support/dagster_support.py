"""Assets of windows for tests: an instance of one's own, runs in this process, and what they told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import Window
from kafka_ordered_ops.dagster import KafkaResource, build_ordered_window_asset
from tests.conftest import MakeTopic, Produce
from tests.support.host_words import words

HOUR = timedelta(hours=1)
FIRST = datetime(2026, 1, 5, tzinfo=UTC)
HOURLY = dg.HourlyPartitionsDefinition("2026-01-05-00:00", end_offset=0)
KEYS = [f"2026-01-05-{hour:02}:00" for hour in range(6)]


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
        beside: Sequence[dg.AssetsDefinition] = (),
        **resources: Any,
    ) -> dg.ExecuteInProcessResult:
        """Runs a partition, a range of them, or an asset without; those `beside` it are loaded, and not run."""
        given: dict[str, str] = dict(tags or {})
        if isinstance(keys, tuple):
            given["dagster/asset_partition_range_start"] = keys[0]
            given["dagster/asset_partition_range_end"] = keys[1]
        result = dg.materialize(
            [asset, *beside],
            selection=[asset],
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


def check_of(
    result: dg.ExecuteInProcessResult, name: str = "partitions_live"
) -> dg.AssetCheckEvaluation:
    """The result of a run's one check of this name."""
    [check] = [one for one in result.get_asset_check_evaluations() if one.check_name == name]
    return check


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    """How a run's step failed: the error and its causes."""
    [event] = [event for event in result.all_events if event.is_step_failure]
    error = event.step_failure_data.error
    assert error is not None
    text = error.to_string()
    if event.step_failure_data.user_failure_data is not None:
        text += str(event.step_failure_data.user_failure_data.description)
    return text


def filled(topic: MakeTopic, produce: Produce) -> str:
    """Four records in each of six hours, newest hour first in the log: offset 4 x (5 - hour) + n; and one after."""
    name = topic()
    times = [FIRST + HOUR * hour + HOUR * n / 4 for hour in reversed(range(6)) for n in range(4)]
    times.append(FIRST + HOUR * 6)
    produce((name, 0, None, b"x", round(time.timestamp() * 1000), ()) for time in times)
    return name


@pytest.fixture
def hours(topic: MakeTopic, produce: Produce) -> str:
    """One such topic."""
    return filled(topic, produce)


def expected(hour: int) -> list[int]:
    """The offsets of an hour's records."""
    return [4 * (5 - hour) + n for n in range(4)]


def windows_of(house: House, topic: str, group_id: str) -> dict[str, Any]:
    """What assets of a topic's hours have in common."""
    return {
        "key": "orders",
        "window": Window([topic], starting_offsets="earliest"),
        "group_id": group_id,
        "partitions_def": HOURLY,
        "output": str(house.output),
    }


def copied(house: House, topic: str, group_id: str, **more: Any) -> dg.AssetsDefinition:
    """An asset that copies a topic's hours."""
    return build_ordered_window_asset(**words(**{**windows_of(house, topic, group_id), **more}))


def serial(key: str) -> dg.AssetSpec:
    """The spec of an asset that depends on its own partition before."""
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    return dg.AssetSpec(key, deps=[dg.AssetDep(key, partition_mapping=before)])
