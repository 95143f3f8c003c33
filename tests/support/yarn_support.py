"""A real YARN: Hadoop's own mini cluster, a resource manager and a node manager in one Java, which start real containers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayParameters,
    JavaGateway,
)

from kafka_ordered_ops.embedded.jars import listed_jars
from kafka_ordered_ops.embedded.java import find_java
from kafka_ordered_ops.spark import SparkSubmit
from tests.support.cluster import below, pack_environment
from tests.support.hdfs_support import hdfs
from tests.support.submit_support import java_home, spark_home
from tests.support.yarn_fake import serving

#: The mini cluster is in the list of the mini HDFS; this one has what it needs besides.
_JARS: Final = (("hdfs.sha256", "hdfs-mini"), ("yarn.sha256", "yarn-mini"))
_START_S: Final = 280.0

#: A node manager with room for a driver and some executors, and a queue that gives a driver as much as it wants.
_CONF: Final = {
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.scheduler.maximum-allocation-mb": "4096",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    # A disk that is nearly full, and Java's appetite for address space, are no part of the tests.
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100.0",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
}


@contextmanager
def yarn(folder: Path, file_system: str) -> Iterator[Path]:
    """A YARN whose staging folder is in `file_system`; gives the folder with its settings (``HADOOP_CONF_DIR``)."""
    folder.mkdir(parents=True, exist_ok=True)
    java = find_java().executable
    here = Path(__file__)
    jars = [str(jar) for file, name in _JARS for jar in listed_jars(here.with_name(file), name)]
    jars += map(str, (spark_home() / "jars").glob("py4j-*.jar"))
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [
                str(java),
                "-Xmx512m",
                # Guice makes classes of its own.
                "--add-opens=java.base/java.lang=ALL-UNNAMED",
                "-cp",
                ":".join(jars),
                "py4j.GatewayServer",
                "--die-on-broken-pipe",
                "0",
            ],
            cwd=folder,
            env={**os.environ, "JAVA_HOME": str(java.resolve().parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline() or 0)
        if not port:
            raise RuntimeError(f"no Java: {(folder / 'log').read_text()[-2_000:]}")
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        settings = _started(gateway.jvm, folder, file_system)
        with serving(_Rest(gateway.jvm, settings).answer) as url:
            _name_rest(settings, url)
            yield settings
    finally:
        _end(process)


def _started(java: Any, folder: Path, file_system: str) -> Path:
    conf = java.org.apache.hadoop.yarn.conf.YarnConfiguration()
    for key, value in {**_CONF, "fs.defaultFS": file_system}.items():
        conf.set(key, value)
    mini = java.org.apache.hadoop.yarn.server.MiniYARNCluster("yarn", 1, 1, 1)
    mini.init(conf)
    mini.start()
    if not mini.waitForNodeManagersToConnect(int(_START_S * 1_000)):
        raise RuntimeError("the node manager does not find the resource manager")
    settings = folder / "conf"
    settings.mkdir()
    for name in ("core-site.xml", "yarn-site.xml"):
        file = java.java.io.FileOutputStream(str(settings / name))
        mini.getConfig().writeXml(file)
        file.close()
    return settings


class _Rest:
    """The resource manager's REST interface as Hadoop documents it: the mini cluster's own answers in other names."""

    def __init__(self, java: Any, settings: Path) -> None:
        yarn = java.org.apache.hadoop.yarn
        conf = yarn.conf.YarnConfiguration()
        for file in sorted(settings.iterdir()):
            conf.addResource(java.org.apache.hadoop.fs.Path(str(file)))
        self._client = yarn.client.api.YarnClient.createYarnClient()
        self._client.init(conf)
        self._client.start()
        self._id_of = yarn.api.records.ApplicationId.fromString

    def answer(self, method: str, path: str, body: Any) -> Any:
        """The answer to a request."""
        address = urlsplit(path)
        if address.path.endswith("/info"):
            return {"clusterInfo": {"state": "STARTED"}}
        if method == "PUT":
            assert body == {"state": "KILLED"}
            self._client.killApplication(self._id_of(address.path.split("/")[-2]))
            return body
        tags = parse_qs(address.query).get("applicationTags")
        every = [self._as_json(report) for report in self._client.getApplications()]
        found = [one for one in every if tags is None or tags[0] in one["applicationTags"]]
        return {"apps": {"app": found} if found else None}

    @staticmethod
    def _as_json(report: Any) -> dict[str, Any]:
        return {
            "id": report.getApplicationId().toString(),
            "state": report.getYarnApplicationState().toString(),
            "finalStatus": report.getFinalApplicationStatus().toString(),
            "applicationTags": ",".join(report.getApplicationTags()),
            "diagnostics": report.getDiagnostics(),
            "trackingUrl": report.getTrackingUrl(),
        }


def _name_rest(settings: Path, url: str) -> None:
    """Puts the address of the REST interface into Hadoop's settings."""
    file = settings / "yarn-site.xml"
    named = re.sub(
        r"(<name>yarn\.resourcemanager\.webapp\.address</name>\s*<value>)[^<]*",
        rf"\g<1>{urlsplit(url).netloc}",
        file.read_text(),
    )
    file.write_text(named)


def _end(process: subprocess.Popen[bytes]) -> None:
    # Containers are in sessions of their own; the node manager would start a lost one again.
    process.send_signal(signal.SIGSTOP)
    for pid in below(process.pid, ""):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.communicate()


def containers(main: str) -> list[int]:
    """The Javas in containers that run a class."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program, *words = (path / "cmdline").read_bytes().split(b"\0")
            if (
                program.endswith(b"/java")
                and main.encode() in words
                and b"\0CONTAINER_ID=" in (path / "environ").read_bytes()
            ):
                found.append(int(path.name))
    return found


@dataclass(frozen=True)
class Hadoop:
    """HDFS, and a YARN that stages in it."""

    hdfs: str
    conf: Path


@pytest.fixture(scope="module")
def hadoop() -> Iterator[Hadoop]:
    """Both; what containers leave is large, so not in a folder that pytest keeps."""
    folder = Path(tempfile.mkdtemp(prefix="koo-yarn-"))
    try:
        with hdfs(folder / "hdfs") as address, yarn(folder / "yarn", address) as conf:
            yield Hadoop(address, conf)
    finally:
        # Pytest shows this with a test that has failed: the caller's log has nothing of a container's.
        for log in sorted(folder.glob("yarn/target/**/container_*/std*")):
            print(f"\n{log.parent.name} {log.name}\n{log.read_text(errors='replace')[-4_000:]}")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What travels to the containers."""
    return pack_environment(tmp_path_factory.mktemp("archive"))


def yarn_submit(hadoop: Hadoop, archive: Path, mode: str, *, timeout_s: float) -> SparkSubmit:
    """As the documentation has it, and small."""
    python = "./environment/bin/python"
    return SparkSubmit(
        master="yarn",
        deploy_mode=mode,
        archives=[f"{archive}#environment"],
        conf={
            "spark.pyspark.python": python,
            **({"spark.pyspark.driver.python": sys.executable} if mode == "client" else {}),
            "spark.executor.instances": "1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.yarn.am.memory": "512m",
            "spark.ui.enabled": "false",
            # Not half a gigabyte of Spark's jars through HDFS.
            "spark.yarn.jars": f"local:{spark_home()}/jars/*",
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        },
        environment={"HADOOP_CONF_DIR": str(hadoop.conf), "SPARK_LOCAL_IP": "127.0.0.1"},
        java_home=java_home(),
        timeout_s=timeout_s,
    )
