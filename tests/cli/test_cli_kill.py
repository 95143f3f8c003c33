"""kill -9 between any two steps, then the same command again: nothing lost, nothing twice."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.conftest import MakeTopic, Produce
from tests.support.cli_support import (
    FIRST_WINDOW,
    SECOND_WINDOW,
    Outcome,
    at,
    cli,
    committed,
    fill,
    values,
    visible,
)
from tests.support.kill_points import KillPoint
from tests.support.stages import stages_of

# The attempt after a crash may have to wait until the coordinator gives up the dead one's transaction.
pytestmark = pytest.mark.timeout(300)

#: A check of a change tries these, every night tries all.
_BY_DAY = {KillPoint.AFTER_WRITE, KillPoint.BEFORE_COMMIT, KillPoint.BEFORE_PUBLISH}


class _Window:
    """One command, run again and again."""

    def __init__(self, bootstrap: str, group_id: str, topic: str, output: Path) -> None:
        self._where = ("-b", bootstrap, "-g", group_id)
        self._sink = ("-t", topic, "--output", output, "--json")

    def run(
        self, cutoff: str, *, engine: str = "local", kill_at: KillPoint | None = None
    ) -> Outcome:
        question = ("--cutoff", cutoff, "--starting-offsets", "earliest")
        words = (*self._where, *self._sink, *question, "--engine", engine)
        return cli("run", *words, kill_at=kill_at)

    def windows(self) -> Outcome:
        return cli("windows", "list", *self._where, "--json")


def _check(
    bootstrap: str, group_id: str, topic: str, output: Path, engine: str, point: KillPoint
) -> None:
    window = _Window(bootstrap, group_id, topic, output)
    crashed = window.run(at(60), engine=engine, kill_at=point)
    assert (crashed.code, crashed.stdout) == (-signal.SIGKILL, "")
    assert not output.exists() or visible(output) == []

    again = window.run(at(60), engine=engine)
    assert again.code == 0, again.stderr
    assert again.json["status"] == "published"
    assert values(again.json["output"]) == FIRST_WINDOW
    assert committed(bootstrap, group_id, topic) == {0: 3, 1: 2}
    # What the dead try had finished is not done again.
    assert again.json["ran"] == (point not in (KillPoint.BEFORE_COMMIT, KillPoint.BEFORE_PUBLISH))
    assert len(visible(output)) == 1
    assert list(stages_of(output).glob("*/*")) == []

    third = window.run(at(60))
    assert (third.code, third.json["ran"]) == (0, False)
    assert third.json["records"] == len(FIRST_WINDOW)

    following = window.run(at(90))
    assert following.code == 0, following.stderr
    assert values(following.json["output"]) == SECOND_WINDOW
    assert committed(bootstrap, group_id, topic) == {0: 6, 1: 3}
    known = window.windows().json["windows"]
    assert [one["status"] for one in known] == ["published", "published"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        point if point in _BY_DAY else pytest.param(point, marks=pytest.mark.long)
        for point in KillPoint
    ],
)
def test_a_killed_run_ends_well_when_it_is_run_again(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    group_id: str,
    tmp_path: Path,
    point: KillPoint,
) -> None:
    """Wherever the process dies, the same command gives the same records, committed and published once."""
    name = topic(partitions=2)
    fill(produce, name)
    _check(bootstrap, group_id, name, tmp_path / "out", "local", point)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("point", [KillPoint.IN_READ, KillPoint.AFTER_WRITE])
def test_a_killed_spark_run_ends_well_when_it_is_run_again(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    group_id: str,
    tmp_path: Path,
    point: KillPoint,
) -> None:
    """The same with Spark, whose tasks die with the driver."""
    name = topic(partitions=2)
    fill(produce, name)
    _check(bootstrap, group_id, name, tmp_path / "out", "python", point)


@pytest.mark.long
def test_abandoning_a_killed_window_deletes_its_stage(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> None:
    """A written window that is given up leaves no files, and its records go to the next window."""
    name, output = topic(partitions=2), tmp_path / "out"
    fill(produce, name)
    window = _Window(bootstrap, group_id, name, output)
    window.run(at(60), kill_at=KillPoint.BEFORE_COMMIT)
    [written] = window.windows().json["windows"]
    assert written["status"] == "written"
    assert list(stages_of(output).glob("*/*/*.parquet")) != []

    where = ("-b", bootstrap, "-g", group_id, "--json")
    given_up = cli("windows", "abandon", *where, written["window_id"], "--output", str(output))
    assert given_up.json["status"] == "abandoned"
    assert list(stages_of(output).glob("*/*")) == []
    following = window.run(at(90))
    assert values(following.json["output"]) == sorted([*FIRST_WINDOW, *SECOND_WINDOW])


@pytest.mark.long
def test_committing_a_killed_window_publishes_what_it_wrote(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> None:
    """`windows commit` finishes a written window; where its files are gone it refuses."""
    name, output = topic(partitions=2), tmp_path / "out"
    fill(produce, name)
    window = _Window(bootstrap, group_id, name, output)
    window.run(at(60), kill_at=KillPoint.BEFORE_COMMIT)
    [written] = window.windows().json["windows"]
    words = ("windows", "commit", "-b", bootstrap, "-g", group_id, "--json", written["window_id"])
    unnamed = cli(*words)
    assert (unnamed.code, unnamed.error["type"]) == (2, "ConfigError")
    named = (*words, "--output", str(output))

    stages = stages_of(output)
    aside = stages.rename(tmp_path / "aside")
    refused = cli(*named)
    assert (refused.code, refused.error["type"]) == (4, "SinkError")
    aside.rename(stages)
    assert cli(*named).json["status"] == "published"
    assert [values(output / folder) for folder in visible(output)] == [FIRST_WINDOW]


@pytest.mark.long
def test_output_that_is_gone_is_written_again_once(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> None:
    """Files that somebody deleted are recreated, hidden or published; after that nothing is to be done."""
    name, output = topic(partitions=2), tmp_path / "out"
    fill(produce, name)
    window = _Window(bootstrap, group_id, name, output)
    window.run(at(60), kill_at=KillPoint.BEFORE_COMMIT)
    for gone in (stages_of(output), output):
        shutil.rmtree(gone)
        again, third = window.run(at(60)), window.run(at(60))
        assert (again.json["ran"], third.json["ran"]) == (True, False)
        assert values(third.json["output"]) == FIRST_WINDOW
        assert committed(bootstrap, group_id, name) == {0: 3, 1: 2}


@pytest.mark.long
def test_a_window_committed_by_hand_is_delivered_once(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> None:
    """`run` after `windows commit` reads the same records again, and tells the ledger where they are."""
    name = topic(partitions=2)
    fill(produce, name)
    window = _Window(bootstrap, group_id, name, tmp_path / "out")
    window.run(at(60), kill_at=KillPoint.AFTER_PLAN)
    [planned] = window.windows().json["windows"]
    cli("windows", "commit", "-b", bootstrap, "-g", group_id, planned["window_id"])
    again, third = window.run(at(60)), window.run(at(60))
    assert (again.json["ran"], third.json["ran"]) == (True, False)
    assert values(third.json["output"]) == FIRST_WINDOW


@pytest.mark.slow
def test_an_unknown_kill_point_is_refused() -> None:
    """A misspelt point must not make a crash test pass."""
    outcome = cli("run", kill_at="somewhere")  # type: ignore[arg-type]
    assert outcome.code == 1
    assert "'somewhere' is not a valid KillPoint" in outcome.stderr
