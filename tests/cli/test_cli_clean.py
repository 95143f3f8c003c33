"""``clean``: what dead attempts have left goes, in a folder and in a store; what may still be published stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import OrderedWindows, StagedOutput, stage_window
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.output.cleaning import leftovers
from kafka_ordered_ops.output.layout import stages_folder
from kafka_ordered_ops.output.writing.draft import Draft
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.hosts_support import GROUP, asked
from tests.support.hosts_support import kafka as kafka
from tests.support.objects_support import memory as memory
from tests.support.objects_support import s3_server, staged_names, staged_rows

MakeRoot = Callable[[], str]
Clean = Callable[..., dict[str, Any]]


@pytest.fixture(params=["folder", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path, memory: MakeRoot) -> str:
    """Where windows are written to."""
    return str(tmp_path / "lake" / "orders") if request.param == "folder" else memory()


@pytest.fixture
def clean(capfd: pytest.CaptureFixture[str]) -> Clean:
    """Runs the command; returns its JSON."""

    def clean(*words: str, code: int = 0) -> dict[str, Any]:
        assert main(["clean", *words, "--json"]) == code
        found: dict[str, Any] = json.loads(capfd.readouterr().out)
        return found

    return clean


def left(root: str) -> list[tuple[str, str]]:
    """The attempts that have something below a root."""
    return [(one.window.partition("-")[0], one.attempt) for one in leftovers(root).found()]


def dead_draft(root: str, window_id: str, attempt: int, *, group_id: str = "g") -> StagedOutput:
    """What a job that died has left: files, and no marker."""
    output = StagedOutput(root, window_id, "c1", attempt, group_id=group_id)
    draft = Draft(output)
    draft.make()
    draft.files.write(f"{draft.path}/part-00000.parquet", b"half")
    return output


def test_old_stages_go_and_young_ones_stay(root: str, clean: Clean) -> None:
    """A dry run names the same and removes nothing; what readers see, and what may be committed, is not touched."""
    done = staged_rows(root, [1, 2], window_id="done")
    done.publish()
    complete = staged_rows(root, [3], window_id="complete")
    for attempt in (1, 2):
        dead_draft(root, "dead", attempt)
    assert left(root) == [("complete", "c1-1"), ("dead", "c1-1"), ("dead", "c1-2")]
    assert clean(root)["kept"] == {"younger": 3, "not_published": 0, "of_others": 0}
    would = clean(root, "--older-than", "PT0S", "--dry-run")
    assert [one["attempt"] for one in would["stages"]] == ["c1-1", "c1-2"]
    assert would["kept"] == {"younger": 0, "not_published": 1, "of_others": 0}
    assert (would["removed"], would["dry_run"], would["group"]) == (0, True, None)
    assert len(left(root)) == 3
    gone = clean(root, "--older-than", "PT0S")
    assert gone == {**would, "dry_run": False, "removed": gone["removed"]}
    assert gone["removed"] == sum(one["files"] for one in would["stages"]) > 0
    assert left(root) == [("complete", "c1-1")]
    assert done.is_published()
    assert complete.exists()
    assert clean(root, "--older-than", "PT0S")["stages"] == []


def test_a_group_s_open_windows_are_never_touched(
    root: str, clean: Clean, kafka: InMemoryKafka
) -> None:
    """Written, planned or committed, however old; another group's stages stay as well."""
    where = ("-b", kafka.bootstrap, "-g", GROUP, "--older-than", "PT0S")
    with OrderedWindows(kafka.settings, GROUP) as windows:
        plan = windows.plan(asked(), "written")
        staged = stage_window(plan, kafka.settings, root)
        windows.mark_written(plan, staged.to_json())
        dead = replace(plan, window_id="abandoned", claim_id="gone")
        stage_window(dead, kafka.settings, root)
        staged_rows(root, [1], window_id="other", group_id="another", ledger_id=plan.ledger_id)
        told = clean(root, *where)
        assert [one["attempt"] for one in told["stages"]] == ["gone-1"]
        assert told["kept"] == {"younger": 0, "not_published": 1, "of_others": 1}
        assert staged.exists()
        windows.commit(plan)
        assert clean(root, *where)["kept"]["not_published"] == 1
        staged.publish()
        windows.publish_many([windows.show("written").plan], [staged])
    stage_window(replace(plan, attempt=0), kafka.settings, root)
    assert [one["attempt"] for one in clean(root, *where)["stages"]] == [f"{plan.claim_id}-0"]
    assert [name for name, _ in left(root)] == ["other"]
    # Without a group: its ledger does not know the window.
    assert clean(root, *where[:2], *where[4:])["removed"] > 0
    assert left(root) == []


def test_an_attempt_that_writes_meanwhile_is_left_alone(root: str) -> None:
    """It was seen old, and has written since."""
    staged_rows(root, [1])
    stages = leftovers(root)
    [found] = stages.found()
    assert stages.remove(replace(found, modified=found.modified - timedelta(seconds=1))) == 0
    assert left(root) != []
    assert stages.remove(found) == found.files
    assert stages.remove(found) == 0


def test_what_another_program_put_there_stays(tmp_path: Path) -> None:
    """A folder or a link that is not this package's."""
    root = str(tmp_path / "orders")
    place = dead_draft(root, "w", 1)
    for name in ("theirs-1", "notes"):
        folder = Path(place.window_folder) / name
        folder.mkdir()
        (folder / "file").write_text("keep")
    (Path(place.window_folder) / "c1-7").symlink_to(tmp_path)
    assert StagedOutput.clean(root, older_than=timedelta(0)) > 0
    names = {one.name for one in Path(place.window_folder).iterdir()}
    assert names == {"theirs-1", "notes", "c1-7"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["s3://bucket"], "bare bucket"),
        (["/lake", "--older-than", "a week"], "older than"),
        (["/lake", "-g", "hourly"], "no brokers: give"),
    ],
)
def test_wrong_arguments_are_refused(clean: Clean, words: list[str], told: str) -> None:
    """By a named error."""
    error = clean(*words, code=2)["error"]
    assert error["type"] == "ConfigError"
    assert told in error["message"]


def test_nothing_there_is_nothing_to_remove(root: str, clean: Clean) -> None:
    """A root that does not exist yet is not made."""
    assert clean(root)["removed"] == 0
    assert not Path(stages_folder(root)).exists()


@pytest.mark.slow
def test_a_store_is_cleaned_with_options_that_nothing_shows(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real server of S3; as text for people too."""
    root = "s3://bucket/clean/orders"
    with s3_server() as options:
        place = StagedOutput(root, "w", "c1", 1, group_id="g", storage_options=options)
        Draft(place).make()
        monkeypatch.setenv("LAKE_SECRET", "canary-s3cret")
        given = {**options, "aws_secret_access_key": "env:LAKE_SECRET"}
        words = [word for one in given.items() for word in ("--storage-option", "=".join(one))]
        assert main(["clean", root, "--older-than", "PT0S", *words]) == 0
        assert staged_names(root, options) == []
        shown = capfd.readouterr()
        assert "attempts removed" in shown.err
        assert main(["clean", "s3://nowhere/x", *words]) != 0
        refused = capfd.readouterr()
    for text in (*shown, *refused):
        assert "canary-s3cret" not in text


@pytest.fixture(autouse=True)
def _no_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever runs the tests may have a group."""
    monkeypatch.delenv("KAFKA_ORDERED_OPS_GROUP", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
