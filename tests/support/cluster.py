"""A standalone cluster of Spark whose hosts share nothing: each worker sees no file of the driver's, nor of the other.

A host is a mount namespace of this machine: the folder for temporary files, the home folder, this repository and its
environment are empty there, and private. What it has is what hosts of a cluster have: Spark, a Java, and a Python
without this package; or with it, where that is installed on every host.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.submit_support import java_home, spark_home, wait_for

REPOSITORY = Path(__file__).parents[2]

#: Where a host has what it is given; empty on the machine.
_GIVEN = Path("/mnt")
_TEMPORARY = Path("/tmp")

#: Mounts, then the program: SPARK JAVA PYTHON PRIVATE INSTALLED HIDDEN... -- PROGRAM...
_ENTER = f"""
set -eu
spark=$1 java=$2 python=$3 private=$4 installed=$5
shift 5
mount -t tmpfs hosts {_GIVEN}
mkdir {_GIVEN}/spark {_GIVEN}/java {_GIVEN}/python
mount --bind "$spark" {_GIVEN}/spark
mount --bind "$java" {_GIVEN}/java
mount --bind "$python" {_GIVEN}/python
if [ -n "$installed" ]; then mkdir {_GIVEN}/installed; mount --bind "$installed" {_GIVEN}/installed; fi
mount --bind "$private" {_TEMPORARY}
while [ "$1" != -- ]; do
  if [ -d "$1" ] && [ "$1" != {_TEMPORARY} ]; then mount -t tmpfs hosts "$1"; fi
  shift
done
shift
mkdir -p "$python" {_TEMPORARY}/work
mount --bind {_GIVEN}/python "$python"
if [ -n "$installed" ]; then mkdir -p "$installed"; mount --bind {_GIVEN}/installed "$installed"; fi
cd {_TEMPORARY}
exec "$@"
"""


def pack_environment(folder: Path) -> Path:
    """This package and what it needs, as the documentation packs them."""
    uv, environment = str(Path(sys.executable).with_name("uv")), folder / "env"
    python, pack = str(environment / "bin" / "python"), str(environment / "bin" / "venv-pack")
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(environment)],
        [uv, "pip", "install", "--quiet", "--python", python, str(REPOSITORY), "venv-pack"],
        [pack, "-q", "-p", str(environment), "-o", str(folder / "env.tar.gz")],
    ):
        subprocess.run(command, check=True, timeout=280)
    return folder / "env.tar.gz"


@dataclass
class Host:
    """A worker with everything that runs on its host."""

    process: subprocess.Popen[bytes]
    log: Path
    #: Its mount namespace.
    name: str = ""

    @property
    def pids(self) -> list[int]:
        """Every process on the host."""
        return [int(pid) for pid in _pids() if _host_of(pid) == self.name]

    def has(self, pid: int) -> bool:
        """Whether a process is on this host."""
        return _host_of(str(pid)) == self.name

    def die(self) -> None:
        """The power is cut: every process of the host is killed."""
        self.process.kill()
        self.process.wait(60)
        while pids := self.pids:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@dataclass
class Cluster:
    """A master and its hosts."""

    folder: Path
    master: str = ""
    #: Whether every host has this package and what it needs: the repository, with its environment in it.
    installed: bool = False
    hosts: list[Host] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(2), repr=False)

    def add_host(self) -> Host:
        """Start a host with one worker of one core."""
        private = Path(tempfile.mkdtemp(prefix="host-", dir=self.folder))
        log = self.folder / f"{private.name}.log"
        java = java_home() or Path(os.path.realpath(str(shutil.which("java")))).parents[1]
        python = Path(sys.base_prefix)
        hidden = [_TEMPORARY, self.folder, Path.home(), REPOSITORY, Path(sys.prefix)]
        installed = REPOSITORY if self.installed else ""
        arguments = [spark_home(), java, python, private, installed, *hidden]
        worker = [_GIVEN / "spark" / "bin" / "spark-class", "org.apache.spark.deploy.worker.Worker"]
        # An address of its own, or Spark reads the other's shuffled rows from what it takes for its own disk.
        options = ["--host", f"127.0.0.{next(self._numbers)}", "--port", "0", "--webui-port", "0"]
        options += ["--work-dir", f"{_TEMPORARY}/work", "--cores", "1", "--memory", "1g"]
        process = _start(
            [
                *("unshare", "--mount", "--propagation", "private"),
                *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
                *("sh", "-c", _ENTER, "host", *arguments),
                *("--", *worker, *options, self.master),
            ],
            log,
            {
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": str(_TEMPORARY),
                "JAVA_HOME": str(_GIVEN / "java"),
                "SPARK_HOME": str(_GIVEN / "spark"),
                "SPARK_DAEMON_MEMORY": "256m",
                # An executor has a copy of the whole environment.
                "SPARK_WORKER_OPTS": (
                    "-Dspark.worker.cleanup.enabled=true -Dspark.worker.cleanup.interval=20 "
                    "-Dspark.worker.cleanup.appDataTtl=1"
                ),
            },
        )
        host = Host(process, log)
        self.hosts.append(host)
        wait_for(
            lambda: "Successfully registered" in log.read_text() or process.poll() is not None,
            "a worker is up",
        )
        assert process.poll() is None, log.read_text()
        host.name = os.readlink(f"/proc/{process.pid}/ns/mnt")
        assert host.name != os.readlink("/proc/self/ns/mnt")
        return host

    def host_of(self, pid: int) -> Host:
        """The host on which a process is."""
        (found,) = (host for host in self.hosts if host.has(pid))
        return found

    def end(self) -> None:
        """All hosts die."""
        for host in [*self.hosts]:
            self.lose(host)

    def lose(self, host: Host) -> None:
        """A host dies, and is no part of the cluster any more."""
        host.die()
        self.hosts.remove(host)


@contextmanager
def cluster(hosts: int, *, installed: bool = False) -> Iterator[Cluster]:
    """A master and some hosts."""
    with ExitStack() as stack:
        # What workers leave is large: not in a folder that pytest keeps.
        folder = Path(tempfile.mkdtemp(prefix="koo-cluster-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        log = folder / "master.log"
        where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = _start(
            [
                spark_home() / "bin" / "spark-class",
                "org.apache.spark.deploy.master.Master",
                *where,
            ],
            log,
            {
                **os.environ,
                "SPARK_HOME": str(spark_home()),
                "SPARK_DAEMON_MEMORY": "256m",
                # Of a worker that is silent, its executors are taken to be lost.
                "SPARK_MASTER_OPTS": "-Dspark.worker.timeout=20",
            },
        )
        stack.callback(_end, master)
        pattern = re.compile(r"Starting Spark master at (spark://\S+:[1-9]\d*)")
        wait_for(lambda: bool(pattern.search(log.read_text())), "the master is up")
        found = pattern.search(log.read_text())
        assert found is not None
        made = Cluster(folder, found[1], installed)
        stack.callback(made.end)
        for _ in range(hosts):
            made.add_host()
        yield made


def why_no_hosts() -> str | None:
    """Why this machine can have no such hosts, or None."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    tried = ["unshare", "--mount", "--propagation", "private", *user]
    if not shutil.which("unshare"):
        return "there is no unshare"
    done = subprocess.run(
        [*tried, "mount", "-t", "tmpfs", "hosts", str(_GIVEN)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stderr.strip() if done.returncode else None


# --- holding tasks -------------------------------------------------------------------------------


@dataclass
class Held:
    """A task that waits at the gate."""

    pid: int
    connection: socket.socket = field(repr=False)

    @property
    def executor(self) -> int:
        """The process of its executor."""
        return ancestor(self.pid, "CoarseGrainedExecutorBackend")


class Gate:
    """Tasks connect and wait until they are let pass; the first one for a given partition is kept."""

    def __init__(self, holds: int | None) -> None:
        # Not by its attempt: a stage that is run again counts from zero.
        self._holds = holds
        self.held: Held | None = None
        #: The partitions of those that were let pass.
        self.passed: list[int] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where tasks connect."""
        host, port = self._server.getsockname()[:2]
        return f"{host}:{port}"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            # A task may be killed at any time.
            with suppress(OSError):
                self._receive(connection)

    def _receive(self, connection: socket.socket) -> None:
        words = b""
        while not words.endswith(b"\n"):
            more = connection.recv(100)
            if not more:
                connection.close()
                return
            words += more
        pid, partition = map(int, words.split())
        if partition == self._holds and self.held is None:
            self.held = Held(pid, connection)
            return
        self.passed.append(partition)
        with connection:
            connection.sendall(b"!")

    def close(self) -> None:
        """Nobody waits any more."""
        # Closing alone does not wake the thread that accepts.
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(60)
        if self.held is not None:
            self.held.connection.close()


@contextmanager
def gate_for(holds: int | None = None) -> Iterator[Gate]:
    """A gate that is closed after the block."""
    gate = Gate(holds)
    try:
        yield gate
    finally:
        gate.close()


# --- processes -----------------------------------------------------------------------------------


def ancestor(pid: int, word: str) -> int:
    """The nearest process above another one, in whose command a word is."""
    while word.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = _parent(pid)
        assert pid > 1, word
    return pid


def below(pid: int, word: str) -> list[int]:
    """The processes below another one in whose commands a word is."""
    found = []
    for one in map(int, _pids()):
        with suppress(OSError, IndexError, ValueError):
            if word.encode() in Path(f"/proc/{one}/cmdline").read_bytes() and _is_below(one, pid):
                found.append(one)
    return found


def _is_below(pid: int, top: int) -> bool:
    while pid > 1:
        pid = _parent(pid)
        if pid == top:
            return True
    return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _pids() -> list[str]:
    return [path.name for path in Path("/proc").glob("[0-9]*")]


def _host_of(pid: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return None


def _start(command: list[Any], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with open(log, "wb") as file:
        return subprocess.Popen(
            [str(one) for one in command],
            stdout=file,
            stderr=file,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(60)
