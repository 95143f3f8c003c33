"""Spark writes windows to HDFS by its own Hadoop client, and this package publishes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.test_spark_objects import check_windows_are_written
from tests.support.hdfs_support import globbed_rows, hdfs, staged_names

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.mark.timeout(1_800)
def test_spark_writes_windows_to_hdfs(tmp_path: Path) -> None:
    """One window, several in a job, and a split one; after a driver that was killed when Spark had written all."""
    with hdfs(tmp_path / "hdfs") as address:
        root = f"{address}/lake/orders"
        conf = {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        check_windows_are_written(
            tmp_path,
            {"root": root, "options": None, "conf": conf},
            lambda: globbed_rows(root),
            lambda: staged_names(root),
        )
