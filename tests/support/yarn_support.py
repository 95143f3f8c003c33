"""A real YARN: Hadoop's own mini cluster, a resource manager and a node manager in one Java, which start real containers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayParameters,
    JavaGateway,
)

from kafka_ordered_ops.embedded.jars import listed_jars
from kafka_ordered_ops.embedded.java import find_java
from tests.support.cluster import below
from tests.support.submit_support import spark_home

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
        yield _started(gateway.jvm, folder, file_system)
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
