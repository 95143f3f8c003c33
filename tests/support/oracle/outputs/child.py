"""A process of its own that acts for a step, and ends by ``kill -9`` where its step says; see `InProcesses`.

What it is to do comes pickled on standard input: closures travel by the pickler that PySpark brings along.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kafka_ordered_ops import ClientSettings, KafkaOrderedOpsError, OrderedWindows
from tests.support.oracle.outputs.deliveries import Deliveries
from tests.support.oracle.outputs.judge import Heard
from tests.support.oracle.outputs.kills import Ports, Process
from tests.support.oracle.outputs.processes import Act, Processes
from tests.support.oracle.outputs.roots import Roots
from tests.support.oracle.outputs.steps import History, Kill

_TIMEOUT_S = 300


class Stranger(Deliveries):
    """What a step's function reaches of the life of its history, in another process."""

    def __init__(self, told: History, roots: Roots, ledgers: dict[Any, str]) -> None:
        self.told, self.roots, self._ledgers = told, roots, ledgers

    def ledger_topic(self, actor: Any) -> str:
        return self._ledgers[actor]


@dataclass(frozen=True)
class _Errand:
    settings: ClientSettings
    group_id: str
    ledger_topic: str
    now_ms: int
    roots: Roots
    paths: tuple[str, ...]
    act: Act
    kill: Kill


class InProcesses(Processes):
    """Lets whoever is to die be a process of its own; whoever lives acts in this one."""

    def _act(self, heard: Heard, act: Act, kill: Kill | None) -> None:
        if kill is None:
            super()._act(heard, act, kill)
            return
        world = self._account.clusters[heard.actor.cluster].world
        errand = _Errand(
            world.settings,
            world.named(heard.actor.group),
            world.named(heard.actor.ledger),
            self._account.clusters.now_ms,
            self._account.roots,
            tuple(place.path for place in self._account.places),
            act,
            kill,
        )
        with tempfile.TemporaryDirectory() as folder:
            answer, stored = Path(folder, "answer"), Path(folder, "stored")
            command = [sys.executable, "-m", __name__, str(answer), str(stored)]
            told = _pickler().dumps(errand)
            child = subprocess.run(command, input=told, timeout=_TIMEOUT_S, stderr=subprocess.PIPE)
            heard.stored = len(stored.read_bytes()) if stored.exists() else 0
            if child.returncode == -signal.SIGKILL:
                heard.outcome = "killed"
                return
            assert child.returncode == 0, child.stderr.decode()[-3_000:]
            heard.outcome, heard.value, heard.error = pickle.loads(answer.read_bytes())


def _pickler() -> Any:
    from pyspark import cloudpickle

    return cloudpickle


class _Dying(Process):
    """Writes down each change of the ledger that is stored, and dies as processes do."""

    def __init__(self, kill: Kill, path: Path) -> None:
        self._path, self._count = path, 0
        super().__init__(kill)

    def die(self) -> NoReturn:
        self._path.write_bytes(b"." * self.stored)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody outlives that")


def main(answer: str, stored: str) -> None:
    """Run an errand; write down what came of it."""
    logging.disable(logging.CRITICAL)
    errand: _Errand = pickle.loads(sys.stdin.buffer.read())
    before = _seen(errand)
    ports = Ports(lambda: bool(before - _seen(errand)))
    outcome: tuple[str, Any, BaseException | None]
    service = OrderedWindows(
        errand.settings,
        errand.group_id,
        ledger_topic=errand.ledger_topic,
        timeout_s=60,
        clock=lambda: errand.now_ms / 1000,
    )
    one = _Dying(errand.kill, Path(stored))
    with errand.roots.opened(), ports.opened(), service as windows, ports.running(one):
        try:
            outcome = "done", errand.act(windows), None
        except KafkaOrderedOpsError as error:
            outcome = "refused", None, error
    Path(stored).write_bytes(b"." * one.stored)
    Path(answer).write_bytes(_pickler().dumps(outcome))


def _seen(errand: _Errand) -> set[str]:
    return {
        row.name
        for path in errand.paths
        for rows in errand.roots.seen(path).values()
        for row in rows
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
