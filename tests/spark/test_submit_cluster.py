"""Executors in processes of their own: what their Python needs, and a standalone master."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from kafka_ordered_ops import ConfigError, Earliest, StagedOutput
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.spark import SparkSubmit, submit
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.cluster import pack_environment
from tests.support.submit_support import COPY, application, small, wait_for
from tests.support.windows_support import before

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

#: Says which Python the executors run, then delivers the window.
TELLING = (
    """
    def python(batches):
        import sys, pyarrow as pa, helper
        for batch in batches:
            yield pa.record_batch({"python": [sys.executable], "helper": [helper.VALUE]})
"""
    + COPY
    + """
    import json, pathlib
    frame = spark.range(2, numPartitions=2).mapInArrow(python, "python string, helper bigint")
    rows = [row.asDict() for row in frame.collect()]
    pathlib.Path(__file__).with_suffix(".told").write_text(json.dumps(rows))
"""
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This package and what it needs, as the documentation packs them."""
    return pack_environment(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Spark as installed, but with a folder of this test's own for what workers leave."""
    home = tmp_path / "spark-home"
    home.mkdir()
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    for path in Path(found.origin).parent.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    return home


@pytest.mark.long
def test_an_archive_brings_the_executors_python(
    archive: Path,
    spark_home: Path,
    windows: OrderedWindows,
    orders: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In client mode it must lie unpacked where the driver runs, too: Spark plans the reading with it there."""
    job = application(tmp_path, TELLING)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "helper.py").write_text("VALUE = 7")
    how = replace(
        small(**{"spark.executor.memory": "512m"}),
        master="local-cluster[2,1,1024]",
        archives=[f"{archive}#environment"],
        py_files=[str(tmp_path / "modules" / "helper.py")],
        environment={
            "SPARK_HOME": str(spark_home),
            "PYSPARK_PYTHON": "./environment/bin/python",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        timeout_s=600,
    )
    monkeypatch.chdir(tmp_path)
    plan = windows.plan(before(orders, 25, Earliest()), "w")
    with pytest.raises(ConfigError, match=r"workers' Python \./environment/bin/python cannot be"):
        submit(plan, job, windows.settings, tmp_path / "out", how=how)

    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "environment", filter="fully_trusted")
    done = windows.deliver(
        plan,
        lambda plan: submit(plan, job, windows.settings, tmp_path / "out", how=how),
        StagedOutput.found,
    )
    assert done.plan.status is WindowStatus.PUBLISHED
    assert (done.record.result or {})["facts"]["records"] == 5
    told = job.with_suffix(".told").read_text()
    pythons = set(re.findall(r'"python": "([^"]+)"', told))
    assert pythons
    assert all(f"{spark_home}/work/app-" in python for python in pythons), pythons
    assert all(python.endswith("/environment/bin/python") for python in pythons)
    assert told.count('"helper": 7') == 2


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("master", "words"),
    [
        ("spark://127.0.0.1:1", "not supported for python applications on standalone clusters"),
        ("local[1]", 'not compatible with master "local"'),
    ],
)
def test_spark_itself_refuses_these_in_cluster_mode(
    tmp_path: Path, master: str, words: str
) -> None:
    """The reason why `SparkSubmit` does."""
    command = [SparkSubmit().command, "--master", master, "--deploy-mode", "cluster"]
    done = subprocess.run(
        [*command, str(application(tmp_path, COPY))],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode != 0
    assert words in done.stderr + done.stdout


@pytest.fixture
def master(spark_home: Path, tmp_path: Path) -> Iterator[str]:
    """A standalone master and one worker; the master's address."""
    processes = list[subprocess.Popen[bytes]]()

    def start(*words: str) -> Path:
        log = tmp_path / f"{words[0].rpartition('.')[2]}.log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [spark_home / "bin" / "spark-class", *words],
                stdout=file,
                stderr=file,
                env={**os.environ, "SPARK_HOME": str(spark_home)},
                start_new_session=True,
            )
        processes.append(process)
        return log

    try:
        where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = start("org.apache.spark.deploy.master.Master", *where)
        pattern = re.compile(r"Starting Spark master at (spark://\S+:[1-9]\d*)")
        wait_for(lambda: bool(pattern.search(log.read_text())), "the master is up")
        found = pattern.search(log.read_text())
        assert found is not None
        work = ("--work-dir", str(tmp_path / "work"), "--cores", "2", "--memory", "1g")
        log_worker = start("org.apache.spark.deploy.worker.Worker", *where, *work, found[1])
        wait_for(lambda: "Successfully registered" in log_worker.read_text(), "the worker is up")
        yield found[1]
    finally:
        for process in processes:
            process.terminate()
            process.wait(60)


@pytest.mark.long
def test_a_standalone_master_in_client_mode(
    master: str, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Executors of a real worker read and write the window; the driver is below the caller."""
    how = replace(small(**{"spark.executor.memory": "512m"}), master=master, timeout_s=600)
    job = application(tmp_path, COPY)
    done = windows.deliver(
        windows.plan(before(orders, 25, Earliest()), "w"),
        lambda plan: submit(plan, job, windows.settings, tmp_path / "out", how=how),
        StagedOutput.found,
    )
    assert done.plan.status is WindowStatus.PUBLISHED
    assert (done.record.result or {})["facts"]["records"] == 5
    # An executor was there: a folder of the worker's for this application.
    assert list((tmp_path / "work").glob("app-*"))
