"""A window that was shared among tasks, ended by hand: its parts are one output, or none."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import stage_window
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.cli_support import Cluster
from tests.support.cli_support import cluster as cluster
from tests.support.stages import control_of

PARTS = 3


@pytest.fixture(autouse=True)
def split(cluster: Cluster) -> None:
    """The known records, and a window over all of them that is split."""
    cluster.windows("plan", *cluster.question(60), "--window-id", "split")


def report(cluster: Cluster, count: int) -> int:
    """Writes the first parts and reports them; how many offsets the whole window has."""
    with OrderedWindows({"bootstrap.servers": cluster.bootstrap}, cluster.group_id) as windows:
        plan = windows.show("split").plan
        for part in windows.split(plan, PARTS)[:count]:
            windows.report(part, stage_window(part, windows.settings, cluster.output))
        return plan.offsets


def files(cluster: Cluster) -> list[Path]:
    """Every data file of the output, staged ones too."""
    return sorted(
        [*cluster.output.rglob("*.parquet"), *control_of(cluster.output).rglob("*.parquet")]
    )


@pytest.mark.slow
def test_a_commit_by_hand_publishes_all_parts_as_one(cluster: Cluster) -> None:
    """Not one by one, and nothing stays hidden."""
    offsets = report(cluster, PARTS)
    done = cluster.windows("commit", "split", "--output", str(cluster.output))
    assert (done.code, done.json["status"]) == (0, "published")
    found = files(cluster)
    assert {file.parent.name.partition("=")[0] for file in found} == {"window_id"}
    assert sum(pq.read_metadata(file).num_rows for file in found) == offsets


@pytest.mark.slow
def test_a_commit_by_hand_without_a_part_s_files_is_refused(cluster: Cluster) -> None:
    """They would be lost: the window stays written."""
    report(cluster, PARTS)
    lost = files(cluster)[0].parent
    for file in lost.iterdir():
        file.unlink()
    refused = cluster.windows("commit", "split", "--output", str(cluster.output))
    assert (refused.code, refused.error["type"]) == (4, "SinkError")
    assert cluster.windows("show", "split").json["status"] == "written"


@pytest.mark.slow
@pytest.mark.parametrize("reported", [1, PARTS])
def test_abandoning_by_hand_removes_the_parts(cluster: Cluster, reported: int) -> None:
    """Those that have reported, whether or not all have."""
    report(cluster, reported)
    assert files(cluster)
    assert (
        cluster.windows("abandon", "split", "--output", str(cluster.output)).json["status"]
        == "abandoned"
    )
    assert files(cluster) == []
