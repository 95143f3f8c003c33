"""A real schema registry: Apicurio, through the interface that Confluent's clients speak."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from kafka_ordered_ops.embedded.cache import cache_dir, locked
from kafka_ordered_ops.embedded.jars import maven, sha256
from kafka_ordered_ops.embedded.java import find_java
from tests.support.relay_server import free_port

_VERSION: Final = "3.3.3"
_SHA256: Final = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_START_S: Final = 120.0
#: It starts in 3 s with these, instead of 17.
_JAVA: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class NotServedError(Exception):
    """Maven Central, or its mirror, does not serve the registry."""


class Registry:
    """A registry that runs; its schemas are in memory."""

    def __init__(self, url: str) -> None:
        #: For clients.
        self.url = url

    def register(
        self,
        subject: str,
        schema: Any,
        references: Sequence[dict[str, Any]] = (),
        kind: str = "AVRO",
    ) -> int:
        """Register a schema; return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": kind, "references": list(references)}
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            json.dumps(body).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(json.load(answer)["id"])


@contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """Run a registry on the loopback interface."""
    folder.mkdir(parents=True, exist_ok=True)
    port, health_port = free_port(), free_port()
    properties = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": health_port,
    }
    command = [str(find_java(21).executable), *_JAVA]
    command += [f"-D{name}={value}" for name, value in properties.items()]
    command += ["-jar", str(_installed() / "quarkus-run.jar")]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        deadline = time.monotonic() + _START_S
        while not _answers(f"{url}/subjects"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no registry: {(folder / 'log').read_text()[-2_000:]}")
            time.sleep(0.1)
        yield Registry(url)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _installed() -> Path:
    """Return the folder of the unpacked registry, downloaded if this is the first time."""
    folder = cache_dir() / f"apicurio-{_VERSION}-{_SHA256[:16]}"
    with locked("jars"):
        if not folder.is_dir():
            project = maven().project("io.apicurio", "apicurio-registry-app")
            component = project.at_version(_VERSION)
            try:
                archive = Path(component.artifact(classifier="all", packaging="tar.gz").resolve())
            except Exception as error:
                raise NotServedError(f"{type(error).__name__}: {error}") from error
            assert sha256(archive) == _SHA256
            unpacked = folder.with_name(f"{folder.name}.tmp")
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")
            unpacked.rename(folder)
    return folder
