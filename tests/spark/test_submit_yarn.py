"""Applications on a real YARN, in client and in cluster mode: real containers, the package from an archive."""

from __future__ import annotations

import os
import signal
import tarfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import Application, Earliest, OrderedWindows
from kafka_ordered_ops.delivery.run_result import RunResult
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.publisher import files_of
from tests.support.cluster import gate_for
from tests.support.stages import control_of
from tests.support.submit_support import wait_for
from tests.support.windows_support import before
from tests.support.yarn_support import Hadoop, containers, yarn_submit
from tests.support.yarn_support import archive as archive
from tests.support.yarn_support import hadoop as hadoop

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_800)]

_JOB_S = 800.0

#: Seconds 0, 10, 20, 5, 15 at offsets 0 to 3 and 5.
IN_ORDER = [0, 3, 1, 5, 2]

#: Executors, and in cluster mode the driver, are in containers, with the archive's Python and package.
JOB = """
    import os, socket, sys
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf
    from kafka_ordered_ops import current_window

    def in_container():
        import kafka_ordered_ops

        assert os.environ.get("CONTAINER_ID"), "no container"
        for path in (sys.executable, kafka_ordered_ops.__file__):
            assert "/environment/" in path, path

    def checked(offset):
        in_container()
        if gate:
            host, port = gate[0].split(":")
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(f"{os.getpid()} 0\\n".encode())
                assert connection.recv(1) == b"!"
        return True

    mode, *gate = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    assert spark.sparkContext.master == "yarn"
    if mode == "cluster":
        in_container()
    else:
        assert "CONTAINER_ID" not in os.environ
    window = current_window(spark)
    rows = window.read()
    # No pandas travels, which `mapInArrow` wants of the driver.
    window.write(rows.where(udf(checked, "boolean", useArrow=False)("offset")))
"""


@dataclass
class Caller:
    """Delivers the window, in either mode."""

    hadoop: Hadoop
    archive: Path
    bootstrap: str
    group_id: str
    topic: str
    folder: Path

    def output(self, mode: str) -> str:
        """In HDFS; for cluster mode a folder that the containers see as well."""
        if mode == "client":
            return f"{self.hadoop.hdfs}/lake/orders"
        return str(self.folder / "lake" / "orders")

    def run(self, mode: str, *gate: str) -> RunResult:
        """A call of `run`."""
        job = self.folder / "job.py"
        job.write_text(textwrap.dedent(JOB))
        with OrderedWindows(self.bootstrap, group_id=self.group_id) as windows:
            return windows.run(
                before(self.topic, 25, Earliest()),
                self.output(mode),
                job=Application(
                    job,
                    arguments=[mode, *gate],
                    submit=yarn_submit(self.hadoop, self.archive, mode, timeout_s=_JOB_S),
                ),
                window_id="w",
            )

    def offsets(self, mode: str) -> list[int]:
        """What is published, in its order."""
        output = self.output(mode)
        found, offsets = files_of(output), list[Any]()
        for path in files(output):
            with found.open(path) as file:
                offsets += pq.read_table(file).column("offset").to_pylist()
        return offsets


@pytest.fixture
def caller(
    hadoop: Hadoop, archive: Path, bootstrap: str, group_id: str, orders: str, tmp_path: Path
) -> Caller:
    """In a folder of its own."""
    return Caller(hadoop, archive, bootstrap, group_id, orders, tmp_path)


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_an_application_runs_on_yarn(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Client mode into HDFS; cluster mode into a folder that the containers see as well. Each record once, in order."""
    if mode == "client":
        with tarfile.open(caller.archive) as packed:
            packed.extractall(caller.folder / "environment", filter="fully_trusted")
    monkeypatch.chdir(caller.folder)
    done = caller.run(mode)
    assert (done.ran, done.records) == (True, 5)
    assert caller.offsets(mode) == IN_ORDER
    assert caller.run(mode).ran is False


def test_yarn_starts_a_killed_driver_again(caller: Caller) -> None:
    """In cluster mode; the second driver finds the same window, and what the first one wrote is nowhere."""
    with gate_for(0) as gate, ThreadPoolExecutor(1) as pool:
        running = pool.submit(caller.run, "cluster", gate.address)
        wait_for(lambda: gate.held is not None or running.done(), "a task is held", _JOB_S)
        assert gate.held is not None, running.result()
        (driver,) = containers("org.apache.spark.deploy.yarn.ApplicationMaster")
        os.kill(driver, signal.SIGKILL)
        done = running.result(_JOB_S)
    assert (done.ran, done.records) == (True, 5)
    assert gate.passed
    assert caller.offsets("cluster") == IN_ORDER
    assert [*control_of(Path(caller.output("cluster"))).glob("stage/*/*")] == []
