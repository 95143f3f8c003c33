"""A real Airflow for tests: `airflow standalone` on a folder and ports of its own, and its REST API."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from tests.support.airflow_scheduler import Scheduler
from tests.support.sessions import Process, end_session, processes

#: It makes a database and starts a dozen processes, each of which imports Airflow.
_START_TIMEOUT_S: Final = 420.0
#: A run may wait for others, for a Spark and for the scheduler, on a busy machine.
_TIMEOUT_S: Final = 240.0
_REQUEST_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.5

#: So many lines of a log belong into a failure's message.
_LOG_LINES: Final = 60

#: A task in one of these states stays there, if nobody clears it.
_FINAL: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

#: What it answers while its database is locked by another of its processes, or it is busy starting.
_TRY_AGAIN: Final = frozenset({500, 502, 503, 504})

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """One task of a run, as the API tells it."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in _FINAL


class Airflow:
    """A running Airflow, through its REST API. Every wait has a deadline, and says what it has seen instead.

    Args:
        url: where its API server is.
        log: what its processes have written.
        process: the one that has started the others.
        scheduler: one of the others, which may be started again.
    """

    def __init__(
        self, url: str, log: Path, process: subprocess.Popen[bytes], scheduler: Scheduler
    ) -> None:
        self.url = url
        self._log = log
        self._process = process
        self._scheduler = scheduler
        self._token = ""
        # Not by a proxy that the environment names.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of its parts."""
        return self._scheduler.environment

    def connect(self, conn_id: str, conn_type: str, extra: Json) -> None:
        """Makes a connection in the database, as people do in the browser."""
        body = {"connection_id": conn_id, "conn_type": conn_type, "extra": json.dumps(extra)}
        self.ask("POST", "/api/v2/connections", body)

    # --- DAGs and runs ---------------------------------------------------------------------------

    def import_errors(self) -> list[str]:
        """What is wrong with the DAG files."""
        found = self.ask("GET", "/api/v2/importErrors")["import_errors"]
        return [f"{one['filename']}: {one['stack_trace']}" for one in found]

    def dag_ids(self) -> set[str]:
        """All DAGs that have been parsed."""
        return {one["dag_id"] for one in self.ask("GET", "/api/v2/dags?limit=100")["dags"]}

    def unpause(self, dag_id: str) -> None:
        """Lets a DAG's runs begin; waits until its file has been parsed."""
        path = f"/api/v2/dags/{dag_id}"
        self.until(
            lambda: self._found(path),
            lambda: f"DAG {dag_id} to be there; wrong with the files: {self.import_errors()}",
        )
        self.ask("PATCH", f"{path}?update_mask=is_paused", {"is_paused": False})

    def trigger(self, dag_id: str, run_id: str, **body: Any) -> None:
        """Starts a manual run; without a logical date, and so without a data interval, unless told."""
        self.unpause(dag_id)
        self.ask(
            "POST",
            f"/api/v2/dags/{dag_id}/dagRuns",
            {"dag_run_id": run_id, "logical_date": None, **body},
        )

    def backfill(self, dag_id: str, first: str, last: str, *, backwards: bool = False) -> None:
        """Starts a backfill of the intervals, or partitions, from `first` to `last`, both of them too."""
        self.unpause(dag_id)
        self.ask(
            "POST",
            "/api/v2/backfills",
            {
                "dag_id": dag_id,
                "from_date": first,
                "to_date": last,
                "run_backwards": backwards,
                "max_active_runs": 1 if backwards else 10,
            },
        )

    def runs(self, dag_id: str) -> list[Json]:
        """All runs of a DAG, in the order in which they began."""
        query = urlencode({"order_by": "start_date", "limit": 100})
        found: list[Json] = self.ask("GET", f"/api/v2/dags/{dag_id}/dagRuns?{query}")["dag_runs"]
        return found

    def await_runs(self, dag_id: str, count: int, timeout_s: float = _TIMEOUT_S) -> list[Json]:
        """Waits until so many runs of a DAG have ended well; fails when one has not."""

        def over() -> list[Json]:
            runs = self.runs(dag_id)
            for run in runs:
                if run["state"] == "failed":
                    raise AssertionError(self._story(dag_id, run["dag_run_id"]))
            good = [run for run in runs if run["state"] == "success"]
            return runs if len(runs) == len(good) == count else []

        return self.until(
            over,
            lambda: f"{count} runs of {dag_id} to succeed:\n{self.stories(dag_id)}",
            timeout_s,
        )

    def await_run(self, dag_id: str, run_id: str) -> None:
        """Waits until a run has ended well; fails when it has ended otherwise."""

        def over() -> bool:
            state = self.ask("GET", _run_path(dag_id, run_id))["state"]
            assert state != "failed", self._story(dag_id, run_id)
            return bool(state == "success")

        self.until(over, lambda: f"success:\n{self._story(dag_id, run_id)}")

    def clear(self, dag_id: str, run_id: str, *tasks: str) -> None:
        """Has a run's tasks run again: these, or all."""
        self.ask(
            "POST",
            f"/api/v2/dags/{dag_id}/clearTaskInstances",
            {
                "dag_run_id": run_id,
                "dry_run": False,
                "only_failed": False,
                "reset_dag_runs": True,
                **({"task_ids": list(tasks)} if tasks else {}),
            },
        )

    # --- tasks -----------------------------------------------------------------------------------

    def tasks(self, dag_id: str, run_id: str) -> list[Task]:
        """A run's tasks, each as of its newest try."""
        found = self.ask("GET", f"{_run_path(dag_id, run_id)}/taskInstances?limit=100")
        return [
            Task(one["task_id"], one["map_index"], one["state"], one["try_number"])
            for one in found["task_instances"]
        ]

    def await_task(
        self, dag_id: str, run_id: str, task_id: str, state: str, *, tries: int = 1
    ) -> Task:
        """Waits until a task's newest try, at least so many, has come to a state; fails at another last one."""

        def there() -> Task | None:
            for task in self.tasks(dag_id, run_id):
                if task.task_id != task_id or task.try_number < tries:
                    continue
                if task.state == state:
                    return task
                if task.is_over:
                    raise AssertionError(
                        f"{task} is not to be {state}:\n{self._story(dag_id, run_id)}"
                    )
            return None

        return self.until(
            there,
            lambda: (
                f"try {tries} of {dag_id}.{task_id} to be {state}:\n{self._story(dag_id, run_id)}"
            ),
        )

    def fail(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Marks a task as failed, as a person does."""
        self.mark(dag_id, run_id, task_id, "failed")

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Marks a task, as a person does."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{task_id}"
        self.ask("PATCH", f"{path}?update_mask=new_state", {"new_state": state})

    def xcom(
        self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1
    ) -> Any:
        """What a task returned, or pushed under a key."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        value = self.ask("GET", f"{path}?map_index={map_index}")["value"]
        return json.loads(value) if isinstance(value, str) else value

    def log(
        self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = -1
    ) -> str:
        """What one attempt of a task has written."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{task_id}/logs/{try_number}"
        query = urlencode({"map_index": map_index, "full_content": "true"})
        content = self.ask("GET", f"{path}?{query}")["content"]
        return "\n".join(one if isinstance(one, str) else _line(one) for one in content)

    def asset_events(self, dag_id: str) -> list[Json]:
        """What a DAG's tasks have told of their assets."""
        query = urlencode({"source_dag_id": dag_id, "limit": 100})
        found: list[Json] = self.ask("GET", f"/api/v2/assets/events?{query}")["asset_events"]
        return found

    # --- the way there ---------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One question to the API; asked again as long as its database is locked."""
        deadline = time.monotonic() + _TIMEOUT_S
        again = False
        while True:
            try:
                return self._send(method, path, body)
            except urllib.error.HTTPError as error:
                told = error.read().decode(errors="replace")
                if again and error.code == 409:
                    return None  # It had been done, though the answer said otherwise.
                if error.code not in _TRY_AGAIN or time.monotonic() > deadline:
                    raise AssertionError(f"{method} {path}: {error.code} {told}") from error
            except TimeoutError:
                # Its server waits for the database, too, and for a core.
                if time.monotonic() > deadline:
                    raise
            again = True
            time.sleep(_LOOK_S)

    def until(
        self, find: Callable[[], T | None], what: Callable[[], str], timeout_s: float = _TIMEOUT_S
    ) -> T:
        """Asks again and again until there is an answer."""
        deadline = time.monotonic() + timeout_s
        while not (found := find()):
            self._check_alive()
            assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what()}"
            time.sleep(_LOOK_S)
        return found

    def await_healthy(self) -> None:
        """Waits until all four parts of it say that they are well, and the API answers."""

        def healthy() -> bool:
            with contextlib.suppress(OSError):  # An HTTP error is one, too.
                health = self._send("GET", "/api/v2/monitor/health")
                return all(part["status"] == "healthy" for part in health.values())
            return False

        self.until(healthy, lambda: f"Airflow to be healthy:\n{self.log_tail()}", _START_TIMEOUT_S)
        self._scheduler.first_pid = next(
            (one.pid for one in self._parts() if "scheduler" in one.command), None
        )
        self._token = self.ask("GET", "/auth/token")["access_token"]

    def log_tail(self) -> str:
        """The last lines of what its processes have written."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def stories(self, dag_id: str) -> str:
        """What has become of every run of a DAG."""
        return "\n".join(self._story(dag_id, run["dag_run_id"]) for run in self.runs(dag_id))

    def _story(self, dag_id: str, run_id: str) -> str:
        """What has become of a run: its tasks, and what those that did not succeed have written."""
        lines = [f"run {run_id} of {dag_id}:"]
        for task in self.tasks(dag_id, run_id):
            lines.append(f"- {task}")
            if task.state in ("success", "skipped", None) or not task.try_number:
                continue
            with contextlib.suppress(AssertionError):  # An attempt that wrote nothing has no log.
                text = self.log(dag_id, run_id, task.task_id, task.try_number, task.map_index)
                lines += text.splitlines()[-_LOG_LINES:]
        return "\n".join(lines)

    def _check_alive(self) -> None:
        """Fails when one of its parts has ended: the others would go on, and nothing would come of it."""
        assert self._process.poll() is None, f"Airflow has ended:\n{self.log_tail()}"
        if dead := self._dead():
            time.sleep(_LOOK_S)
            # Whoever is still not buried is one of its four parts; it waits for none of them.
            dead &= self._dead()
        if self._scheduler.has_ended(dead):
            assert self._scheduler.restart(), f"the scheduler has ended:\n{self.log_tail()}"
        others = dead - {self._scheduler.first_pid}
        assert not others, f"a part of Airflow has ended:\n{self.log_tail()}"

    def _dead(self) -> set[int]:
        return {one.pid for one in self._parts() if one.is_dead}

    def _parts(self) -> list[Process]:
        return [one for one in processes() if one.parent == self._process.pid]

    def _found(self, path: str) -> bool:
        try:
            self._send("GET", path)
        except urllib.error.HTTPError as error:
            if error.code != 404 and error.code not in _TRY_AGAIN:
                raise
            return False
        except TimeoutError:
            return False
        return True

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Accept": "application/json",
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {self._token}"} if self._token else {}),
            },
        )
        with self._opener.open(request, timeout=_REQUEST_TIMEOUT_S) as answer:
            return json.load(answer)


@contextmanager
def standalone(home: Path, dags: Path, environment: Mapping[str, str]) -> Iterator[Airflow]:
    """A whole Airflow: scheduler, DAG processor, triggerer and API server; none of it is left at the end.

    Args:
        home: an empty folder for its database, logs and settings.
        dags: the folder with DAG files.
        environment: more variables for it and all tasks.
    """
    api, worker_logs, trigger_logs = free_ports(3)
    url = f"http://127.0.0.1:{api}"
    settings = {
        "CORE__DAGS_FOLDER": str(dags),
        "CORE__LOAD_EXAMPLES": "False",
        # A dozen processes write to one file; by default they give up after five seconds.
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
        "CORE__PARALLELISM": "6",
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(api),
        "API__BASE_URL": url,
        "API__WORKERS": "1",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
        # How soon a lost worker is noticed; five minutes else.
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "45",
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    variables = {name: value for name, value in os.environ.items() if "AIRFLOW" not in name} | {
        "AIRFLOW_HOME": str(home),
        # Its parts are started by the name "airflow", and Spark by "spark-submit".
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        # The reason why a part has ended is in the log as soon as it has.
        "PYTHONUNBUFFERED": "1",
        **environment,
    }
    log = home / "standalone.log"
    with open(log, "ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=home,
            start_new_session=True,
        )
    scheduler = Scheduler(home, log, variables)
    airflow = Airflow(url, log, process, scheduler)
    try:
        airflow.await_healthy()
        yield airflow
    finally:
        for started in [process, *scheduler.restarted]:
            end_session(started)


def free_ports(count: int) -> Sequence[int]:
    """Ports that nobody listens on, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"


def _line(event: Mapping[str, Any]) -> str:
    """A log's event: its text, and what an exception says of itself."""
    details = [
        f"{error.get('exc_type')}: {error.get('exc_value')}"
        for error in event.get("error_detail") or ()
    ]
    return "\n".join([str(event.get("event")), *details])
