"""`partition_by` from every host: the same folders, the same refusals, and nothing planned before these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import Application, ConfigError, Folder, OrderedWindows, Window
from kafka_ordered_ops.airflow import (
    CommitWindowOperator,
    OrderedWindowOperator,
    PlanWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.dagster import (
    WindowSettings,
    build_ordered_window_asset,
    build_ordered_window_op,
)
from kafka_ordered_ops.dagster.step.delivery import Step
from kafka_ordered_ops.dagster.step.step_functions import Submitted
from kafka_ordered_ops.output import files
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.host_words import words as host_words
from tests.support.hosts_support import GROUP, executed, task_of
from tests.support.hosts_support import kafka as kafka
from tests.support.hosts_support import windows as windows
from tests.support.windows_support import at

#: Of the last millisecond before the cutoff.
HOUR = f"date={at(59).date()}/hour={at(59).hour}"


def places(root: Path) -> set[str]:
    """The folders above windows'."""
    return {one.removeprefix(f"{root}/").partition("/window_id=")[0] for one in files(root)}


def words(kafka: InMemoryKafka, root: Path, *more: str) -> list[str]:
    """A command of the command line."""
    where = ["-b", kafka.bootstrap, "-g", GROUP, "-t", "t", "--starting-offsets", "earliest"]
    job = ["--engine", "local", "--output", str(root), "--json"]
    return ["run", *where, "--cutoff", at(60).isoformat(), *job, *more]


def test_the_command_line_partitions(
    kafka: InMemoryKafka,
    windows: OrderedWindows,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It shows where the window is; another value is refused before a window is planned."""
    root = tmp_path / "out"
    assert main(words(kafka, root, "--partition-by", "day")) == 2
    day = ["--since", at(-86_400).isoformat(), "--partition-by", "hour"]
    assert main(words(kafka, root, *day)) == 2
    assert "leave out partition_by" in " ".join(capfd.readouterr().err.split())
    assert windows.list() == []
    assert main(words(kafka, root, "--partition-by", "hour", "--window-id", "w")) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["output"].startswith(f"{root}/{HOUR}/window_id=")
    assert main(words(kafka, root, "--partition-by", "date", "--window-id", "new")) == 2
    assert "Give partition_by='hour'" in " ".join(capfd.readouterr().err.split())
    assert [one.plan.window_id for one in windows.list()] == ["w"]
    replay = ["windows", "replay", "w", "-b", kafka.bootstrap, "-g", GROUP, "--engine", "local"]
    assert main([*replay, "--output", str(root), "--partition-by", "hour"]) == 0
    assert places(root) == {HOUR}
    assert len(files(root)) == 1


def test_airflow_partitions_and_stays_in_place_when_cleared(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path
) -> None:
    """One task; another one with another value plans nothing."""
    task = OrderedWindowOperator(**host_words(**task_of(tmp_path), partition_by="hour"))
    assert HOUR in task.execute(context_of(60))["output"]
    assert task.execute(context_of(60, try_number=2))["status"] == "published"
    assert places(tmp_path / "out") == {HOUR}
    with pytest.raises(ConfigError, match="partition_by is 'day'"):
        OrderedWindowOperator(**host_words(**task_of(tmp_path), partition_by="day"))
    other = OrderedWindowOperator(**task_of(tmp_path, window_id="new"))
    with pytest.raises(Exception, match="Give partition_by='hour'"):
        other.execute(context_of(61))
    assert [one.plan.window_id for one in windows.list()] == ["w"]


def test_airflow_s_parts_are_joined_where_they_were_written_for(
    kafka: InMemoryKafka, tmp_path: Path
) -> None:
    """The task that commits is not told; it is the same for one that does so again."""
    given = task_of(tmp_path)
    output = given.pop("output")
    told: Any = PlanWindowOperator(**given, parts=2).execute(context_of(60))
    for number, one in enumerate(told):
        WindowPartOperator(
            task_id=f"part{number}", window=one, output=Folder(output, partition_by="date")
        ).execute(context_of(60))
    for _ in range(2):
        commit = CommitWindowOperator(task_id="commit", window=told, output=output)
        assert commit.execute(context_of(60))["records"] == 10
    assert places(tmp_path / "out") == {HOUR.partition("/")[0]}


@pytest.mark.slow
@pytest.mark.parametrize("build", [build_ordered_window_asset, build_ordered_window_op])
def test_dagster_partitions(kafka: InMemoryKafka, tmp_path: Path, build: Any) -> None:
    """An asset and an op, by the time at which the run began."""
    name = {"key": "orders"} if build is build_ordered_window_asset else {"name": "orders"}
    settings: dict[str, Any] = {
        "window": Window(["t"], starting_offsets="earliest"),
        "group_id": GROUP,
        "on_not_live": "ignore",
    }
    root = tmp_path / "out"
    assert executed(build(**name, **settings, output=Folder(root, "date")), kafka).success
    [place] = places(tmp_path / "out")
    assert place.startswith("date=20")
    assert "/" not in place
    with OrderedWindows(kafka.settings, GROUP) as service:
        before = len(service.list())
        assert not executed(build(**name, **settings, output=Folder(root, "hour")), kafka).success
        assert len(service.list()) == before


def test_an_asset_s_application_gets_all_that_its_settings_say_of_the_output(
    tmp_path: Path,
) -> None:
    """It is checked, before a window is planned, with the place that it will write to."""
    to = Folder(tmp_path / "out", "date")
    settings = WindowSettings(topics=["t"], group_id=GROUP, output=to)
    none: Any = None
    step = Step(none, dg.AssetKey("orders"), settings, none, none)
    job = step._job(Submitted(Application(tmp_path / "job.py", engine="local")))
    assert job.to == Folder(tmp_path / "out", "date")
    assert job.engine == "local"
