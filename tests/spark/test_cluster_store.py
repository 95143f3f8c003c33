"""A cluster of two hosts that share nothing but a store: exact rows, whatever is killed in the middle of the job."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.publisher import files_of
from tests.conftest import MakeTopic, Produce
from tests.spark.test_spark_objects import conf_with_keys
from tests.support.cluster import (
    Cluster,
    Gate,
    Held,
    below,
    cluster,
    gate_for,
    pack_environment,
    why_no_hosts,
)
from tests.support.object_servers import Server, versitygw
from tests.support.objects_support import staged_names
from tests.support.spark_support import on_spark41, spark41_jars
from tests.support.submit_support import java_home, wait_for
from tests.support.windows_support import BASE_MS

pytestmark = [pytest.mark.spark41, pytest.mark.long, pytest.mark.timeout(1_800)]

#: Of a call, on a machine that has much else to do.
_CALL_S = 800.0

_CALLER = Path(__file__).parents[1] / "support" / "cluster_caller.py"
_RECORDS, _PARTITIONS, _HOUR_MS = 4_000, 3, 3_600_000
#: Of two hours, the window takes the first.
_CUTOFF_MS = BASE_MS + _HOUR_MS

#: The list begins with the connector; Delta and Iceberg follow.
_CONNECTOR_JARS = 4

#: The partition of the task that is held: the last of three.
_LAST = 2

#: A module that only the driver has, and that travels by --py-files.
HELPER = """
    import os, socket, sys

    def gate(address):
        def waiting(batches):
            from pyspark import TaskContext
            import kafka_ordered_ops

            # The archive's package and Python; nothing of the driver's.
            assert "/environment/" in sys.executable, sys.executable
            assert "/environment/" in kafka_ordered_ops.__file__, kafka_ordered_ops.__file__
            assert not os.path.exists(DRIVER), DRIVER
            task = TaskContext.get()
            host, port = address.split(":")
            with socket.create_connection((host, int(port))) as gate:
                gate.sendall(f"{os.getpid()} {task.partitionId()}\\n".encode())
                if gate.recv(1) != b"!":
                    raise RuntimeError("nobody at the gate")
            yield from batches

        return waiting
"""

#: With a gate in three tasks, which write a file each where no order is asked for.
JOB = """
    import sys
    import helper
    from pyspark.sql import SparkSession
    from kafka_ordered_ops import current_window

    spark = SparkSession.builder.getOrCreate()
    window = current_window(spark)
    rows = window.read(ordered=False).repartition(3)
    gated = rows.mapInArrow(helper.gate(sys.argv[1]), rows.schema)
    window.write(gated)
"""

#: Of a driver that was killed: empty objects that the library cannot delete.
_SPARKS_FOLDER = r"/_temporary(/0(/_temporary)?)?$"

Row = tuple[int, str, int, int]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What travels to the hosts."""
    return pack_environment(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    """Two of them."""
    assert on_spark41()
    if why := why_no_hosts():
        pytest.skip(f"this machine can have no hosts that see other files: {why}")
    with cluster(hosts=2) as made:
        yield made


@pytest.fixture
def whole(hosts: Cluster) -> Cluster:
    """The cluster, with two hosts, also where an earlier test has lost one."""
    while len(hosts.hosts) < 2:
        hosts.add_host()
    return hosts


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """S3, all that driver and hosts share."""
    with versitygw(tmp_path_factory.mktemp("s3") / "data") as server:
        yield server


@dataclass
class Driver:
    """The driver's host: a folder of its own, from which the window is delivered."""

    folder: Path
    task: dict[str, Any]
    rows: list[Row] = field(repr=False)
    processes: list[subprocess.Popen[str]] = field(default_factory=list, repr=False)

    def start(self, gate: Gate, **more: Any) -> subprocess.Popen[str]:
        """A call of `run`, in a process of its own."""
        task = {**self.task, "arguments": [gate.address], **more}
        (self.folder / "task.json").write_text(json.dumps(task))
        process = subprocess.Popen(
            [sys.executable, str(_CALLER), "task.json"],
            cwd=self.folder,
            env={
                **os.environ,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYTHONPATH": f"{self.folder / 'modules'}",
                "TMPDIR": str(self.folder / "temporary"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        """Whatever a test has found, nothing goes on: the guard of a run ends it when its caller is gone."""
        for process in self.processes:
            process.kill()
            process.communicate()

    def run(self, **more: Any) -> dict[str, Any]:
        """A call that must succeed; what it says."""
        with gate_for() as gate:
            return _told(self.start(gate, **more))


def _told(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=_CALL_S)
    assert process.returncode == 0, errors[-6_000:]
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    return told


@pytest.fixture
def driver(
    whole: Cluster,
    store: Server,
    archive: Path,
    topic: MakeTopic,
    produce: Produce,
    bootstrap: str,
    group_id: str,
    tmp_path: Path,
) -> Iterator[Driver]:
    """Two hours of records out of order, and the task of delivering the first one."""
    name, rng = topic(partitions=_PARTITIONS), random.Random(7)
    records = [
        (name, rng.randrange(_PARTITIONS), None, b"v", BASE_MS + rng.randrange(2 * _HOUR_MS), ())
        for _ in range(_RECORDS)
    ]
    places = zip(records, produce(records), strict=True)
    rows = [(r[4], name, r[1], offset) for r, offset in places if r[4] < _CUTOFF_MS]
    (tmp_path / "modules").mkdir()
    (tmp_path / "temporary").mkdir()
    helper = tmp_path / "modules" / "helper.py"
    helper.write_text(f"DRIVER = {str(helper)!r}\n" + textwrap.dedent(HELPER))
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "environment", filter="fully_trusted")
    submit = {
        "master": whole.master,
        "archives": [f"{archive}#environment"],
        "py_files": [str(helper)],
        "conf": _conf(store),
        "environment": {
            "PYSPARK_PYTHON": "./environment/bin/python",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        "java_home": None if (java := java_home()) is None else str(java),
        "timeout_s": _CALL_S,
    }
    task = {
        "bootstrap": bootstrap,
        "group_id": group_id,
        "topic": name,
        "cutoff_ms": _CUTOFF_MS,
        "engine": "python",
        "ordered": False,
        "application": str(tmp_path / "job.py"),
        "output": f"{store.root}/{group_id}",
        "storage_options": store.options,
        "submit": submit,
    }
    made = Driver(tmp_path, task, sorted(rows))
    yield made
    made.end()


def _conf(store: Server) -> dict[str, str]:
    found = conf_with_keys(store.options)
    jars = [*found["spark.jars"].split(","), *map(str, spark41_jars()[:_CONNECTOR_JARS])]
    return {
        **found,
        "spark.jars": ",".join(jars),
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def _published(driver: Driver) -> list[Row]:
    """The rows in the order of the files, as a reader of the manifest has them."""
    root, options = driver.task["output"], driver.task["storage_options"]
    found = files_of(root, options)
    rows: list[Row] = []
    for path in files(root, storage_options=options):
        with found.open(path) as file:
            table = pq.read_table(file, columns=["timestamp", "topic", "partition", "offset"])
        for one in table.to_pylist():
            time_ms = round(one["timestamp"].timestamp() * 1000)
            rows.append((time_ms, one["topic"], one["partition"], one["offset"]))
    return rows


def _staged(driver: Driver) -> list[str]:
    """What is staged but for Spark's folders, which are empty objects: see `docs/storage.md`."""
    output, options = driver.task["output"], driver.task["storage_options"]
    return [one for one in staged_names(output, options) if not re.search(_SPARKS_FOLDER, one)]


def _held(driver: Driver, gate: Gate, process: subprocess.Popen[str]) -> Held:
    """The middle of the job: some tasks have written their files, and one waits."""

    def middle() -> bool:
        assert process.poll() is None, process.communicate()[1][-6_000:]
        held = gate.held is not None
        return held and any(name.endswith(".parquet") for name in _staged(driver))

    wait_for(middle, "a task is held, and others have written", _CALL_S)
    assert _published(driver) == []
    assert gate.held is not None
    return gate.held


@pytest.mark.parametrize("engine", ["python", "connector"])
def test_hosts_share_nothing_but_the_store(driver: Driver, engine: str) -> None:
    """The window's records, in order, written by executors that see no file of the driver's."""
    told = driver.run(ordered=True, engine=engine)
    assert (told["ran"], told["records"]) == (True, len(driver.rows))
    assert _published(driver) == driver.rows
    assert _staged(driver) == []


@pytest.mark.parametrize(("engine", "lost"), [("python", "host"), ("connector", "executor")])
def test_what_executes_is_killed_in_the_middle(
    whole: Cluster, driver: Driver, engine: str, lost: str
) -> None:
    """Spark runs the tasks elsewhere: each record once."""
    with gate_for(_LAST) as gate:
        process = driver.start(gate, engine=engine)
        held = _held(driver, gate, process)
        if lost == "host":
            whole.lose(whole.host_of(held.pid))
        else:
            os.kill(held.executor, signal.SIGKILL)
        told = _told(process)
    assert gate.passed[-1] == _LAST
    assert told["records"] == len(driver.rows)
    assert sorted(_published(driver)) == driver.rows
    assert _staged(driver) == []


@pytest.mark.parametrize("lost", ["driver", "caller"])
def test_what_commits_is_killed_in_the_middle(driver: Driver, lost: str) -> None:
    """Nothing is published; the same call again delivers each record once, and nothing is left of the first one."""
    with gate_for(_LAST) as gate:
        process = driver.start(gate)
        _held(driver, gate, process)
        (java,) = below(process.pid, "org.apache.spark.deploy.SparkSubmit")
        os.kill(java if lost == "driver" else process.pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=_CALL_S)
    assert process.returncode == (1 if lost == "driver" else -signal.SIGKILL), errors[-6_000:]
    assert ("JobFailedError" in errors) is (lost == "driver")
    assert _published(driver) == []
    assert driver.run()["ran"] is True
    assert sorted(_published(driver)) == driver.rows
    assert _staged(driver) == []
    assert driver.run()["ran"] is False
