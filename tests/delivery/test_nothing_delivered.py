"""A green run that has delivered nothing is no green run: in every host it fails, is skipped, or says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    Folder,
    OrderedWindows,
    Policy,
    SinkError,
    StagedOutput,
    Window,
    WindowPlan,
    stage_window,
    stage_windows,
)
from kafka_ordered_ops.airflow import (
    CommitWindowOperator,
    OrderedWindowOperator,
    PlanWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.airflow.compat import AirflowFailException, AirflowSkipException
from kafka_ordered_ops.airflow.operators.plan_task import HELD_BY_OPEN
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.dagster import AssetWindows, build_ordered_window_asset, ordered_window_asset
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spec.job_outputs import outputs_of
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.dagster_support import failure_of
from tests.support.hosts_support import GROUP, asked, executed, task_of
from tests.support.hosts_support import kafka as kafka
from tests.support.hosts_support import windows as windows
from tests.support.windows_support import at

HOURLY = dg.HourlyPartitionsDefinition("2023-11-14-20:00", end_date="2023-11-15-02:00")


# --- (a) a function that delivers nothing -------------------------------------------------------------


def _folder(windows: AssetWindows) -> str:
    """The asset's output folder."""
    output = windows.settings.output
    assert isinstance(output, Folder)
    return str(output.path)


def returns_nothing(context: Any, windows: AssetWindows) -> None:
    """An early return."""


def returns_counts(context: Any, windows: AssetWindows) -> dict[str, int]:
    """What a sink of its own would return."""
    return {"rows": 10}


def returns_a_generator(context: Any, windows: AssetWindows) -> Any:
    """Nothing of it is ever done."""
    return (plan for plan in windows.plans)


async def _work() -> None:
    """Is never awaited."""


def returns_a_coroutine(context: Any, windows: AssetWindows) -> Any:
    """Nor is that."""
    made = _work()
    # Else Python warns of what this test is about.
    made.close()
    return made


def reports_none(context: Any, windows: AssetWindows) -> None:
    """As if the window had no output."""
    nothing: Any = [None for _ in windows.plans]
    windows.report(nothing)


def returns_too_many(context: Any, windows: AssetWindows) -> Any:
    """One output twice."""
    [staged] = stage_windows(windows.plans, windows.client, _folder(windows))
    return [staged, staged]


def returns_anothers(context: Any, windows: AssetWindows) -> Any:
    """The output of a window of another name."""
    [staged] = stage_windows(windows.plans, windows.client, _folder(windows))
    return StagedOutput(staged.root, "another", staged.claim_id, staged.attempt, group_id=GROUP)


_NOTHING = [
    returns_nothing,
    returns_counts,
    returns_a_generator,
    returns_a_coroutine,
    reports_none,
    returns_too_many,
    returns_anothers,
]


@pytest.mark.parametrize("function", _NOTHING)
def test_dagster_commits_nothing_for_a_function_that_delivers_nothing(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path, function: Callable[..., Any]
) -> None:
    """The step fails with a SinkError, and the next run gets the same records."""
    given: dict[str, Any] = {
        "key": "a",
        "window": Window(["t"], starting_offsets="earliest"),
        "group_id": GROUP,
    }
    given |= {"output": str(tmp_path / "out"), "on_not_live": "ignore"}
    result = executed(ordered_window_asset(**given)(function), kafka)
    assert "SinkError" in failure_of(result)
    [record] = windows.list()
    assert (record.status, record.plan.offsets) == (WindowStatus.PLANNED, 10)
    assert list((tmp_path / "out").glob("window_id=*")) == []


def plan_of(windows: OrderedWindows, until: float = 60, name: str = "w") -> WindowPlan:
    """A window's plan."""
    return windows.plan(asked(until), name)


@pytest.mark.parametrize("returned", [None, {"rows": 1}, [], "text", 0])
def test_a_function_with_a_folder_must_write_or_report(
    windows: OrderedWindows, returned: Any
) -> None:
    """Whatever it returns; without a folder, its normal return is the delivery."""
    plan = plan_of(windows)
    with pytest.raises(SinkError, match="neither written nor reported"):
        outputs_of([plan], None, returned, output="/out")
    [own] = outputs_of([plan], None, returned, output=None)
    assert own == Reported.of(returned)


def test_a_window_without_offsets_needs_no_file(windows: OrderedWindows) -> None:
    """There was nothing to write; its part needs one, for it is joined with the others."""
    empty = windows.plan(Window(["t"], cutoff=at(-60), starting_offsets=Earliest()), "empty")
    assert empty.content is PlanContent.EMPTY
    assert outputs_of([empty], None, None, output="/out") == [Reported.of(None)]
    [part, _] = windows.split(empty, 2)
    with pytest.raises(SinkError):
        outputs_of([part], None, None, output="/out")


def test_of_several_windows_all_are_delivered(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path
) -> None:
    """An output for some of them, or in another order, is refused; one that is returned counts as reported."""
    plans = windows.plan_many([asked(3), asked(60)], ["a", "b"])
    staged = stage_windows(plans, windows.settings, tmp_path / "out")
    assert outputs_of(plans, None, staged, output=str(tmp_path / "out")) == staged
    wrongs: list[Any] = [staged[:1], staged[::-1], [staged[0]] * 2, [staged[0], object()]]
    for wrong in wrongs:
        with pytest.raises(SinkError):
            outputs_of(plans, wrong, None, output=str(tmp_path / "out"))


def test_airflow_commits_nothing_for_a_function_that_delivers_nothing(
    windows: OrderedWindows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function with Spark that returns early; the session is none that it would need."""
    no_session(monkeypatch)
    task = OrderedWindowOperator(**task_of(tmp_path), job=lambda window: {"rows": 10})
    with pytest.raises(AirflowFailException, match=r"SinkError.*neither written nor reported"):
        task.execute(context_of(60))
    assert windows.show("w").status is WindowStatus.PLANNED
    given = task_of(tmp_path) | {"output": None}
    own = OrderedWindowOperator(**given, job=lambda window: {"rows": 10})
    assert own.execute(context_of(60))["result"] == {"rows": 10}


def test_a_part_in_airflow_that_delivers_nothing_reports_nothing(
    windows: OrderedWindows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the window cannot be committed without it."""
    no_session(monkeypatch)
    planned = {name: value for name, value in task_of(tmp_path).items() if name != "output"}
    told: Any = PlanWindowOperator(**planned, parts=2).execute(context_of(60))
    part = WindowPartOperator(
        task_id="part", window=told[0], output=str(tmp_path / "out"), job=lambda window: None
    )
    with pytest.raises(AirflowFailException, match="SinkError"):
        part.execute(context_of(60))
    parts = windows.show("w").parts
    assert parts is not None
    assert parts.results == {}


def test_parts_with_and_without_files_are_not_committed(
    windows: OrderedWindows, tmp_path: Path
) -> None:
    """The files of some would be left behind: in Airflow, and on the command line."""
    plan = plan_of(windows)
    one, two = windows.split(plan, 2)
    windows.report(one, Reported.of({"rows": 5}))
    windows.report(two, stage_window(two, windows.settings, tmp_path / "out"))
    told = {
        "version": 1,
        "window_id": "w",
        "group": GROUP,
        "claim_id": plan.claim_id,
        "attempt": plan.attempt,
    }
    told |= {"part": 0, "parts": 2}
    commit = CommitWindowOperator(task_id="c", window=told, output=str(tmp_path / "out"))
    with pytest.raises(AirflowFailException, match=r"SinkError.*own sinks"):
        commit.execute(context_of())
    brokers = windows.settings.bootstrap_servers
    assert main(["windows", "commit", "-b", brokers, "-g", GROUP, "w", "--json"]) == 4
    assert windows.show("w").status is WindowStatus.WRITTEN


def test_namespaces_are_not_outputs() -> None:
    """What merely looks like one in part is a return value."""
    assert isinstance(
        outputs_of([SimpleNamespace(offsets=1, part=None)], None, {"publish": 1}, output=None)[0],  # type: ignore[list-item]
        Reported,
    )


class HandsOver:
    """A job that hands over what it is made with."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def __call__(self, _plans: Any) -> Any:
        """Does nothing else."""
        return self.what


def test_deliver_commits_nothing_for_a_job_that_hands_nothing_over(
    windows: OrderedWindows, tmp_path: Path
) -> None:
    """None, a text, a class, too few: named errors, and the window stays planned."""
    plan = plan_of(windows)
    handed: list[Any] = [None, "w", {"name": 1}.keys(), StagedOutput, 5]
    for one in handed:
        job = HandsOver(one)
        with pytest.raises((SinkError, ConfigError)):
            windows.deliver(plan, job, lambda _: None)
        with pytest.raises((SinkError, ConfigError)):
            windows.deliver_many([plan], job, lambda _: None)
    assert windows.show("w").status is WindowStatus.PLANNED


# --- (b) covered windows ---------------------------------------------------------------------------------


def test_the_command_line_ends_otherwise_when_all_is_covered(
    kafka: InMemoryKafka, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 5 and a warning; with --on-covered skip it was asked for."""
    words = [
        "run",
        "-b",
        kafka.bootstrap,
        "-g",
        GROUP,
        "-t",
        "t",
        "--starting-offsets",
        "earliest",
        "--json",
    ]
    words += [
        "--output",
        str(tmp_path / "out"),
        "--engine",
        "local",
        "--cutoff",
        at(60).isoformat(),
    ]
    assert main([*words, "--window-id", "first"]) == 0
    assert main([*words, "--window-id", "first"]) == 0
    capfd.readouterr()
    for _ in range(2):
        assert main([*words, "--window-id", "second"]) == 5
        told = capfd.readouterr()
        assert json.loads(told.out)["content"] == "covered"
        assert "window second of group group is covered" in told.err
    assert main([*words, "--window-id", "third", "--on-covered", "skip"]) == 0
    assert "is covered" in capfd.readouterr().err
    assert main([*words, "--window-id", "fourth", "--on-covered", "fail"]) == 4


def test_the_command_line_says_what_open_windows_hold(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the JSON, in the table and on standard error, with what to do."""
    plan_of(windows, 4, "failed")
    words = [
        "run",
        "-b",
        kafka.bootstrap,
        "-g",
        GROUP,
        "-t",
        "t",
        "--output",
        str(tmp_path / "out"),
    ]
    words += ["--engine", "local"]
    assert main([*words, "--cutoff", at(6).isoformat(), "--json"]) == 0
    told = capfd.readouterr()
    [held] = json.loads(told.out)["held_by_open"]
    assert (held["window_id"], held["offsets"], held["status"]) == ("failed", 4, "planned")
    assert "held by 1 open window: failed (4 offsets, planned" in told.err
    assert f"kafka-ordered-ops windows abandon -g {GROUP} failed" in told.err
    assert main([*words, "--cutoff", at(8).isoformat()]) == 0
    assert "held by 1 open window: failed (4 offsets, planned" in capfd.readouterr().err
    assert main([*words, "--cutoff", at(8).isoformat()]) == 0
    # What is delivered is no longer short.
    assert "held by" not in capfd.readouterr().err


def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are called with a session that is none: Java need not start for them."""
    from contextlib import nullcontext

    from kafka_ordered_ops.spark import job_checks, job_session

    monkeypatch.setattr(job_session, "job_session", lambda *_: nullcontext(object()))
    monkeypatch.setattr(job_checks, "check_session", lambda *_, **__: None)


@pytest.mark.parametrize("on_covered", ["auto", "replay", "skip", "fail"])
def test_airflow_skips_a_covered_task(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path, on_covered: str
) -> None:
    """There is nothing to replay: its own times were never asked for. With fail it fails."""
    OrderedWindowOperator(**task_of(tmp_path)).execute(context_of(60))
    given = task_of(tmp_path, window_id="other", on_covered=on_covered)
    error = AirflowFailException if on_covered == "fail" else AirflowSkipException
    for _ in range(2):
        with pytest.raises(error, match=r"taken its records|taken all records"):
            OrderedWindowOperator(**given).execute(context_of(30))
    if on_covered != "fail":
        assert windows.show("other").plan.content is PlanContent.COVERED


def test_airflow_says_what_open_windows_hold(
    windows: OrderedWindows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the log, in the result and in an XCom of its own, which a task that is skipped has as well."""
    plan_of(windows, 4, "failed")
    context = context_of(6)
    facts = OrderedWindowOperator(**task_of(tmp_path)).execute(context)
    [held] = facts["held_by_open"]
    assert (held["window_id"], held["offsets"]) == ("failed", 4)
    assert context["ti"].pushed[HELD_BY_OPEN] == [held]
    assert "held by 1 open window: failed (4 offsets" in capsys.readouterr().out
    context = context_of(5)
    with pytest.raises(AirflowSkipException, match=r"held by 1 open window: failed \(4 offsets"):
        OrderedWindowOperator(**task_of(tmp_path, window_id="other")).execute(context)
    assert context["ti"].pushed[HELD_BY_OPEN] == [held]


@pytest.mark.slow
def test_dagster_fails_a_check_for_covered_and_short_windows(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path
) -> None:
    """An error for a partition whose records others have; a warning for one that open windows keep short."""
    interval = {
        "since": at(-600).replace(minute=0, second=0, microsecond=0),
        "starting_offsets": Earliest(),
    }
    hour = dg.TimeWindow
    since = interval["since"]
    key = since.strftime("%Y-%m-%d-%H:%M")  # type: ignore[attr-defined]
    [times] = [
        HOURLY.time_window_for_partition_key(one)
        for one in HOURLY.get_partition_keys()
        if one == key
    ]
    assert isinstance(times, hour)
    early = Window(["t"], cutoff=at(4), since=times.start, starting_offsets=Earliest())
    windows.plan(early, "failed")
    given: dict[str, Any] = {
        "key": "a",
        "window": Window(["t"], starting_offsets="earliest"),
        "group_id": GROUP,
    }
    given |= {"output": str(tmp_path / "out"), "on_not_live": "ignore", "partitions_def": HOURLY}
    result = executed(build_ordered_window_asset(**given), kafka, key)
    assert result.success
    [check] = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed) == ("windows_complete", False)
    assert check.severity is dg.AssetCheckSeverity.WARN
    assert "failed (4 offsets, planned" in str(check.description)
    [event] = result.asset_materializations_for_node("a")
    table = event.metadata["kafka_ordered_ops/held_by_open"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [row.data["held_by"] for row in table.records] == ["failed"]
    windows.commit(windows.show("failed").plan)
    later = executed(
        build_ordered_window_asset(**{**given, "key": "b", "policy": Policy(redefine=True)}),
        kafka,
        key,
    )
    [check] = later.get_asset_check_evaluations()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "1 of 1 windows of group group are covered" in str(check.description)
