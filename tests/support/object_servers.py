"""Servers of object stores from the registries of their languages, each with a bucket, for tests of the real protocol."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final

from kafka_ordered_ops.embedded.java import find_java
from tests.support.google_dialect import google_dialect
from tests.support.objects_support import s3_server

#: Built or installed once a machine; a second one finds them.
_TOOLS: Final = Path(
    os.environ.get("KOO_TEST_TOOLS", Path.home() / ".cache" / "kafka-ordered-ops-tests")
)
_VERSITYGW: Final = "v1.8.0"
_AZURITE: Final = "3.35.0"
_FAKE_GCS: Final = "v1.56.1"
_S3MOCK: Final = "4.11.0"
_INSTALL_S: Final = 1_800
_START_S: Final = 120.0

#: Azurite's one account, which its documentation prints.
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True)
class Server:
    """A store that is running."""

    #: Of a prefix in its bucket.
    root: str
    options: dict[str, Any]


@contextmanager
def moto(_: Path) -> Iterator[Server]:
    """S3, in this process."""
    with s3_server() as options:
        yield Server("s3://bucket/lake/orders", options)


@contextmanager
def versitygw(folder: Path, pid_file: Path | None = None) -> Iterator[Server]:
    """S3 over a folder, in Go.

    Args:
        folder: for its objects.
        pid_file: where its process is told, which is then started again whenever it dies.
    """
    program = _from_go("github.com/versity/versitygw/cmd/versitygw", _VERSITYGW)
    (folder / "bucket").mkdir(parents=True)
    (meta := folder.with_name("meta")).mkdir()
    port = _free_port()
    command = [str(program), "--access", "key", "--secret", "canary-s3cret"]
    with _running(
        [
            *command,
            "--port",
            f"127.0.0.1:{port}",
            "posix",
            "--sidecar",
            str(meta),
            str(folder),
        ],
        port,
        pid_file,
    ):
        yield _s3(port)


@contextmanager
def azurite(folder: Path) -> Iterator[Server]:
    """Azure's blobs, in JavaScript."""
    place = _TOOLS / f"azurite-{_AZURITE}"
    program = place / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        place.mkdir(parents=True, exist_ok=True)
        _install(["npm", "install", "--prefix", str(place), f"azurite@{_AZURITE}"])
    port = _free_port()
    folder.mkdir()
    command = [str(program), "--silent", "--blobPort", str(port), "--location", str(folder)]
    with _running([*command, "--skipApiVersionCheck"], port):
        endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        _make_container(endpoint, "container")
        options = {"account_name": _ACCOUNT, "account_key": _KEY, "endpoint": endpoint}
        yield Server(f"abfss://container@{_ACCOUNT}.dfs.core.windows.net/lake/orders", options)


@contextmanager
def fake_gcs(folder: Path) -> Iterator[Server]:
    """Google's storage, in Go."""
    program = _from_go("github.com/fsouza/fake-gcs-server", _FAKE_GCS)
    (folder / "bucket").mkdir(parents=True)
    port = _free_port()
    address = f"127.0.0.1:{port}"
    command = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    with (
        _running(
            [*command, "-public-host", address, "-backend", "memory", "-data", str(folder)], port
        ),
        google_dialect(f"http://{address}") as endpoint,
    ):
        options = {"base_url": endpoint, "bearer_token": "canary-t0ken"}
        yield Server("gs://bucket/lake/orders", options)


@contextmanager
def s3mock() -> Iterator[Server]:
    """S3 in Java. It looks whether a condition holds, and writes a moment later: no store to publish to."""
    program = _TOOLS / f"s3mock-{_S3MOCK}" / f"s3mock-{_S3MOCK}-exec.jar"
    if not program.exists():
        jar = f"-Dartifact=com.adobe.testing:s3mock:{_S3MOCK}:jar:exec"
        _install(["mvn", "--quiet", "dependency:copy", jar, f"-DoutputDirectory={program.parent}"])
    port, name = _free_port(), "--com.adobe.testing.s3mock"
    command = [str(find_java().executable), "-Xmx256m", "-jar", str(program)]
    command += [f"{name}.httpPort={port}", f"--server.port={_free_port()}"]
    with _running([*command, f"{name}.store.initialBuckets=bucket"], port):
        yield _s3(port)


SERVERS: Final[dict[str, Callable[[Path], Any]]] = {
    "moto": moto,
    "versitygw": versitygw,
    "azurite": azurite,
    "fake-gcs-server": fake_gcs,
}


def _s3(port: int) -> Server:
    options = {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "canary-s3cret",
        "aws_region": "us-east-1",
        "aws_endpoint": f"http://127.0.0.1:{port}",
    }
    return Server("s3://bucket/lake/orders", options)


def _from_go(module: str, version: str) -> Path:
    """Return a program that is built once a machine."""
    name = module.rpartition("/")[2]
    program = _TOOLS / f"{name}-{version}" / name
    if not program.exists():
        environment = {**os.environ, "GOBIN": str(program.parent)}
        _install(["go", "install", f"{module}@{version}"], env=environment)
    return program


def _install(command: list[str], env: dict[str, str] | None = None) -> None:
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"{command[0]} is needed to install what these tests run against")
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=_INSTALL_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2_000:]}")


@contextmanager
def _running(command: list[str], port: int, pid_file: Path | None = None) -> Iterator[None]:
    lock, ended, processes = (
        threading.Lock(),
        threading.Event(),
        [_started(command, port, pid_file)],
    )

    def revive() -> None:
        while True:
            processes[-1].wait()
            with lock:
                if ended.is_set():
                    return
                processes.append(_started(command, port, pid_file))

    if pid_file is not None:
        threading.Thread(target=revive, name="reviver", daemon=True).start()
    try:
        yield
    finally:
        with lock:
            ended.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(processes[-1].pid, signal.SIGKILL)
        processes[-1].wait()


def _started(command: list[str], port: int, pid_file: Path | None) -> subprocess.Popen[bytes]:
    """Start a server, and wait until it listens."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not listen on {port}") from None
            time.sleep(0.1)
    if pid_file is not None:
        pid_file.write_text(str(process.pid))
    return process


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _make_container(endpoint: str, name: str) -> None:
    """Make a container: the library does not."""
    date, version = formatdate(usegmt=True), "2021-12-02"
    headers = f"x-ms-date:{date}\nx-ms-version:{version}\n"
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    signed = f"PUT\n\n\n\n\n\n\n\n\n\n\n\n{headers}{resource}"
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(
        f"{endpoint}/{name}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
        },
    )
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"no container: {error.code} {error.read()[:500]!r}") from None
