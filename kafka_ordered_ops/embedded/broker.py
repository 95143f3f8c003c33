"""One Kafka node, broker and controller in one process, on 127.0.0.1.

A start, step by step, and what a failure at each means:

1. The jars are checked against their list (`JarsError`), and a Java is found (`JavaNotFoundError`).
2. The data folder is formatted. Kafka's own tool does it, since only it knows the feature levels of its
   release (without them, transactions follow an old protocol). What it writes is the same each time but
   for two ids, so it runs once and its result is kept.
3. The guard starts the broker. From here on nothing can outlive this process.
4. The broker is asked for its metadata until it names itself. An open port would not do: it opens before
   the broker may serve. If the process ends first, or time runs out, `BrokerStartError` quotes its log.

An object is for one thread at a time.
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
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from kafka_ordered_ops.embedded import jars
from kafka_ordered_ops.embedded.cache import cache_dir, locked
from kafka_ordered_ops.embedded.errors import BrokerStartError, EmbeddedKafkaError
from kafka_ordered_ops.embedded.java import find_java

_HOST = "127.0.0.1"
_NODE_ID = 1

#: Below the range from which Linux and macOS draw the ports of outgoing connections: a port that is free
#: now is then not taken by one of those while the broker is down for a restart.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 100

#: Two programs may draw the same free port at the same moment; that they do so again is another matter.
_START_TRIES = 3
_IN_USE = "Address already in use"

#: A start takes 2 to 4 s on two idle cores; a machine busy with many of them is slower.
_START_TIMEOUT_S = 90.0
#: A broker that is told to end writes a clean-shutdown mark first. After this long it is killed.
_TERM_TIMEOUT_S = 30.0
_POLL_S = 0.05
_METADATA_TIMEOUT_S = 2.0
_LOG_TAIL_LINES = 30

# Little memory, a quick start, and no file outside the data folder.
_JVM_FLAGS = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)

# Kafka's own defaults hold for everything else; above all for what the package must cope with, such as
# topics that are created because somebody asked about them.
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": str(_NODE_ID),
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    # One node is all there is.
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
    # What a production broker does within minutes (aborting, deleting, compacting) happens within
    # seconds, so that a test can wait for it.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "log.retention.check.interval.ms": "2000",
    "log.cleaner.backoff.ms": "1000",
    # Half of the heap by default.
    "log.cleaner.dedupe.buffer.size": "4194304",
}


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that no outgoing connection will be given."""
    for port in random.sample(_PORTS, _PORT_TRIES):
        with socket.socket() as probe:
            # As Java's server sockets do: a port whose last connections are still fading is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return port
    raise EmbeddedKafkaError(f"{_PORT_TRIES} ports tried from {_PORTS}, and none is free")


@dataclass(frozen=True)
class Listener:
    """One more way in to the broker.

    `advertised_port` is what the broker tells its clients, for a proxy that stands before `port`.
    """

    name: str
    port: int
    protocol: str = "PLAINTEXT"
    advertised_port: int | None = None


class EmbeddedKafka:
    """A Kafka broker of this process's own: started, used, and gone with its data.

    `properties` are broker settings that go over the ones used here; `listeners` are further listeners.
    As a context manager it starts on entry and stops on exit.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        listeners: Sequence[Listener] = (),
        start_timeout_s: float = _START_TIMEOUT_S,
    ) -> None:
        self._properties = dict(properties or {})
        self._listeners = tuple(listeners)
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._guard: _Guard | None = None
        self._port = 0
        self._controller_port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """The value for ``bootstrap.servers``; the same until `stop`."""
        if self._folder is None:
            raise EmbeddedKafkaError("The embedded broker has no address before start()")
        return f"{_HOST}:{self._port}"

    @property
    def running(self) -> bool:
        """Whether the broker's process is there, paused or not."""
        return self._guard is not None and self._guard.alive

    @property
    def data_dir(self) -> Path:
        """The folder with the partitions' files, for tests that damage them."""
        return self._require_folder() / "data"

    @property
    def log_tail(self) -> str:
        """The last lines the broker wrote."""
        log = self._require_folder() / "broker.log"
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def start(self) -> None:
        """Starts with empty data, and returns when the broker answers."""
        if self._folder is not None:
            raise EmbeddedKafkaError(
                "The embedded broker was started already; stop() ends it, and restart() keeps its data"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-ordered-ops-"))
        try:
            for left in reversed(range(_START_TRIES)):
                self._port, self._controller_port = free_port(), free_port()
                try:
                    self._launch()
                    return
                except BrokerStartError as error:
                    if left == 0 or _IN_USE not in error.log_tail:
                        raise
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the broker and deletes its data; without a broker it does nothing."""
        # Nothing it could still write is wanted: no need for it to end in good order.
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """Ends the broker with SIGKILL, as a crash would; its data stay for `restart`."""
        if self._guard is not None:
            self._guard.end("kill")
            self._guard = None

    def pause(self) -> None:
        """Freezes the broker: its connections stay open, and nothing answers (SIGSTOP)."""
        self._require_guard().order("stop")

    def resume(self) -> None:
        """Lets a paused broker go on (SIGCONT)."""
        self._require_guard().order("cont")

    def restart(self) -> None:
        """Starts again on the same port and data; a broker that still runs ends in good order first."""
        self._require_folder()
        if self._guard is not None:
            # A paused process would take note of the request only when it goes on.
            self._guard.order("cont")
            self._guard.end("term", _TERM_TIMEOUT_S)
            self._guard = None
        self._launch()

    def _require_folder(self) -> Path:
        if self._folder is None:
            raise EmbeddedKafkaError("The embedded broker has not been started")
        return self._folder

    def _require_guard(self) -> _Guard:
        if self._guard is None or not self._guard.alive:
            raise EmbeddedKafkaError("The embedded broker is not running")
        return self._guard

    def _launch(self) -> None:
        folder = self._require_folder()
        settings = folder / "server.properties"
        settings.write_text(_as_properties(self._settings()), encoding="utf-8")
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
        if not self.data_dir.exists():
            _format(java, self.data_dir)
        with (folder / "broker.log").open("ab") as log:
            self._guard = _Guard([*java, "kafka.Kafka", str(settings)], log, remove=folder)
        try:
            self._await_ready(self._guard)
        except BaseException:
            self.kill()
            raise

    def _settings(self) -> dict[str, str]:
        ways_in = [Listener("PLAINTEXT", self._port), *self._listeners]
        inner = Listener("CONTROLLER", self._controller_port)
        return {
            **_SETTINGS,
            "log.dirs": str(self.data_dir),
            "controller.quorum.voters": f"{_NODE_ID}@{_HOST}:{inner.port}",
            "listeners": ",".join(f"{way.name}://{_HOST}:{way.port}" for way in [*ways_in, inner]),
            "advertised.listeners": ",".join(
                f"{way.name}://{_HOST}:{way.advertised_port or way.port}" for way in ways_in
            ),
            "listener.security.protocol.map": ",".join(
                f"{way.name}:{way.protocol}" for way in [*ways_in, inner]
            ),
            **self._properties,
        }

    def _await_ready(self, guard: _Guard) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            if not guard.alive:
                raise self._start_error("ended while starting")
            if _port_open(self._port) and _names_itself(self.bootstrap):
                return
            time.sleep(_POLL_S)
        raise self._start_error(f"did not answer within {self._start_timeout_s:.0f} s")

    def _start_error(self, what: str) -> BrokerStartError:
        tail = self.log_tail
        return BrokerStartError(
            f"The embedded Kafka {jars.KAFKA_VERSION} on {self.bootstrap} {what}. The end of its log:\n"
            f"{tail or '(nothing was logged)'}",
            log_tail=tail,
        )


class _Guard:
    """This side of `guard.py`: one run of the broker's process."""

    def __init__(self, command: Sequence[str], log: IO[bytes], *, remove: Path) -> None:
        script = Path(__file__).with_name("guard.py")
        # Python's pipes are not inherited: no other child of this process keeps the guard waiting.
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        try:
            self._process = subprocess.Popen(
                # Isolated: neither the current folder nor the environment decide what it imports.
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
        # The guard ends as soon as the broker has.
        return self._process.poll() is None

    def order(self, word: str) -> None:
        """Has an order carried out; the guard of a broker that has ended takes none, and need not."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, f"{word}\n".encode("ascii"))
            # A byte when it is done, or the end of the pipe with that of the guard.
            os.read(self._answers, 1)

    def end(self, word: str, timeout_s: float = 0) -> None:
        """Orders the end and waits for it; a broker that takes longer than `timeout_s` is killed."""
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


def _format(java: Sequence[str], data: Path) -> None:
    """Fills `data` with what a new node needs: Kafka's feature levels, and ids of its own."""
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
                "cluster.id": _kafka_uuid(),
                "node.id": str(_NODE_ID),
                "directory.id": _kafka_uuid(),
            }
        ),
        encoding="utf-8",
    )


def _make_template(java: Sequence[str], template: Path) -> None:
    """Has Kafka's own tool format a folder, and keeps the part that is the same for every cluster."""
    # In the cache, so that the move at the end is within one file system and happens in one step.
    with tempfile.TemporaryDirectory(dir=template.parent) as name:
        folder = Path(name)
        settings = folder / "server.properties"
        ports = {"PLAINTEXT": 1, "CONTROLLER": 2}  # Read, and not opened.
        settings.write_text(
            _as_properties(
                {
                    **_SETTINGS,
                    "log.dirs": str(folder / "data"),
                    "controller.quorum.voters": f"{_NODE_ID}@{_HOST}:{ports['CONTROLLER']}",
                    "listeners": ",".join(f"{name}://{_HOST}:{p}" for name, p in ports.items()),
                }
            ),
            encoding="utf-8",
        )
        tool = ["kafka.tools.StorageTool", "format", "-t", _kafka_uuid(), "-c", str(settings)]
        done = subprocess.run(
            [*java, *tool],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_START_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise BrokerStartError(
                f"Kafka's storage tool failed with status {done.returncode}:\n{done.stdout}",
                log_tail=done.stdout,
            )
        (folder / "data" / "bootstrap.checkpoint").replace(template)


def _kafka_uuid() -> str:
    """A random id in Kafka's form: 16 bytes in URL-safe base64, which may not begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode("ascii")
        if not text.startswith("-"):
            return text


def _as_properties(settings: Mapping[str, str]) -> str:
    """Java's properties format, which reads a backslash as an escape and a line as an entry."""
    escape = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})
    return "".join(f"{key}={value.translate(escape)}\n" for key, value in settings.items())


def _port_open(port: int) -> bool:
    """Whether somebody listens: much cheaper to ask than a client that has to be told no."""
    try:
        with socket.create_connection((_HOST, port), timeout=_METADATA_TIMEOUT_S):
            return True
    except OSError:
        return False


def _names_itself(bootstrap: str) -> bool:
    """Whether the broker answers a metadata request with itself among the living."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    # A broker that is still starting refuses, hangs or answers nothing; the caller asks again, and the
    # client's own words about it would only look like trouble.
    quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}
    client = AdminClient({"bootstrap.servers": bootstrap, **quiet})
    try:
        brokers = client.list_topics(timeout=_METADATA_TIMEOUT_S).brokers
    except KafkaException:
        return False
    return _NODE_ID in brokers
