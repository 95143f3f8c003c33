"""A deferred application: submitted once, found again, committed as without a deferral; against what YARN answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ordered_ops import Application, ConfigError, JobFailedError, Window
from kafka_ordered_ops.airflow import OrderedWindowOperator
from kafka_ordered_ops.airflow.compat import AirflowFailException
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.spark.applications.yarn import ResourceManager
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.airflow_context import context_of, kafka_connection, offsets_in, outputs_of
from tests.support.airflow_versions import TaskDeferred, needs_trigger_kills
from tests.support.stages import control_of
from tests.support.submit_support import COPY, application
from tests.support.windows_support import TIMEOUT_S
from tests.support.yarn_fake import FakeYarn
from tests.support.yarn_fake import yarn as yarn

__all__ = ["kafka_connection"]

pytestmark = needs_trigger_kills

#: Seconds 0, 10, 20, 5, 15 at offsets 0 to 3 and 5.
IN_ORDER = [0, 3, 1, 5, 2]


@dataclass
class Task:
    """One task of one run; each execution is a new process's."""

    yarn: FakeYarn
    windows: OrderedWindows
    topic: str
    folder: Path

    @property
    def output(self) -> Path:
        """Where it writes."""
        return self.folder / "lake"

    @property
    def runs(self) -> list[Path]:
        """The files of its drivers."""
        return [path.parent for path in control_of(self.output).glob("detached/*/*/alive")]

    def operator(self, then: str = "", **more: Any) -> OrderedWindowOperator:
        """As another process makes it."""
        how = replace(self.yarn.submit(self.folder, then), **more)
        return OrderedWindowOperator(
            task_id="task",
            window=Window(self.topic, starting_offsets="earliest"),
            group_id=self.windows.group_id,
            mode="catch_up",
            output=str(self.output),
            job=Application(application(self.folder, COPY), submit=how),
            deferrable=True,
        )

    def deferred(self, *, max_tries: int = 0, **more: Any) -> Any:
        """Executes the task; returns its trigger, as the triggerer makes it."""
        with pytest.raises(TaskDeferred) as caught:
            self.operator(**more).execute(context_of(25, max_tries=max_tries))
        assert caught.value.method_name == "execute_complete"
        return revived(caught.value.trigger)

    def resumed(self, event: dict[str, Any], *, max_tries: int = 0) -> dict[str, Any]:
        """What the task returns, once its trigger has fired."""
        return self.operator().execute_complete(context_of(25, max_tries=max_tries), event)

    def drive(self, **more: bool) -> None:
        """Its driver runs, and exits with 0."""
        self.yarn.drive(self.windows.settings, **more)

    @property
    def attempts(self) -> list[tuple[WindowStatus, int]]:
        """What the ledger has of its window."""
        return [(one.status, one.plan.attempt) for one in self.windows.list()]


@pytest.fixture
def task(yarn: FakeYarn, windows: OrderedWindows, orders: str, tmp_path: Path) -> Task:
    """Over five of the six records."""
    return Task(yarn, windows, orders, tmp_path)


def revived(trigger: Any) -> Any:
    """A trigger as another process makes it, from JSON; it looks at once."""
    path, kwargs = trigger.serialize()
    text = json.dumps({**kwargs, "first_look": 0, "poke_interval": 0.05})
    return resolve_name(path)(**json.loads(text))


def fired(trigger: Any, meanwhile: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """The trigger's one event."""

    async def events() -> list[Any]:
        async with asyncio.timeout(TIMEOUT_S):
            asyncio.get_running_loop().call_later(0.2, meanwhile)
            return [event.payload async for event in trigger.run()]

    (payload,) = asyncio.run(events())
    assert isinstance(payload, dict)
    return payload


def test_a_deferred_window_is_delivered_like_any_other(task: Task) -> None:
    """Submitted, waited for, committed and published; the trigger has no secret, and no file is left."""
    trigger = task.deferred()
    assert set(trigger.serialize()[1]) == {
        "urls",
        "tag",
        "deadline",
        "poke_interval",
        "first_look",
    }
    assert task.attempts == [(WindowStatus.PLANNED, 1)]
    assert len(task.runs) == 1
    event = fired(trigger, task.drive)
    assert event == {"state": "FINISHED", "timed_out": False}
    assert outputs_of(task.output) == []
    facts = task.resumed(event)
    assert (facts["records"], facts["attempt"], facts["ran"]) == (5, 1, True)
    assert offsets_in(facts["output"]) == IN_ORDER
    assert task.attempts == [(WindowStatus.PUBLISHED, 1)]
    assert (len(task.yarn.applications), task.runs) == (1, [])


@pytest.mark.slow
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_retry_finds_the_driver_of_a_dead_worker(task: Task, has_ended: bool) -> None:
    """It waits for a driver that runs, and commits what another one wrote: never a second driver, nor a new attempt."""
    task.deferred()
    if has_ended:
        task.drive()
        facts = task.operator().execute(context_of(25, try_number=2))
    else:
        trigger = task.deferred()
        task.drive()
        facts = task.resumed(fired(trigger))
    assert (facts["records"], facts["attempt"]) == (5, 1)
    assert (len(task.yarn.applications), task.runs) == (1, [])


@pytest.mark.slow
def test_a_driver_that_was_never_accepted_is_not_waited_for(task: Task) -> None:
    """The worker died before the resource manager had it: its files are removed, and a newer attempt submits again."""
    task.deferred()
    (lost,) = task.runs
    task.yarn.applications.clear()
    trigger = task.deferred()
    assert lost not in task.runs
    task.drive()
    assert task.resumed(fired(trigger))["attempt"] == 2


@pytest.mark.slow
def test_a_failed_driver_fails_the_task_and_the_retry_submits_again(task: Task) -> None:
    """With its reason from YARN; what it staged and its files are gone."""
    trigger = task.deferred()
    task.drive()
    task.yarn.end("FINISHED", "FAILED", "User application exited with status 1")
    event = fired(trigger)
    with pytest.raises(JobFailedError, match="FINISHED, FAILED: User application exited with"):
        task.resumed(event)
    assert task.runs == []
    assert [*control_of(task.output).glob("stage/*/*")] == []
    trigger = task.deferred()
    task.drive()
    assert task.resumed(fired(trigger))["attempt"] == 2
    assert len(task.yarn.applications) == 2


def test_a_driver_without_a_result_is_a_failure(task: Task) -> None:
    """Exit code 0 is not enough, as without a deferral."""
    trigger = task.deferred()
    task.drive(writes=False)
    with pytest.raises(AirflowFailException, match="without a result"):
        task.resumed(fired(trigger))
    assert task.runs == []


@pytest.mark.slow
def test_a_cleared_window_is_deferred_again(task: Task) -> None:
    """A replay: its driver is found by the retry as well, and the window is published by it."""
    trigger = task.deferred()
    task.drive()
    task.resumed(fired(trigger))
    task.deferred()
    trigger = task.deferred()
    task.drive()
    facts = task.resumed(fired(trigger))
    assert (facts["records"], facts["ran"]) == (5, True)
    assert offsets_in(task.output / outputs_of(task.output)[0]) == IN_ORDER
    assert (len(task.yarn.applications), task.runs) == (2, [])


@pytest.mark.slow
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_driver_from_before_a_clear_is_not_used(task: Task, has_ended: bool) -> None:
    """The job may have been mended since: it is ended, what it wrote is not published, and a new one is submitted."""
    task.deferred()
    if has_ended:
        task.drive()
    trigger = task.deferred(max_tries=4)
    assert task.yarn.applications[0]["state"] == ("FINISHED" if has_ended else "KILLED")
    assert len(task.yarn.applications) == 2
    task.drive()
    facts = task.resumed(fired(trigger), max_tries=4)
    assert (facts["records"], facts["attempt"]) == (5, 2)
    assert offsets_in(facts["output"]) == IN_ORDER
    assert task.runs == []


@pytest.mark.slow
def test_an_older_attempts_driver_is_ended(task: Task) -> None:
    """Another program took the window over: the driver found is of an older attempt, and a new one is submitted."""
    task.deferred()
    (record,) = task.windows.list()
    task.windows.plan(record.plan.window, record.plan.window_id)
    task.deferred()
    assert [one["state"] for one in task.yarn.applications] == ["KILLED", "RUNNING"]
    assert len(task.runs) == 1
    assert task.attempts == [(WindowStatus.PLANNED, 3)]


def test_a_driver_that_runs_too_long_is_ended(task: Task) -> None:
    """By its trigger; the task fails."""
    trigger = task.deferred()
    trigger.deadline = 0.0
    event = fired(trigger)
    assert event["timed_out"]
    assert task.yarn.applications[0]["state"] == "KILLED"
    with pytest.raises(JobFailedError, match="ran longer than"):
        task.resumed(event)
    assert task.runs == []


def test_a_trigger_that_fails_leaves_no_driver(task: Task) -> None:
    """Such as one that an execution timeout ends, of which it is not told."""
    task.deferred()
    with pytest.raises(Exception, match="Trigger timeout"):
        task.operator().resume_execution("__fail__", {"error": "Trigger timeout"}, context_of(25))
    assert task.yarn.applications[0]["state"] == "KILLED"
    assert task.runs == []


@pytest.mark.parametrize(
    ("state", "is_ended"),
    [("deferred", False), (None, True), ("success", True), ("failed", True), ("away", True)],
)
def test_a_task_that_is_cleared_or_marked_ends_its_driver(
    task: Task, monkeypatch: pytest.MonkeyPatch, state: str | None, is_ended: bool
) -> None:
    """But one that only moves to another triggerer does not; without an answer the driver ends."""
    trigger = task.deferred()
    trigger.task_instance = SimpleNamespace(
        dag_id="dag", task_id="task", run_id="run", map_index=-1
    )

    def states(**asked: Any) -> dict[str, dict[str, Any]]:
        assert asked["task_ids"] == ["task"]
        if state == "away":
            raise OSError("no answer")
        return {"run": {"task": state}}

    name = "airflow.sdk.execution_time.task_runner.RuntimeTaskInstance.get_task_states"
    monkeypatch.setattr(name, states)
    asyncio.run(trigger.on_kill())
    assert (task.yarn.applications[0]["state"] == "KILLED") is is_ended


def test_a_submission_that_fails_leaves_no_driver(task: Task) -> None:
    """Not even one that the resource manager has accepted before spark-submit failed."""
    with pytest.raises(JobFailedError, match="spark-submit failed with exit code 3"):
        task.operator("sys.exit(3)").execute(context_of(25))
    assert task.yarn.applications[0]["state"] == "KILLED"
    assert task.runs == []


def test_a_killed_submission_leaves_no_driver(task: Task) -> None:
    """Airflow ends the worker while spark-submit runs."""
    ready = task.folder / "ready"
    operator = task.operator(
        f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(300)"
    )

    class Stop:
        def __bool__(self) -> bool:
            return ready.exists()

        def check(self, _: str) -> None:
            pass

    monkeypatched: Any = operator
    monkeypatched._stop = Stop()
    with pytest.raises(JobFailedError, match="was cancelled"):
        operator.execute(context_of(25))
    assert task.yarn.applications[0]["state"] == "KILLED"
    assert task.runs == []


def test_the_trigger_outlives_a_resource_manager_that_restarts(task: Task) -> None:
    """A failed check is repeated: its applications go on."""
    trigger = task.deferred()
    task.yarn.status = 503

    def back() -> None:
        task.yarn.status = None
        task.drive()

    assert fired(trigger, back)["state"] == "FINISHED"


@pytest.mark.parametrize(
    ("submit", "error"),
    [
        (None, "in client mode, the driver is a child of the worker"),
        ({"master": "yarn"}, "in client mode, the driver is a child of the worker"),
        (
            {"master": "k8s://https://kubernetes:6443", "deploy_mode": "cluster"},
            "drivers are found again on YARN only",
        ),
        (
            {"master": "yarn", "deploy_mode": "cluster", "timeout_s": 1e9},
            "give at most 2.592e",
        ),
    ],
)
def test_what_cannot_be_deferred_is_refused_in_the_dags_file(
    submit: dict[str, Any] | None, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name; with Airflow's default alone, such a task is not deferred."""
    given: dict[str, Any] = {
        "task_id": "task",
        "topics": "orders",
        "group_id": "group",
        "mode": "auto",
        "output": "/lake",
        "job": Application("/jobs/job.py", submit=submit),
    }
    with pytest.raises(ConfigError, match=error):
        OrderedWindowOperator(**given, deferrable=True)
    with pytest.raises(ConfigError, match="the job runs in the worker"):
        OrderedWindowOperator(**{**given, "job": None}, deferrable=True)
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "true")
    assert OrderedWindowOperator(**given).deferrable is None


def test_the_resource_managers_of_hadoops_settings(tmp_path: Path) -> None:
    """One or two of them, by either scheme; and settings that are missing or broken."""

    def urls(**values: str) -> tuple[str, ...]:
        lines = [
            f"<property><name>yarn.{name.replace('__', '-').replace('_', '.')}</name><value>{value}</value></property>"
            for name, value in values.items()
        ]
        (tmp_path / "yarn-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
        return ResourceManager.of({"HADOOP_CONF_DIR": str(tmp_path)}).urls

    assert urls(resourcemanager_hostname="rm") == ("http://rm:8088",)
    assert urls(resourcemanager_hostname="rm", http_policy="HTTPS_ONLY") == ("https://rm:8090",)
    pair = {
        "resourcemanager_ha_enabled": "true",
        "resourcemanager_ha_rm__ids": "rm1, rm2",
        "resourcemanager_hostname_rm1": "one",
        "resourcemanager_webapp_address_rm2": "two:80",
    }
    assert urls(**pair) == ("http://one:8088", "http://two:80")
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR is set"):
        ResourceManager.of({})
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match="cannot be read"):
        ResourceManager.of({"HADOOP_CONF_DIR": str(tmp_path)})


def test_a_resource_manager_that_asks_for_a_login_is_refused(yarn: FakeYarn) -> None:
    """By name, before anything is planned; and one that does not answer is worth another attempt."""
    yarn.status = 401
    with pytest.raises(ConfigError, match="needs no login"):
        ResourceManager((yarn.url,)).check()
    yarn.status = 500
    with pytest.raises(JobFailedError, match="HTTP status 500"):
        ResourceManager((yarn.url,)).check()


def test_a_default_does_not_need_a_resource_manager(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that refuses fails a task that must be deferred; another task runs in its slot."""
    task.yarn.status = 401
    operator = task.operator()
    with pytest.raises(AirflowFailException, match="needs no login"):
        operator.execute(context_of(25))
    assert task.attempts == []
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "true")
    operator.deferrable = None
    # The program of these tests refuses to wait for a driver.
    with pytest.raises(JobFailedError, match="failed with exit code 1"):
        operator.execute(context_of(25))


def test_a_standby_is_passed_over(yarn: FakeYarn) -> None:
    """The second address answers where the first one does not."""
    assert ResourceManager(("http://127.0.0.1:1", yarn.url)).application("none") is None
