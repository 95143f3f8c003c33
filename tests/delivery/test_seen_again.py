"""A published window that readers do not see: every host shows it again, and says "already published" only after a look."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import (
    OrderedWindows,
    Policy,
    RecordsLostError,
    StagedOutput,
    Window,
    WindowPlan,
    WindowSupersededError,
    stage_window,
)
from kafka_ordered_ops.airflow import OrderedWindowOperator
from kafka_ordered_ops.airflow.compat import AirflowSkipException
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.dagster import build_ordered_window_asset
from kafka_ordered_ops.delivery.verdict import as_replay
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.objects.publisher import ManifestPublisher
from kafka_ordered_ops.output.publisher import files_of
from kafka_ordered_ops.output.renaming import RenamePublisher
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.hosts_support import GROUP, asked, executed, task_of
from tests.support.hosts_support import kafka as kafka
from tests.support.hosts_support import windows as windows
from tests.support.objects_support import memory as memory
from tests.support.objects_support import named_rows
from tests.support.swaps import die_before_the_last_rename, swapped
from tests.support.windows_support import at

ALL = sorted([*range(5)] * 2)


def offsets(root: Path | str) -> list[int]:
    """What readers see."""
    return sorted(named_rows(str(root)))


def die_in_a_replay(windows: OrderedWindows, root: Path, patch: pytest.MonkeyPatch) -> None:
    """A replay of window ``w`` dies between its two renames, where folders cannot be exchanged."""
    plan = windows.replay("w")
    die_before_the_last_rename(stage_window(plan, windows.settings, root), patch)
    assert offsets(root) == []


def lose_records(kafka: InMemoryKafka) -> None:
    """Retention has removed all of them."""
    for partition in (0, 1):
        kafka.delete_records("t", partition, 5)


# --- a replay that died ----------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["records kept", "records gone"])
def test_run_shows_again_what_a_dead_replay_had_hidden(
    kafka: InMemoryKafka,
    windows: OrderedWindows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: bool,
) -> None:
    """Whether Kafka still has the records or not."""
    root = tmp_path / "out"
    windows.run(asked(), root, window_id="w")
    die_in_a_replay(windows, root, monkeypatch)
    if not kept:
        lose_records(kafka)
    again = windows.run(asked(), root, window_id="w")
    assert again.outcome == "already published; nothing was done"
    assert offsets(root) == ALL
    assert swapped(str(root)) == []


@pytest.mark.parametrize("place", ["folder", "store"])
@pytest.mark.parametrize("kept", [True, False], ids=["records kept", "records gone"])
def test_run_finds_what_a_dead_replay_has_published(
    kafka: InMemoryKafka,
    windows: OrderedWindows,
    tmp_path: Path,
    memory: Callable[[], str],
    place: str,
    kept: bool,
) -> None:
    """The replay died before the ledger had its attempt: the same call records it, and runs no job."""
    root = str(tmp_path / "out") if place == "folder" else memory()
    windows.run(asked(), root, window_id="w")
    plan = as_replay(windows.replay("w"), windows.show("w").result, run_id="dies", try_number=1)
    stage_window(plan, windows.settings, root).publish()
    if not kept:
        lose_records(kafka)
    for _ in range(2):
        again = windows.run(asked(), root, window_id="w")
        assert again.outcome == "already published; nothing was done"
    assert (windows.show("w").result or {})["attempt"] == plan.attempt
    assert offsets(root) == ALL


def test_run_finds_what_a_dead_replay_of_a_split_window_has_published(
    windows: OrderedWindows, tmp_path: Path
) -> None:
    """The ledger has the parts, and readers see the whole of another attempt."""
    root = tmp_path / "out"
    whole = windows.plan(asked(), "w")
    for part in windows.split(whole, 2):
        windows.report(part, stage_window(part, windows.settings, root))
    windows.run(asked(), root, window_id="w")
    plan = as_replay(windows.replay("w"), windows.show("w").result, run_id="dies", try_number=1)
    stage_window(plan, windows.settings, root).publish()
    assert not windows.run(asked(), root, window_id="w").ran
    assert (windows.show("w").result or {})["attempt"] == plan.attempt


def test_a_slow_attempt_does_not_record_over_a_replay(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path
) -> None:
    """It has published, and a replay publishes and records, before it records its own publication."""
    root = tmp_path / "out"
    windows.run(asked(), root, window_id="w")
    first = windows.show("w").result or {}
    plan = as_replay(windows.replay("w"), first, run_id="again", try_number=1)

    class Slow:
        """Takes so long that a replay comes first."""

        def to_json(self) -> Mapping[str, Any]:
            return first

        def publish(self) -> None:
            with OrderedWindows(kafka.settings, GROUP) as other:
                other.publish(plan, stage_window(plan, other.settings, root))

        def discard(self) -> None:
            raise AssertionError("it is published")

    windows.publish(windows.replay("w"), Slow())
    assert (windows.show("w").result or {})["attempt"] == plan.attempt


def test_an_attempt_that_was_replayed_meanwhile_is_superseded(
    windows: OrderedWindows, tmp_path: Path
) -> None:
    """Its job was started again by a host that had lost contact: another attempt's output is not passed off as its own."""
    root = tmp_path / "out"
    lost = windows.plan(asked(), "w")
    windows.run(asked(), root, window_id="w")
    assert windows.show("w").plan.attempt > lost.attempt
    first = replace(lost, attempt=windows.show("w").plan.attempt)
    plan = as_replay(windows.replay("w"), None, run_id="again", try_number=1)
    windows.publish(plan, stage_window(plan, windows.settings, root))
    with pytest.raises(WindowSupersededError, match=f"ledger has attempt {plan.attempt}"):
        windows.deliver(first, lambda _: pytest.fail("its job runs"), StagedOutput.found)


def test_an_attempt_whose_window_was_planned_again_is_superseded(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path
) -> None:
    """While its job runs: what readers see by then is no other program's output."""
    root = tmp_path / "out"

    def write(plan: WindowPlan) -> StagedOutput:
        with OrderedWindows(kafka.settings, GROUP) as other:
            other.abandon("w")
            other.run(asked(), root, window_id="w")
        return stage_window(plan, windows.settings, root)

    with pytest.raises(WindowSupersededError, match="Another attempt took over"):
        windows.deliver(windows.plan(asked(), "w"), write, StagedOutput.found)
    assert offsets(root) == ALL


def test_run_of_the_next_window_shows_it_again(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has no records: whoever touches the root next heals it, before anything is planned."""
    root = tmp_path / "out"
    windows.run(asked(), root, window_id="w")
    die_in_a_replay(windows, root, monkeypatch)
    lose_records(kafka)
    windows.run(asked(120), root, window_id="next")
    assert offsets(root) == ALL


def test_the_command_line_shows_it_again(
    kafka: InMemoryKafka,
    windows: OrderedWindows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """``run`` of the same window, and ``clean``, whatever it removes."""
    root = tmp_path / "out"
    windows.run(asked(), root, window_id="w")
    words = ["run", "-b", kafka.bootstrap, "-g", GROUP, "-t", "t", "--cutoff", at(60).isoformat()]
    words += ["--starting-offsets", "earliest", "--engine", "local", "--window-id", "w"]
    for command in ([*words, "--output", str(root)], ["clean", str(root)]):
        die_in_a_replay(windows, root, monkeypatch)
        assert main(command) == 0
        assert offsets(root) == ALL
    assert "already published" in capfd.readouterr().err


@pytest.mark.parametrize("on_covered", ["auto", "skip"])
@pytest.mark.parametrize("kept", [True, False], ids=["records kept", "records gone"])
def test_a_cleared_airflow_task_shows_it_again(
    kafka: InMemoryKafka,
    windows: OrderedWindows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_covered: str,
    kept: bool,
) -> None:
    """Whether it reads the window again, skips it, or fails since its records are gone."""
    task = OrderedWindowOperator(**task_of(tmp_path, on_covered=on_covered))
    task.execute(context_of(60))
    die_in_a_replay(windows, tmp_path / "out", monkeypatch)
    if not kept:
        lose_records(kafka)
    refused = pytest.raises(AirflowSkipException if on_covered == "skip" else Exception)
    if kept and on_covered == "auto":
        task.execute(context_of(60, try_number=2))
    else:
        with refused:
            task.execute(context_of(60, try_number=2))
    assert offsets(tmp_path / "out") == ALL


@pytest.mark.parametrize("on_covered", ["replay", "skip"])
def test_a_dagster_step_shows_it_again(
    kafka: InMemoryKafka,
    windows: OrderedWindows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_covered: str,
) -> None:
    """Of an asset that reads a finished window again, and of one that does not."""
    asset = build_ordered_window_asset(
        key="orders",
        window=Window(["t"], starting_offsets="earliest"),
        group_id=GROUP,
        output=str(tmp_path / "out"),
        on_not_live="ignore",
        policy=Policy(on_covered=on_covered),
    )
    windows.run(asked(), tmp_path / "out", window_id="w")
    die_in_a_replay(windows, tmp_path / "out", monkeypatch)
    assert executed(asset, kafka).success
    assert offsets(tmp_path / "out") == ALL


# --- a stage, and nothing to see -------------------------------------------------------------------


@pytest.fixture(params=["folder", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path, memory: Callable[[], str]) -> str:
    """Where windows are written to."""
    return str(tmp_path / "lake" / "orders") if request.param == "folder" else memory()


def remove_files(root: str) -> None:
    """All that readers see of the windows."""
    for folder in {path.rpartition("/")[0] for path in files(root)}:
        if root.startswith("s3://"):
            files_of(root).remove(folder)
        else:
            shutil.rmtree(folder)


def test_what_is_staged_is_published_again_if_readers_do_not_see_the_window(
    windows: OrderedWindows, root: str
) -> None:
    """No record is read, and the result says what was done; after that there is nothing to do."""
    first = windows.run(asked(), root, window_id="w")
    stage_window(windows.replay("w"), windows.settings, root)
    remove_files(root)
    again = windows.run(asked(), root, window_id="w")
    assert not again.ran
    assert again.outcome.startswith("readers did not see it")
    assert (again.status, again.records) == (WindowStatus.PUBLISHED, first.records)
    assert offsets(root) == ALL
    assert windows.run(asked(), root, window_id="w").outcome.startswith("already published")


def test_the_command_line_says_what_it_showed_again(
    kafka: InMemoryKafka,
    windows: OrderedWindows,
    root: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """For people, of one window and of several."""
    words = ["run", "-b", kafka.bootstrap, "-g", GROUP, "-t", "t", "--cutoff", at(60).isoformat()]
    words += ["--starting-offsets", "earliest", "--engine", "local", "--output", root]
    assert main([*words, "--window-id", "w"]) == 0
    stage_window(windows.replay("w"), windows.settings, root)
    remove_files(root)
    capfd.readouterr()
    assert main([*words, "--window-id", "w"]) == 0
    assert "was not visible to readers" in " ".join(capfd.readouterr().err.split())
    assert offsets(root) == ALL


def test_without_records_and_files_nothing_is_called_published(
    kafka: InMemoryKafka, windows: OrderedWindows, root: str
) -> None:
    """The error says what is gone."""
    windows.run(asked(), root, window_id="w")
    remove_files(root)
    lose_records(kafka)
    with pytest.raises(RecordsLostError):
        windows.run(asked(), root, window_id="w")


@pytest.mark.parametrize("publisher", [RenamePublisher, ManifestPublisher])
def test_a_published_window_is_looked_at_once(
    windows: OrderedWindows,
    tmp_path: Path,
    memory: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    publisher: type[Any],
) -> None:
    """Each look takes some calls of a remote file system."""
    root = str(tmp_path / "orders") if publisher is RenamePublisher else memory()
    windows.run(asked(), root, window_id="w")
    looks = list[str]()
    for name in ("shown", "staged"):
        look = getattr(publisher, name)

        def counted(
            self: Any, output: StagedOutput, name: str = name, look: Any = look, **how: bool
        ) -> StagedOutput | None:
            looks.append(name)
            found: StagedOutput | None = look(self, output, **how)
            return found

        monkeypatch.setattr(publisher, name, counted)
    assert not windows.run(asked(), root, window_id="w").ran
    assert looks == ["shown"]


# --- other sinks -----------------------------------------------------------------------------------


class Told:
    """An output of a user's sink."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def to_json(self) -> Mapping[str, Any]:
        return {"rows": 1}

    def publish(self) -> None:
        self.calls.append("publish")

    def discard(self) -> None:
        self.calls.append("discard")


class Looking(Told):
    """One that says whether readers see it."""

    seen = False

    def is_published(self) -> bool:
        self.calls.append("look")
        return self.seen


@pytest.mark.parametrize(
    ("kind", "calls"), [(Told, ["publish"]), (Looking, ["publish", "look", "publish"])]
)
def test_a_sink_that_can_say_what_readers_see_is_asked(
    windows: OrderedWindows, kind: type[Told], calls: list[str]
) -> None:
    """One that cannot is believed to have shown what the ledger has as published."""
    made, question = list[str](), Window("t", cutoff=at(60), starting_offsets="earliest")
    deliveries = [
        windows.deliver(windows.plan(question, "w"), lambda _: kind(made), lambda _: kind(made))
        for _ in range(2)
    ]
    assert [one.ran for one in deliveries] == [True, False]
    assert [one.shown_again for one in deliveries] == [False, kind is Looking]
    assert made == calls
    assert json.loads(json.dumps(windows.show("w").result)) == {"rows": 1}
