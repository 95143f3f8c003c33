"""Many windows staged and published in one pass: what is done once for all of them, and what for each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from kafka_ordered_ops import SinkError, StagedOutput
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.published import published
from kafka_ordered_ops.output.writing.draft import drafts_of
from kafka_ordered_ops.windows.sink import publish_each
from tests.support.spark_support import crashes

#: In one pass; fewer than one lock is for.
WINDOWS: Final = 20


def staged(root: Path, windows: int, attempt: int = 1) -> list[StagedOutput]:
    """Complete stages of so many windows, with a file each."""
    outputs = [StagedOutput(str(root), f"w{n:02}", "c", attempt) for n in range(windows)]
    with drafts_of(outputs) as drafts:
        for draft in drafts:
            (Path(draft.path) / "part-00000.txt").write_text(str(attempt))
        return [draft.seal({"records": 1}) for draft in drafts]


def shown(root: Path) -> dict[str, list[str]]:
    """What readers see of each window."""
    found = published(str(root))
    return {name: [Path(path).read_text() for path in paths] for name, paths in found.items()}


def synchronized(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and folders that are made durable from here on, and the new names of what is renamed."""
    done: list[str] = []
    fsync, rename = os.fsync, LocalFiles.rename

    def noting(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def renaming(files: LocalFiles, source: str, target: str) -> None:
        rename(files, source, target)
        done.append(f"renamed {target}")

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(LocalFiles, "rename", renaming)
    return done


def test_what_is_made_durable_for_each_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six times; the folders that hold names of several windows, once for all."""
    root = tmp_path / "orders"
    publish_each(staged(root, 1))
    with monkeypatch.context() as patch:
        done = synchronized(patch)
        publish_each(staged(root, WINDOWS, attempt=2)[1:])
    count = sum(not one.startswith("renamed ") for one in done)
    assert 6 * (WINDOWS - 1) <= count <= 6 * (WINDOWS - 1) + 20
    for shared in (root, tmp_path / ".koo/orders/windows"):
        assert done.count(str(shared)) == 1
    assert done.count(str(tmp_path / ".koo/orders/stage")) <= 2
    assert list(shown(root)) == [f"w{n:02}" for n in range(WINDOWS)]


def test_each_step_is_durable_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every window: its tag before its marker moves, and the marker before readers see the folder."""
    root = tmp_path / "orders"
    done = synchronized(monkeypatch)
    outputs = staged(root, 3)
    before = len(done)
    publish_each(outputs)
    for output in outputs:
        stage, markers = output.stage_path, str(tmp_path / ".koo/orders/windows")
        [draft] = {
            one
            for one in done
            if one.startswith(f"{stage}~draft-") and "/" not in one[len(stage) :]
        }
        landed = done.index(f"renamed {stage}")
        assert done.index(f"{draft}/part-00000.txt") < done.index(draft) < landed
        assert os.path.dirname(stage) in done[landed:before]
        tagged, moved = (n for n, one in enumerate(done) if n >= before and one == stage)
        told = done.index(markers, tagged)
        visible = done.index(f"renamed {output.final_path}")
        assert tagged < told < moved < visible < done.index(str(root), visible)


def test_the_names_in_a_root_are_read_once_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a hundred thousand: before a draft, when it is complete, before the commit and to publish."""
    root, read = tmp_path / "orders", list[str]()
    names = LocalFiles.names

    def noting(files: LocalFiles, folder: str) -> list[str]:
        read.append(folder)
        return names(files, folder)

    monkeypatch.setattr(LocalFiles, "names", noting)
    outputs = staged(root, WINDOWS)
    checked = outputs[0].check_ready_with(outputs)
    publish_each(outputs)
    assert checked == outputs
    assert read.count(str(root)) == 5


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_pass_that_dies_at_any_step_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Readers see a window as a whole or not at all, and in the end all of them."""
    for root, dies in crashes(tmp_path, monkeypatch, after=after, least=15):
        outputs = staged(root, 3)
        with dies:
            publish_each(outputs)
        assert all(texts == ["1"] for texts in shown(root).values())
        publish_each(outputs)
        assert shown(root) == {f"w{n:02}": ["1"] for n in range(3)}
        assert all(map(StagedOutput.is_published, outputs))


def test_a_window_that_cannot_be_published_does_not_hold_up_those_before_it(
    tmp_path: Path,
) -> None:
    """Its error is raised, and nothing of the later ones is lost."""
    root = tmp_path / "orders"
    outputs = staged(root, 3)
    lost = Path(outputs[1].stage_path) / "part-00000.txt"
    lost.unlink()
    with pytest.raises(SinkError, match="w01 is not published"):
        publish_each(outputs)
    assert shown(root) == {"w00": ["1"]}
    lost.write_text("1")
    publish_each(outputs)
    assert list(shown(root)) == ["w00", "w01", "w02"]


def test_outputs_of_several_roots_are_published_root_by_root(tmp_path: Path) -> None:
    """And an output that knows nothing of this is published alone."""
    here, there = staged(tmp_path / "here", 2), staged(tmp_path / "there", 2)
    alone = Alone()
    publish_each([here[0], there[0], alone, here[1], there[1]])
    assert [list(shown(tmp_path / name)) for name in ("here", "there")] == [["w00", "w01"]] * 2
    assert alone.published == 1


class Alone:
    """Another sink's output."""

    published = 0

    def to_json(self) -> dict[str, str]:
        """Nothing of interest."""
        return {}

    def publish(self) -> None:
        """Count."""
        self.published += 1

    def discard(self) -> None:
        """Do nothing."""
