"""Servers of the relay by the command line, which are killed, stopped, frozen and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.support.relay_server import free_port
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World


class Fleet:
    """Servers of one relay, each on a port of its own. A context manager that kills them all.

    Args:
        world: where the topic is.
        count: of servers.
        logs: a folder for what they log.
        options: further ones of the command.
        are_named: whether each has the same name after a restart.
        topic: the one that is served.
    """

    def __init__(
        self,
        world: World,
        count: int,
        logs: Path,
        *options: str,
        are_named: bool = True,
        topic: str = "orders",
    ) -> None:
        self._command = [sys.executable, "-m", "kafka_ordered_ops.cli", "relay", "serve"]
        self._command += [world.named(topic), "-b", str(world.settings.bootstrap_servers)]
        self._command += ["--relay-group", world.named("servers"), *options]
        self._are_named = are_named
        self._ports = [free_port() for _ in range(count)]
        self._log_path = logs / "servers.log"
        self._log = self._log_path.open("w")
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.urls = [f"http://127.0.0.1:{port}" for port in self._ports]

    def __enter__(self) -> Fleet:
        for number in range(len(self.urls)):
            self.start(number)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number in range(len(self.urls)):
            self.signal(number, signal.SIGCONT)
            self.kill(number)
        self._log.close()

    @property
    def log(self) -> str:
        """What all servers have logged."""
        return self._log_path.read_text()

    def start(self, number: int) -> None:
        """Start a server that does not run."""
        name = ["--server-name", f"server-{number}"] if self._are_named else []
        self._running[number] = subprocess.Popen(
            [*self._command, *name, "--bind", f"127.0.0.1:{self._ports[number]}"],
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal to a server."""
        self._running[number].send_signal(which)

    def kill(self, number: int) -> None:
        """Kill a server, and wait for its end."""
        self._running[number].kill()
        self._running[number].wait(TIMEOUT_S)

    def terminate(self, number: int) -> int:
        """Stop a server as an orchestrator does; return its exit code."""
        self._running[number].terminate()
        return self._running[number].wait(TIMEOUT_S)

    def status(self, number: int) -> Any:
        """What a server knows; None: it does not answer."""
        try:
            return httpx.get(f"{self.urls[number]}/v1/status", timeout=5).json()
        except httpx.TransportError:
            return None

    def owned(self, number: int) -> set[int]:
        """The partitions that a server hands out."""
        found = self.status(number)
        if found is None or not found["ready"]:
            return set()
        return {one["partition"] for one in found["partitions"] if one["is_mine"]}

    def await_owned(self, partitions: int, *servers: int) -> None:
        """Wait until some servers, by default all, hand out all partitions between them."""
        numbers = servers or range(len(self.urls))
        await_true(lambda: len(set().union(*map(self.owned, numbers))) == partitions)


def await_true(holds: Callable[[], bool], timeout_s: float = 2 * TIMEOUT_S) -> None:
    """Wait until something holds."""
    ends_at = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.05)
