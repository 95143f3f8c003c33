"""Iceberg's own REST catalogue, the server of its compatibility tests, whose tables are in a folder."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kafka_ordered_ops.embedded.jars import listed_jars
from kafka_ordered_ops.embedded.java import find_java
from tests.support.airflow_support import free_ports
from tests.support.sessions import end_session
from tests.support.submit_support import spark_home

_JARS: Final = Path(__file__).with_name("iceberg_rest.sha256")
_SERVER: Final = "org.apache.iceberg.rest.RESTCatalogServer"
_START_S: Final = 120.0
#: It starts in less time with these.
_JAVA: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@contextmanager
def iceberg_rest(folder: Path) -> Iterator[str]:
    """Run a catalogue; gives its address."""
    folder.mkdir(parents=True, exist_ok=True)
    [port] = free_ports(1)
    # What they need besides, such as Jackson and Hadoop's files, is among Spark's jars.
    jars = ":".join([*map(str, listed_jars(_JARS, "iceberg-rest")), f"{spark_home()}/jars/*"])
    # Two underscores are a hyphen of a catalogue's property, one is a dot.
    properties = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_WAREHOUSE": str(folder / "warehouse"),
        "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
    }
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [str(find_java().executable), *_JAVA, "-cp", jars, _SERVER],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **properties},
            cwd=folder,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _START_S
        while not _answers(f"{url}/v1/config"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no catalogue: {(folder / 'log').read_text()[-2_000:]}")
            time.sleep(0.1)
        yield url
    finally:
        end_session(process)


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False
