"""A host that shares nothing with the driver but HDFS, with the package installed on it."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import Application, Earliest, OrderedWindows
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.publisher import files_of
from tests.support.cluster import REPOSITORY, cluster, why_no_hosts
from tests.support.hdfs_support import hdfs, staged_names
from tests.support.submit_support import application, small
from tests.support.windows_support import before

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]

JOB = """
    import os
    from pyspark.sql import SparkSession
    from kafka_ordered_ops import current_window

    def elsewhere(path):
        def checked(batches):
            assert not os.path.exists(path), path
            yield from batches

        return checked

    assert os.path.exists(__file__)
    window = current_window(SparkSession.builder.getOrCreate())
    rows = window.read()
    window.write(rows.mapInArrow(elsewhere(__file__), rows.schema))
"""


def test_a_host_that_shares_nothing_but_hdfs(
    bootstrap: str, group_id: str, orders: str, tmp_path: Path
) -> None:
    """The window, in order, by an executor that sees neither the driver's folders nor the caller's."""
    if why := why_no_hosts():
        pytest.skip(f"this machine can have no hosts that see other files: {why}")
    # Below that folder, and nowhere else, hosts have nothing of the driver's but the package.
    assert tmp_path.is_relative_to(tempfile.gettempdir())
    assert Path(sys.prefix).is_relative_to(REPOSITORY)
    with (
        hdfs(tmp_path / "hdfs") as address,
        cluster(hosts=1, installed=True) as made,
        OrderedWindows(bootstrap, group_id=group_id) as windows,
    ):
        root = f"{address}/lake/orders"
        done = windows.run(
            before(orders, 25, Earliest()),
            root,
            job=Application(
                application(tmp_path, JOB),
                submit=replace(
                    small(**{"spark.executor.memory": "512m"}), master=made.master, timeout_s=700
                ),
            ),
            window_id="w",
        )
        assert (done.ran, done.records) == (True, 5)
        found, offsets = files_of(root), list[Any]()
        for path in files(root):
            with found.open(path) as file:
                offsets += pq.read_table(file).column("offset").to_pylist()
        # Seconds 0, 10, 20, 5, 30, 15 at offsets 0 to 5.
        assert offsets == [0, 3, 1, 5, 2]
        assert staged_names(root) == []
