"""One Kafka process: its settings, its data folder, and the guard that ends it with its parent.

The owner of a node, alone or one of several, decides its ids, its ports and the check until it counts as started.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from kafka_ordered_ops.embedded import jars
from kafka_ordered_ops.embedded.cache import cache_dir, locked
from kafka_ordered_ops.embedded.errors import BrokerStartError, EmbeddedKafkaError
from kafka_ordered_ops.embedded.java import find_java

HOST: Final = "127.0.0.1"
NODE_ID: Final = 1

#: Below the range from which Linux and macOS draw the ports of outgoing connections: a port that is free
#: now is then not taken by one of those while the broker is down for a restart.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 100

#: Formatting is one short run of a Java program.
_FORMAT_TIMEOUT_S = 90.0

#: A node's log, in its folder.
LOG_FILE: Final = "broker.log"

# Little memory, a quick start, and no file outside the data folder.
_JVM_FLAGS = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)

# All other settings have Kafka's own defaults, above all those that the package must cope with, such as topics that
# are created by a metadata request.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": str(NODE_ID),
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    # There is only one node.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # The default of 50 each is made at the first commit and the first transaction, file by file.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # A quick start, a quick first assignment to a group.
    "broker.heartbeat.interval.ms": "500",
    # A killed broker may register again only when its old session has run out.
    "broker.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
    # Actions that take minutes on a production broker (abort, delete, compact) take seconds, so that a test can wait
    # for them.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "log.retention.check.interval.ms": "2000",
    "log.cleaner.backoff.ms": "1000",
    # Half of the heap by default.
    "log.cleaner.dedupe.buffer.size": "4194304",
}


def free_ports(count: int, *, but: Collection[int] = ()) -> list[int]:
    """Return different free ports of 127.0.0.1 that no outgoing connection will get, none of `but` among them."""
    ports: list[int] = []
    # Not affected by a program's seed, which would give all its brokers the same ports.
    for port in random.SystemRandom().sample(_PORTS, _PORT_TRIES):
        if port in but:
            continue
        with socket.socket() as probe:
            # As Java's server sockets do: a port with connections in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise EmbeddedKafkaError(
        f"{_PORT_TRIES} ports tried from {_PORTS}, and fewer than {count} are free"
    )


def free_port() -> int:
    """Return a free port of 127.0.0.1 that no outgoing connection will get."""
    return free_ports(1)[0]


def launch(
    folder: Path,
    settings: Mapping[str, str],
    *,
    remove: Path | None = None,
    cluster_id: str | None = None,
) -> Guard:
    """Start a node with its data in ``folder/data``, which is formatted the first time.

    Args:
        folder: where the node keeps its settings, its log and its data.
        settings: broker settings, which override `SETTINGS`.
        remove: the folder to delete when this process ends without stopping the node; `folder` unless given.
        cluster_id: the cluster id of new data; `None` means a new one.
    """
    data = folder / "data"
    settings = {**SETTINGS, "log.dirs": str(data), **settings}
    file = folder / "server.properties"
    file.write_text(_as_properties(settings), encoding="utf-8")
    # Some jars unpack native libraries into the folder for temporary files, and a killed Java leaves
    # them behind.
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    java = [
        str(find_java().executable),
        *_JVM_FLAGS,
        f"-Djava.io.tmpdir={scratch}",
        "-cp",
        os.pathsep.join(str(jar) for jar in jars.class_path()),
    ]
    if not data.exists():
        _format(java, data, settings["node.id"], cluster_id or kafka_uuid())
    with (folder / LOG_FILE).open("ab") as log:
        return Guard([*java, "kafka.Kafka", str(file)], log, remove=remove or folder)


class Guard:
    """This side of `guard.py`: one run of the broker's process."""

    def __init__(self, command: Sequence[str], log: IO[bytes], *, remove: Path) -> None:
        script = Path(__file__).with_name("guard.py")
        # Python's pipes are not inherited: no other child of this process keeps the guard waiting.
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        try:
            self._process = subprocess.Popen(
                # Isolated: neither the current folder nor the environment affect its imports.
                [sys.executable, "-I", "-S", str(script), str(remove), *command],
                stdin=orders,
                stdout=answers,
                stderr=log,
                # Out of reach of a Ctrl-C in the terminal: the program may need its broker to end well.
                start_new_session=True,
            )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(orders)
            os.close(answers)

    @property
    def alive(self) -> bool:
        """Whether the program is there: the guard ends as soon as it has."""
        return self._process.poll() is None

    def order(self, word: str) -> None:
        """Execute an order; the guard of an ended broker accepts none."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, f"{word}\n".encode("ascii"))
            # A byte when the order is executed, or the end of the pipe when the guard ends.
            os.read(self._answers, 1)

    def end(self, word: str, timeout_s: float = 0) -> None:
        """Order the end and wait for it; kill a broker that takes longer than `timeout_s`."""
        self.order(word)
        try:
            self._process.wait(timeout_s or None)
        except subprocess.TimeoutExpired:
            self.order("kill")
            self._process.wait()
        self._close()

    def _close(self) -> None:
        os.close(self._orders)
        os.close(self._answers)


def _format(java: Sequence[str], data: Path, node_id: str, cluster_id: str) -> None:
    """Fill `data` with the files of a new node: Kafka's feature levels, and its own ids."""
    template = cache_dir() / f"kafka-{jars.KAFKA_VERSION}-bootstrap.checkpoint"
    if not template.exists():
        with locked("format"):
            if not template.exists():
                _make_template(java, template)
    data.mkdir()
    shutil.copyfile(template, data / "bootstrap.checkpoint")
    (data / "meta.properties").write_text(
        _as_properties(
            {
                "version": "1",
                "cluster.id": cluster_id,
                "node.id": node_id,
                "directory.id": kafka_uuid(),
            }
        ),
        encoding="utf-8",
    )


def _make_template(java: Sequence[str], template: Path) -> None:
    """Format a folder with Kafka's own tool, and keep the part that is the same for every cluster."""
    # In the cache, so that the move at the end is within one file system and happens in one step.
    with tempfile.TemporaryDirectory(dir=template.parent) as name:
        folder = Path(name)
        settings = folder / "server.properties"
        ports = {"PLAINTEXT": 1, "CONTROLLER": 2}  # Read, and not opened.
        settings.write_text(
            _as_properties(
                {
                    **SETTINGS,
                    "log.dirs": str(folder / "data"),
                    "controller.quorum.voters": f"{NODE_ID}@{HOST}:{ports['CONTROLLER']}",
                    "listeners": ",".join(f"{name}://{HOST}:{p}" for name, p in ports.items()),
                }
            ),
            encoding="utf-8",
        )
        tool = ["kafka.tools.StorageTool", "format", "-t", kafka_uuid(), "-c", str(settings)]
        done = subprocess.run(
            [*java, *tool],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FORMAT_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise BrokerStartError(
                f"Kafka's storage tool failed with status {done.returncode}:\n{done.stdout}",
                log_tail=done.stdout,
            )
        (folder / "data" / "bootstrap.checkpoint").replace(template)


def kafka_uuid() -> str:
    """Return a random id in Kafka's form: 16 bytes in URL-safe base64, which may not begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode("ascii")
        if not text.startswith("-"):
            return text


def _as_properties(settings: Mapping[str, str]) -> str:
    """Return Java's properties format, in which a backslash begins an escape and a line is an entry."""
    escape = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})
    return "".join(f"{key}={value.translate(escape)}\n" for key, value in settings.items())
