"""Celery's workers for a whole Airflow in tests, and the Redis between them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.support.airflow_support import free_ports
from tests.support.sessions import end_session, session_pids

_ROOT: Final = Path(__file__).parents[2]
_REDIS: Final = "redis-server"
_PROVIDER: Final = "airflow.providers.celery"
_START_S: Final = 180.0
_END_S: Final = 120.0
_LOOK_S: Final = 0.2
_LOG_CHARACTERS: Final = 6_000

#: What Celery writes once it takes tasks.
_READY: Final = " ready."

#: After so many seconds Airflow notices a lost task, and Redis gives a message that nobody has acknowledged to another
#: worker; by default after five minutes, and a day. A task that begins slowly must not be taken for either.
LOST_S: Final = 90
VISIBILITY_S: Final = 120


def missing() -> str | None:
    """Return why these tests cannot be run here; None if they can."""
    if shutil.which(_REDIS) is None:
        return f"there is no {_REDIS} on the path"
    with contextlib.suppress(ModuleNotFoundError):
        if find_spec(_PROVIDER) is not None:
            return None
    return "there is no Celery provider: run make test-celery"


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """A Redis that keeps nothing on the disk; gives its address."""
    folder.mkdir(parents=True)
    [port] = free_ports(1)
    command = [_REDIS, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*command, "--save", "", "--appendonly", "no"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _listens(port):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "Redis does not answer"
            time.sleep(_LOOK_S)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        end_session(process)


def celery_variables(broker: str) -> dict[str, str]:
    """The environment of an Airflow whose tasks are run by Celery, by the address of its Redis."""
    # For the executor, which is in a file of the tests, and for Celery, wherever it was found.
    modules = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {
        "CORE__EXECUTOR": "tests.support.celery_executor.StandaloneCeleryExecutor",
        "CELERY__BROKER_URL": broker,
        "CELERY__RESULT_BACKEND": broker,
        "CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": str(VISIBILITY_S),
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(LOST_S),
        # On a busy machine none of its own parts counts as dead.
        "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "300",
        "DAG_PROCESSOR__HEALTH_CHECK_THRESHOLD": "300",
        "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "300",
    }
    return {
        "PYTHONPATH": os.pathsep.join(modules),
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
    }


class CeleryWorker:
    """One `airflow celery worker`: a process that takes messages, and one for each task below it.

    Args:
        name: tells it from others.
        folder: for its log.
        environment: as of Airflow's other parts.
        concurrency: how many tasks it runs at once.
    """

    def __init__(
        self, name: str, folder: Path, environment: Mapping[str, str], concurrency: int = 2
    ) -> None:
        self.name = name
        self._log = folder / f"worker-{name}.log"
        command = ["celery", "worker", "--concurrency", str(concurrency), "--skip-serve-logs"]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airflow", *command, "--celery-hostname", name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                # Its tasks are in this session, too, each with a process group of its own.
                start_new_session=True,
            )

    def await_ready(self) -> None:
        """Wait until it takes tasks."""
        self.await_log(_READY, _START_S)

    def await_log(self, text: str, timeout_s: float = _END_S) -> None:
        """Wait until it has written this text."""
        deadline = time.monotonic() + timeout_s
        while text not in self.log:
            assert self._process.poll() is None, f"worker {self.name} has ended:\n{self._tail}"
            assert time.monotonic() < deadline, f"no {text!r} of {self.name}:\n{self._tail}"
            time.sleep(_LOOK_S)

    def has(self, pid: int) -> bool:
        """Whether a process is one of its own, or of its tasks."""
        return pid in session_pids(self._process.pid)

    @property
    def is_running(self) -> bool:
        """Whether its first process is."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has written."""
        return self._log.read_text(errors="replace")

    def shut_down(self) -> None:
        """SIGTERM to its first process, as a container's init sends it: it ends when its tasks have ended."""
        os.kill(self._process.pid, signal.SIGTERM)

    def signal_all(self, number: signal.Signals) -> None:
        """A signal to all of its processes and tasks, as a machine that goes down sends it."""
        for pid in session_pids(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def await_end(self) -> None:
        """Wait until its first process is gone."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"worker {self.name} does not end:\n{self._tail}") from None

    def end(self) -> None:
        """End whatever is left of it."""
        end_session(self._process)

    @property
    def _tail(self) -> str:
        return self.log[-_LOG_CHARACTERS:]


class Workers:
    """The workers of an Airflow, started one after another, of which none is left at the end."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._all: list[CeleryWorker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.end()

    @property
    def running(self) -> list[CeleryWorker]:
        """Those that have not ended."""
        return [worker for worker in self._all if worker.is_running]

    def keep(self, count: int) -> list[CeleryWorker]:
        """Start as many as are missing, and wait until all take tasks."""
        started = []
        while len(self.running) < count:
            started.append(CeleryWorker(f"w{len(self._all)}", self._folder, self._environment))
            self._all.append(started[-1])
        for worker in started:
            worker.await_ready()
        return self.running

    def of(self, pid: int) -> CeleryWorker:
        """The worker that runs a process."""
        return next(worker for worker in self.running if worker.has(pid))

    def received(self, dag_id: str) -> int:
        """How many messages with a task of a DAG they have taken."""
        lines = self.log().splitlines()
        return sum("Executing workload" in line and f"dag_id='{dag_id}'" in line for line in lines)

    def log(self) -> str:
        """What all of them have written."""
        return "\n".join(worker.log for worker in self._all)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
