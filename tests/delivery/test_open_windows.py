"""The one handle that jobs get of their windows, and the dispatch of jobs, in memory and without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops import (
    Application,
    ConfigError,
    Copy,
    Folder,
    Function,
    JobFailedError,
    OpenWindow,
    OrderedWindows,
    Policy,
    SinkError,
    StagedOutput,
    Table,
    Window,
    WindowCoveredError,
    WindowPlan,
    stage_windows,
)
from kafka_ordered_ops.core.types import OnCovered, WindowStatus
from kafka_ordered_ops.delivery.host import Host, Stop
from kafka_ordered_ops.delivery.job import WindowJob
from kafka_ordered_ops.delivery.open_windows import OpenWindows
from kafka_ordered_ops.delivery.summary import window_summary
from kafka_ordered_ops.delivery.verdict import as_replay, is_finished, is_replayed, nothing_left
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spec.spark_submit import submit_of
from tests.support.hosts_support import GROUP, asked
from tests.support.hosts_support import kafka as kafka
from tests.support.hosts_support import windows as windows

Make = Callable[..., OpenWindows]


@pytest.fixture
def make(windows: OrderedWindows, tmp_path: Path) -> Make:
    """A handle of one window, or of several."""
    out = Folder(tmp_path / "out")

    def make(*plans: WindowPlan, to: Folder | None = out) -> OpenWindows:
        every = plans or (windows.plan(asked(), "w"),)
        host = Host(Stop("A test"), "give output=", lambda line: None)
        return OpenWindows(every, windows.settings, to, host)

    return make


def test_a_window_has_one_output(make: Make) -> None:
    """Whatever way it came."""
    handle = make()
    [staged] = handle.copy()
    assert handle.outputs(None) == [staged]
    again: list[Callable[[], Any]] = [
        handle.copy,
        handle.collect,
        lambda: handle.submit("job.py"),
        lambda: handle.write(pa.table({"a": [1]})),
        lambda: handle.report([staged]),
    ]
    for way in again:
        with pytest.raises(ConfigError, match="one output"):
            way()


def test_each_window_has_an_output(make: Make, windows: OrderedWindows) -> None:
    """All of them, by time."""
    plans = windows.plan_many([asked(3), asked(60)], ["a", "b"])
    handle = make(*plans)
    with pytest.raises(ConfigError, match="2 windows and 1 outputs"):
        handle.report([Reported()])
    assert handle.staged is None
    assert [one.window_id for one in handle.copy()] == ["a", "b"]


def test_json_is_an_output_only_where_the_job_delivers_itself(make: Make, tmp_path: Path) -> None:
    """Stored with the facts of what was read, as a return value is; refused where files are expected."""

    def counts(window: OpenWindow) -> None:
        window.report({"rows": window.to_arrow().num_rows})

    job = WindowJob(job=Function(counts))
    [staged] = job.deliver(make(to=None))
    assert isinstance(staged, Reported)
    assert staged.result["returned"] == {"rows": 10}
    assert staged.result["facts"]["records"] == 10
    with pytest.raises(ConfigError, match=r"window w.*got JSON.*goes to .*out: write it"):
        job.deliver(make())


def test_a_table_and_a_sink_take_no_path(windows: OrderedWindows, tmp_path: Path) -> None:
    """The window has one place; nothing is written."""
    nothing: Any = None
    host = Host(Stop("A test"), "give output=")
    plan = windows.plan(asked(), "w")
    for to, name in ((Table("lake.orders"), r"lake\.orders"), (_NoSink(), "_NoSink")):
        handle = OpenWindows([plan], windows.settings, to, host)
        with pytest.raises(
            ConfigError, match=rf"goes to .*{name}.*the path is 'out': omit the path"
        ):
            handle.write(nothing, "out")
        with pytest.raises(ConfigError, match="no Spark session"):
            handle.read()


class _NoSink:
    """Must not be called."""

    def write(self, df: Any, plan: WindowPlan, /) -> Any:
        raise AssertionError(plan)

    def found(self, result: Any, /) -> None:
        raise AssertionError(result)


def test_without_a_folder_the_host_says_what_is_missing(make: Make, tmp_path: Path) -> None:
    """Unless the job names one."""
    handle = make(to=None)
    with pytest.raises(ConfigError, match=r"give output="):
        handle.copy()
    assert handle.copy(tmp_path / "named")[0].exists()


def test_what_another_program_has_written_is_taken_up(make: Make, tmp_path: Path) -> None:
    """If it is there, and whole."""
    handle = make()
    with pytest.raises(SinkError, match="1 of 1 windows have no complete output"):
        handle.collect()
    [staged] = stage_windows(handle.plans, handle.client, tmp_path / "out")
    assert [one.stage_path for one in handle.collect()] == [staged.stage_path]


@pytest.mark.parametrize(
    "job",
    [
        WindowJob(job=Copy(), to=Folder("/out")),
        WindowJob(job=Function(lambda window: list(window.to_batches()))),
    ],
    ids=["copy", "function"],
)
def test_a_job_ends_when_it_is_told_to(make: Make, tmp_path: Path, job: WindowJob) -> None:
    """In the midst of reading; nothing is left."""
    handle = make()
    handle.stop.set()
    with pytest.raises(JobFailedError, match="window w: A test ended this attempt"):
        job.deliver(handle)
    assert list((tmp_path / "out").rglob("*.parquet")) == []


def test_a_function_reads_batches_in_order(make: Make) -> None:
    """With its arguments; what it returns is the delivery."""

    def count(window: OpenWindow, *, factor: int) -> int:
        times: list[Any] = window.to_arrow().column("timestamp").to_pylist()
        assert times == sorted(times)
        return factor * len(times)

    job = WindowJob(job=Function(count, {"factor": 2}))
    [told] = job.deliver(make(to=None))
    assert isinstance(told, Reported)
    assert (told.result["returned"], told.result["facts"]["records"]) == (20, 10)


_ANY: Any = 7


@pytest.mark.parametrize(
    ("make_job", "told"),
    [
        (lambda: Copy(engine="flink"), "python, connector, local"),
        (lambda: Folder(" "), "not a path"),
        (lambda: Application(_ANY), "path of a Python file"),
        (lambda: Function(lambda: None), "called with window"),
        (lambda: Function(print, {"no": 1}), "print"),
        (lambda: Copy(conf={"master": "local"}), "begin with 'spark.'"),
        (lambda: Application("a.py", submit={"mastre": "local"}), "did you mean 'master'"),
        (lambda: _checked(Application("a.py", submit={"master": "locl"})), "not a Spark master"),
    ],
)
def test_what_cannot_be_a_job_is_named_before_there_is_a_window(
    make_job: Callable[[], object], told: str
) -> None:
    """Where a DAG or an asset is defined."""
    with pytest.raises(ConfigError, match=told):
        make_job()


def _checked(job: Copy | Application) -> None:
    WindowJob(job=job).check_form()


def test_what_is_not_known_yet_is_not_looked_at() -> None:
    """A function's arguments that come from another task."""
    keywords: Any = "{{ params.keywords }}"
    assert Function(lambda window, more: None, keywords).keywords == keywords
    later = Table("{{ var.value.table }}", "{{ params.mode }}", keys="{{ params.keys }}")
    assert later.mode == "{{ params.mode }}"
    assert (
        Folder("{{ var.value.root }}/orders", "{{ params.by }}").partition_by == "{{ params.by }}"
    )
    assert Application("{{ params.job }}", "{{ params.arguments }}").arguments.startswith("{{")  # type: ignore[attr-defined]
    assert Window("{{ params.topics }}", isolation="{{ params.isolation }}").cutoff is None
    assert Policy("{{ params.covered }}", claim_age="{{ params.age }}").claim_age
    assert submit_of(None) is None


def test_what_is_finished_is_replayed_or_left(windows: OrderedWindows, tmp_path: Path) -> None:
    """By one verdict; another run's delivery has a place of its own."""

    def write(plan: WindowPlan) -> StagedOutput:
        return stage_windows([plan], windows.settings, tmp_path / "out")[0]

    plan = windows.plan(asked(), "w")
    assert not is_finished(plan, None)
    windows.deliver(plan, write, StagedOutput.found)
    record = windows.show("w")
    done = record.plan
    assert is_finished(done, record.result)
    assert (is_replayed(done, OnCovered.REPLAY), is_replayed(done, OnCovered.SKIP)) == (True, False)
    with pytest.raises(
        WindowCoveredError, match=r"window w .* is published already, and on_covered='fail'"
    ):
        is_replayed(done, OnCovered.FAIL)
    attempts = [
        as_replay(done, record.result, run_id=run, try_number=number).attempt
        for run in ("a", "b")
        for number in (1, 2)
    ]
    assert len({done.attempt, *attempts}) == 5
    assert min(attempts) > done.attempt
    covered = windows.plan(asked(30), "other")
    assert nothing_left(covered).endswith("other windows have taken its records")
    assert not is_replayed(covered, OnCovered.REPLAY)


def test_a_replay_that_died_is_in_no_other_s_way(windows: OrderedWindows, tmp_path: Path) -> None:
    """Of whichever run, after it has published and before that was recorded; and then by Python."""
    root = tmp_path / "out"

    def write(plan: WindowPlan) -> StagedOutput:
        return stage_windows([plan], windows.settings, root)[0]

    windows.deliver(windows.plan(asked(), "w"), write, StagedOutput.found)

    def again(run: str) -> WindowPlan:
        record = windows.show("w")
        # Runs that begin in the same millisecond have no order.
        begun_ns = time.time_ns()
        while time.time_ns() < begun_ns + 1_000_000:
            pass
        return as_replay(record.plan, record.result, run_id=run, try_number=1)

    attempts = [windows.show("w").plan.attempt]
    for number in range(8):
        write(plan := again(f"dies {number}")).publish()
        windows.deliver(again(f"run {number}"), write, StagedOutput.found)
        [(_, result)] = [(one.plan, one.result) for one in windows.list()]
        attempts += [plan.attempt, result["attempt"]]
    assert attempts == sorted(set(attempts))
    for plan in (
        windows.replay("w"),
        windows.plan(asked(), "w", Policy(on_covered=OnCovered.REPLAY)),
    ):
        windows.deliver(plan, write, lambda _: None)
        assert windows.show("w").status is WindowStatus.PUBLISHED
    assert len(list(root.glob("window_id=*/*.parquet"))) == 1


def test_a_summary_has_what_the_sink_counted(windows: OrderedWindows, tmp_path: Path) -> None:
    """And says that it does not know what nobody has counted."""
    windows.plan(asked(), "w")
    before = window_summary(windows.show("w"))
    assert (before["status"], before["records"], before["output"]) == ("planned", None, None)
    windows.deliver(
        windows.plan(asked(), "w"),
        lambda plan: stage_windows([plan], windows.settings, tmp_path / "out")[0],
        StagedOutput.found,
    )
    told = window_summary(windows.show("w"))
    assert (told["status"], told["group"]) == (WindowStatus.PUBLISHED.value, GROUP)
    assert (told["records"], told["offsets"], told["result"]) == (10, 10, None)
    assert Path(told["output"]).is_dir()
    assert told["timestamp_min"] < told["timestamp_max"]
