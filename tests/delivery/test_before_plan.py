"""A job that cannot run is refused in every host before its window is planned, and the group's ledger stays empty."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from kafka_ordered_ops import ConfigError, Earliest, OrderedWindows, Window
from kafka_ordered_ops.airflow import (
    CommitWindowOperator,
    OrderedWindowOperator,
    PartitionsLiveSensor,
    PlanWindowOperator,
    WindowPartOperator,
    kafka_window_task,
)
from kafka_ordered_ops.airflow.compat import AirflowFailException
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.dagster import (
    build_ordered_window_asset,
    build_ordered_window_op,
    ordered_window_asset,
)
from kafka_ordered_ops.spark import SparkSubmit
from kafka_ordered_ops.spec.jobs import check_function
from kafka_ordered_ops.spec.spark_conf import check_master
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.dagster_support import failure_of
from tests.support.host_words import job_words, words
from tests.support.hosts_support import GROUP, executed
from tests.support.hosts_support import kafka as kafka
from tests.support.windows_support import at

#: What is no place for windows, as `{tmp}` knows it: below a file, on a file, elsewhere, nowhere.
BAD_OUTPUTS = {
    "bare bucket": "s3a://bucket",
    "ftp": "ftp://host/folder",
    "another machine": "file://elsewhere/folder",
    "nothing": "",
    "a file": "{tmp}/file",
    "below a file": "{tmp}/file/folder",
    "no such file system": "/proc/nowhere/folder",
    "too long": "{tmp}/" + "x" * 300,
}


def take(window: Any) -> None:
    """A job that may run."""


async def waits(_one: Any, _two: Any = None) -> None:
    """Calling it does nothing."""


class Waits:
    """Neither does calling one of these."""

    async def __call__(self, _one: Any, _two: Any = None) -> None:
        """Does nothing."""


def takes_one(_one: Any) -> None:
    """Is not called with two things."""


def takes_two(_one: Any, _two: Any) -> None:
    """Is not called with one thing."""


def check_nothing_is_planned(kafka: InMemoryKafka) -> None:
    """The group is as it was before: the next window gets every record."""
    with OrderedWindows(kafka.settings, GROUP) as windows:
        assert windows.list() == []
        assert windows.state() is None


def filled(value: Any, folder: Path) -> Any:
    """A parameter with the test's folder in it."""
    return value.replace("{tmp}", str(folder)) if isinstance(value, str) else value


# --- the command line ------------------------------------------------------------------------------

_CLI = {
    **{f"output: {name}": ("--output", text) for name, text in BAD_OUTPUTS.items()},
    "no application": ("--application", "{tmp}/missing.py"),
    "a folder as application": ("--application", "{tmp}"),
    "master of an application": ("--application", "{tmp}/job.py", "--master", "nonsense"),
    "master": ("--engine", "python", "--spark-conf", "spark.master=nonsense"),
    "a setting": ("--engine", "python", "--spark-conf", "master=local"),
    "no connector": ("--engine", "connector"),
    "settings without Spark": ("--engine", "local", "--spark-conf", "spark.master=local"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        *(("run", name) for name in _CLI),
        # A sweep runs no application.
        *(("sweep", name) for name, words in _CLI.items() if "--application" not in words),
    ],
)
def test_the_command_line_plans_nothing_for_a_job_that_cannot_run(
    kafka: InMemoryKafka,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    wrong: str,
    command: str,
) -> None:
    """Exit code 2 and a named error; the same command put right gets all records."""
    words = [filled(word, tmp_path) for word in _CLI[wrong]]
    named = ["run"] if command == "run" else ["windows", "sweep"]
    asked = [*named, "-b", kafka.bootstrap, "-g", GROUP, "-t", "t", "--cutoff", at(60).isoformat()]
    given = [*asked, "--starting-offsets", "earliest", "--json"]
    if "--output" not in words:
        words += ["--output", str(tmp_path / "out")]
    if "--engine" not in words and "--application" not in words:
        words += ["--engine", "local"]
    assert main([*given, *words]) == 2
    error = json.loads(capfd.readouterr().out)["error"]
    assert error["type"] == "ConfigError", error
    check_nothing_is_planned(kafka)
    assert main([*given, "--output", str(tmp_path / "out"), "--engine", "local"]) == 0
    assert json.loads(capfd.readouterr().out)["records"] == 10


# --- Airflow ---------------------------------------------------------------------------------------

_LOOSE: dict[str, Any] = {
    "task_id": "task",
    "topics": "t",
    "group_id": GROUP,
    "mode": "catch_up",
    "starting_offsets": "earliest",
}
_TASK = words(**_LOOSE)

#: Its mode is that of Airflow's sensors.
_SENSOR = {**_TASK, "mode": "poke"}

_AIRFLOW: dict[str, dict[str, Any]] = {
    **{f"output: {name}": {"output": text} for name, text in BAD_OUTPUTS.items()},
    "output: number": {"output": 5},
    "output: NUL": {"output": "a\0b"},
    "engine": {"engine": "fast"},
    "no application": {"application": "{tmp}/missing.py"},
    "application: number": {"application": 5},
    "no function": {"function": "take"},
    "a text": {"job": "take"},
    "an async function": {"job": waits},
    "an async object": {"job": Waits()},
    "a function of two": {"job": takes_two},
    "arguments that do not fit": {"function": take, "keywords": {"more": 1}},
    "keywords": {"function": take, "keywords": [1]},
    "conf: list": {"function": take, "conf": ["a"]},
    "conf: no name": {"function": take, "conf": {"master": "local"}},
    "conf: value": {"function": take, "conf": {"spark.a": object()}},
    "conf: master": {"function": take, "conf": {"spark.master": "nonsense"}},
    "policy": {"policy": "replay"},
    "window": {"window": "t", "topics": None},
    "a window with times": {"window": Window("t", "2026-01-01T00:00Z"), "topics": None},
    "topics twice": {"window": Window("t")},
    "submit: master": {"application": "{tmp}/job.py", "submit": {"master": "nonsense"}},
    "submit: field": {"application": "{tmp}/job.py", "submit": {"masters": "local"}},
    "submit: mode": {"application": "{tmp}/job.py", "submit": {"deploy_mode": "here"}},
    "submit: text": {"application": "{tmp}/job.py", "submit": "local"},
    "starting_offsets": {"starting_offsets": "yesterday"},
    "topics": {"topics": "no topic"},
    "topics: number": {"topics": 5},
    "no topics": {"topics": []},
    "exclude": {"exclude": ["^("]},
    "group": {"group_id": ""},
    "cutoff": {"cutoff": "noon"},
    "cutoff without a zone": {"cutoff": "2026-01-01T00:00:00"},
    "since behind the cutoff": {"cutoff": "2026-01-01T00:00:00Z", "since": "2026-01-02T00:00:00Z"},
    "lateness": {"max_out_of_orderness": "10 minutes"},
    "lateness: number": {"max_out_of_orderness": 10},
    "isolation": {"isolation": "serializable"},
    "on_data_loss": {"on_data_loss": "shrug"},
    "mode": {"mode": "both"},
    "on_covered": {"on_covered": "shrug"},
    "on_open_claim": {"on_open_claim": "shrug"},
    "on_empty": {"on_empty": "shrug"},
    "on_foreign_commit": {"on_foreign_commit": "shrug"},
    "claim_age": {"claim_age": "PT0S"},
    "claim_wait": {"claim_wait": 5},
    "max_offsets": {"max_offsets": "many"},
    "window id": {"window_id": "x" * 600},
    "span of a partition": {"partition_span": "P1D"},
}

#: What only a worker can see; the DAG's file is parsed elsewhere.
_SEEN_BY_A_WORKER = {
    "output: a file",
    "output: below a file",
    "output: no such file system",
    "output: too long",
    "no application",
}

#: As templates: rendered to the same by a run. Those of a function's arguments are no templates.
_TEMPLATED = (
    "output",
    "application",
    "starting_offsets",
    "topics",
    "exclude",
    "cutoff",
)


@pytest.mark.parametrize("wrong", _AIRFLOW)
def test_airflow_names_what_is_wrong_when_the_dag_is_parsed_or_before_the_plan(
    kafka: InMemoryKafka, tmp_path: Path, wrong: str
) -> None:
    """A literal is an import error of the DAG; what only the worker can see fails before the plan."""
    given: dict[str, Any] = {**_LOOSE, "output": str(tmp_path / "out")}
    given |= {name: filled(value, tmp_path) for name, value in _AIRFLOW[wrong].items()}
    if "window" in given:
        del given["starting_offsets"]
    if wrong in _SEEN_BY_A_WORKER:
        with pytest.raises(AirflowFailException, match="ConfigError"):
            OrderedWindowOperator(**job_words(**given)).execute(context_of(60))
    else:
        with pytest.raises(ConfigError):
            OrderedWindowOperator(**job_words(**given))
    check_nothing_is_planned(kafka)


@pytest.mark.parametrize(
    "wrong",
    [name for name, given in _AIRFLOW.items() if set(given) <= set(_TEMPLATED)],
)
def test_airflow_looks_at_templates_before_the_plan(
    kafka: InMemoryKafka, tmp_path: Path, wrong: str
) -> None:
    """What a template was rendered to is judged as a literal is, and nothing is planned."""
    rendered = {name: filled(value, tmp_path) for name, value in _AIRFLOW[wrong].items()}
    given: dict[str, Any] = {**_LOOSE, "output": str(tmp_path / "out"), "window_id": "w"}
    templates = {name: f"{{{{ params.{name} }}}}" for name in rendered}
    with DAG("dag", schedule=None, render_template_as_native_obj=True):
        task = OrderedWindowOperator(**job_words(**{**given, **templates}))
    context: Any = {**context_of(60), "params": rendered}

    def run() -> None:
        task.render_template_fields(context)
        task.execute(context)

    with pytest.raises(AirflowFailException, match=r"ConfigError|UnknownTopicError"):
        run()
    check_nothing_is_planned(kafka)


def _with(kind: Any, **arguments: Any) -> Any:
    """A task with arguments that its signature forbids."""
    return kind(**_TASK, **arguments)


def _decorated(**arguments: Any) -> Any:
    """The decorator with a task's arguments."""
    return kafka_window_task(None, **_TASK, **arguments)


@pytest.mark.parametrize(
    "make",
    [
        lambda tmp: _with(PlanWindowOperator, parts=2.5),
        lambda tmp: PlanWindowOperator(**_TASK, parts=True),
        lambda tmp: CommitWindowOperator(task_id="c", window={}, output="s3a://bucket"),
        lambda tmp: WindowPartOperator(task_id="p", window={}, output="s3a://bucket"),
        lambda tmp: PartitionsLiveSensor(**_SENSOR, until="soon"),
        lambda tmp: PartitionsLiveSensor(**{**_SENSOR, "grace": 5}),
        lambda tmp: _decorated(policy="replay", output=str(tmp))(take)(),
        lambda tmp: _decorated(output="s3a://bucket")(take)(),
        lambda tmp: _decorated(output=str(tmp))(waits)(),
    ],
)
def test_the_other_tasks_of_airflow_are_judged_when_they_are_made(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    """The same checks, in whichever task a parameter stands."""
    with pytest.raises(ConfigError):
        make(tmp_path)


def test_a_part_whose_job_cannot_run_reports_nothing(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """The window stays as it was planned: its parts can be run once the folder is put right."""
    told: Any = PlanWindowOperator(**_TASK, window_id="w", parts=2).execute(context_of(60))
    task = WindowPartOperator(task_id="p", window=told[0], output=str(tmp_path / "file" / "x"))
    with pytest.raises(AirflowFailException, match="ConfigError"):
        task.execute(context_of(60))
    with OrderedWindows(kafka.settings, GROUP) as windows:
        record = windows.show("w")
    assert record.parts is not None
    assert record.parts.results == {}


# --- Dagster ---------------------------------------------------------------------------------------

_DAGSTER: dict[str, dict[str, Any]] = {
    **{f"output: {name}": {"output": text} for name, text in BAD_OUTPUTS.items()},
    "output: number": {"output": 5},
    "engine": {"engine": "fast"},
    "engine connector": {"engine": "connector"},
    "no application": {"application": "{tmp}/missing.py"},
    "arguments": {"application": "{tmp}/job.py", "arguments": "--slow"},
    "master": {"application": "{tmp}/job.py", "submit": SparkSubmit(master="nonsense")},
    "topics": {"topics": ["no topic"]},
    "topics: numbers": {"topics": [5]},
    "group: number": {"group_id": 5},
    "exclude": {"exclude": ["^("]},
    "starting_offsets": {"starting_offsets": "yesterday"},
    "starting_offsets: number": {"starting_offsets": 5},
    "lateness": {"max_out_of_orderness": "1 minute"},
    "grace": {"grace": 5},
}

_SEEN_BY_A_RUN = (_SEEN_BY_A_WORKER - {"application: number"}) | {"engine connector"}


@pytest.mark.parametrize("kind", ["asset", "op"])
@pytest.mark.parametrize("wrong", _DAGSTER)
def test_dagster_names_what_is_wrong_when_definitions_load_or_before_the_plan(
    kafka: InMemoryKafka, tmp_path: Path, wrong: str, kind: str
) -> None:
    """What is wrong by itself when it is defined; what only the run's machine knows before the plan."""
    given: dict[str, Any] = {"topics": ["t"], "group_id": GROUP, "starting_offsets": "earliest"}
    given |= {"output": str(tmp_path / "out"), "on_not_live": "ignore"}
    given |= {name: filled(value, tmp_path) for name, value in _DAGSTER[wrong].items()}

    def make() -> Any:
        if kind == "asset":
            return build_ordered_window_asset(key="a", **job_words(**given))
        return build_ordered_window_op(name="a", **job_words(**given))

    if wrong in _SEEN_BY_A_RUN:
        result = executed(make(), kafka)
        assert "ConfigError" in failure_of(result)
    else:
        with pytest.raises(ConfigError):
            make()
    check_nothing_is_planned(kafka)


@pytest.mark.parametrize("function", [waits, Waits(), takes_one, 5, None])
def test_dagster_refuses_functions_that_cannot_be_jobs(function: Any) -> None:
    """When they are made into an asset."""
    with pytest.raises(ConfigError):
        ordered_window_asset(key="a", topics=["t"], group_id=GROUP)(function)


# --- the service, and the checks themselves ----------------------------------------------------------


@pytest.mark.parametrize("wrong", ["write", "reopen", "plans", "twice"])
def test_deliver_looks_at_what_it_is_given_first(kafka: InMemoryKafka, wrong: str) -> None:
    """Functions that are none, or plans that are none, are named; the window stays planned."""
    with OrderedWindows(kafka.settings, GROUP) as windows:
        plan = windows.plan(Window(["t"], cutoff=at(60), starting_offsets=Earliest()), "w")
        given: dict[str, Any] = {
            "plans": [plan],
            "write": lambda plans: [],
            "reopen": lambda result: None,
        }
        wrongs: dict[str, dict[str, Any]] = {
            "write": {"write": waits},
            "reopen": {"reopen": "StagedOutput.found"},
            "plans": {"plans": ["w"]},
            "twice": {"plans": [plan, plan]},
        }
        given |= wrongs[wrong]
        with pytest.raises(ConfigError):
            windows.deliver_many(given["plans"], given["write"], given["reopen"])
        assert windows.show("w").plan == plan


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[4]",
        "local[*]",
        "local[2, 3]",
        "local-cluster[2,1,1024]",
        "yarn",
        "spark://host:7077",
        "spark://one:7077,two:7077",
        "k8s://https://host:6443",
        None,
    ],
)
def test_masters_that_spark_takes_are_taken(master: str | None) -> None:
    """Every form that spark-submit documents."""
    check_master(master)


def test_functions_that_say_nothing_of_their_arguments_are_taken() -> None:
    """A class, a bound method, and what takes anything."""
    functions: list[Any] = [dict, "".join, print, lambda *_, **__: None]
    for function in functions:
        check_function(function, "one", "two", keywords=None)
    with pytest.raises(ConfigError, match=re.escape("called with one and two")):
        check_function(takes_one, "one", "two", keywords={})
