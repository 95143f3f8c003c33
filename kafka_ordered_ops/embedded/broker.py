"""One Kafka node, broker and controller in one process, on 127.0.0.1.

The steps of a start, and the error of each:

1. The jars are checked against their list (`JarsError`), and a Java is found (`JavaNotFoundError`).
2. The data folder is formatted. Kafka's own tool does it, because only it knows the feature levels of its release
   (without them, transactions follow an old protocol). Its result is the same each time except for two ids, so it
   runs once and the result is cached.
3. The guard starts the broker. From here on nothing can outlive this process.
4. Metadata requests are repeated until the broker lists itself. An open port is not enough: it opens before
   the broker may serve. If the process ends first, or time runs out, `BrokerStartError` quotes its log.

An object is for one thread at a time.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kafka_ordered_ops.embedded import jars
from kafka_ordered_ops.embedded.errors import BrokerStartError, EmbeddedKafkaError
from kafka_ordered_ops.embedded.node import HOST, LOG_FILE, NODE_ID, Guard, free_ports, launch

#: Two programs may choose the same free port at the same moment; a second time is unlikely.
_START_TRIES = 3
_IN_USE = "Address already in use"

#: A start takes 2 to 4 s on two idle cores; a machine busy with many of them is slower.
_START_TIMEOUT_S = 90.0
#: A terminated broker writes a clean-shutdown mark first. After this long it is killed.
_TERM_TIMEOUT_S = 30.0
_POLL_S = 0.05
_METADATA_TIMEOUT_S = 2.0
_LOG_TAIL_LINES = 30


@dataclass(frozen=True)
class Listener:
    """A further listener of the broker.

    `advertised_port` is the port that the broker advertises to clients, for a proxy in front of `port`.
    """

    name: str
    port: int
    protocol: str = "PLAINTEXT"
    advertised_port: int | None = None


class EmbeddedKafka:
    """A Kafka broker owned by this process; its data is deleted at the end.

    `properties` are broker settings that override the ones of this package; `listeners` are further listeners.
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
        self._guard: Guard | None = None
        self._port = 0
        self._controller_port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """The value for ``bootstrap.servers``; the same until `stop`."""
        if self._folder is None:
            raise EmbeddedKafkaError("The embedded broker has no address before start()")
        return f"{HOST}:{self._port}"

    @property
    def running(self) -> bool:
        """Whether the broker's process exists, paused or not."""
        return self._guard is not None and self._guard.alive

    @property
    def data_dir(self) -> Path:
        """The folder with the partitions' files, for tests that damage them."""
        return self._require_folder() / "data"

    @property
    def log_tail(self) -> str:
        """The last lines the broker wrote."""
        log = self._require_folder() / LOG_FILE
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def start(self) -> None:
        """Start with empty data, and return when the broker answers."""
        if self._folder is not None:
            raise EmbeddedKafkaError(
                "The embedded broker was started already; stop() ends it, and restart() keeps its data"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-ordered-ops-"))
        try:
            others = {listener.port for listener in self._listeners}
            for tries_left in reversed(range(_START_TRIES)):
                self._port, self._controller_port = free_ports(2, but=others)
                try:
                    self._launch()
                    return
                except BrokerStartError as error:
                    if tries_left == 0 or _IN_USE not in error.log_tail:
                        raise
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the broker and delete its data; without a broker it does nothing."""
        # Its data is deleted, so it need not shut down cleanly.
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a crash would; its data stays for `restart`."""
        if self._guard is not None:
            self._guard.end("kill")
            self._guard = None

    def pause(self) -> None:
        """Freeze the broker: its connections stay open, and nothing answers (SIGSTOP)."""
        self._require_guard().order("stop")

    def resume(self) -> None:
        """Resume a paused broker (SIGCONT)."""
        self._require_guard().order("cont")

    def restart(self) -> None:
        """Start again on the same port and data; a broker that still runs is stopped cleanly first."""
        self._require_folder()
        if self._guard is not None:
            # A paused process would handle the request only when it continues.
            self._guard.order("cont")
            self._guard.end("term", _TERM_TIMEOUT_S)
            self._guard = None
        self._launch()

    def _require_folder(self) -> Path:
        if self._folder is None:
            raise EmbeddedKafkaError("The embedded broker has not been started")
        return self._folder

    def _require_guard(self) -> Guard:
        if self._guard is None or not self._guard.alive:
            raise EmbeddedKafkaError("The embedded broker is not running")
        return self._guard

    def _launch(self) -> None:
        self._guard = launch(self._require_folder(), self._settings())
        try:
            self._await_ready(self._guard)
        except BaseException:
            self.kill()
            raise

    def _settings(self) -> dict[str, str]:
        listeners = [Listener("PLAINTEXT", self._port), *self._listeners]
        inner = Listener("CONTROLLER", self._controller_port)
        return {
            "controller.quorum.voters": f"{NODE_ID}@{HOST}:{inner.port}",
            "listeners": ",".join(
                f"{each.name}://{HOST}:{each.port}" for each in [*listeners, inner]
            ),
            "advertised.listeners": ",".join(
                f"{each.name}://{HOST}:{each.advertised_port or each.port}" for each in listeners
            ),
            "listener.security.protocol.map": ",".join(
                f"{each.name}:{each.protocol}" for each in [*listeners, inner]
            ),
            **self._properties,
        }

    def _await_ready(self, guard: Guard) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            if not guard.alive:
                raise self._start_error("ended while starting")
            if _port_open(self._port) and _lists_itself(self.bootstrap):
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


def _port_open(port: int) -> bool:
    """Return whether a process listens on the port: much cheaper than a client that fails to connect."""
    try:
        with socket.create_connection((HOST, port), timeout=_METADATA_TIMEOUT_S):
            return True
    except OSError:
        return False


def _lists_itself(bootstrap: str) -> bool:
    """Return whether the broker answers a metadata request and lists itself as alive."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    # A broker that is still starting refuses, hangs or does not answer. The caller repeats the request, and the
    # client's own log lines would look like errors.
    quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}
    client = AdminClient({"bootstrap.servers": bootstrap, **quiet})
    try:
        brokers = client.list_topics(timeout=_METADATA_TIMEOUT_S).brokers
    except KafkaException:
        return False
    return NODE_ID in brokers
