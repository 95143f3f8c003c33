"""Replacements of published output: on a file system that exchanges folders, and as on one that cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from kafka_ordered_ops import StagedOutput
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.layout import swap_folder
from kafka_ordered_ops.output.publisher import files_of
from kafka_ordered_ops.output.root_check import check_root
from tests.support.objects_support import Killed, every_kill, named_rows, staged_rows

#: The rows of an older attempt and of a newer one.
OLD, NEW = [1, 2, 3], [4, 5, 6, 8]
#: The rows of the window that other windows' publishers publish.
OTHER: Final = [7]


def cannot_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine's file systems such as cannot exchange two folders."""
    monkeypatch.setattr(LocalFiles, "exchange", lambda *_: False)


@pytest.fixture(params=[True, False], ids=["exchange", "no exchange"])
def exchanges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether two folders can be exchanged in one step. What crashes here is a process, and no disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    if not request.param:
        cannot_exchange(monkeypatch)
    found: bool = request.param
    return found


def swapped(root: str) -> list[str]:
    """What is on its way for the instant of a replacement."""
    return files_of(root).names(swap_folder(root))


def die_before_the_last_rename(output: StagedOutput, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a replacement die when readers see nothing: where folders cannot be exchanged."""
    rename = LocalFiles.rename

    def dying(files: LocalFiles, source: str, to: str) -> None:
        if to == output.final_path:
            raise Killed
        rename(files, source, to)

    with monkeypatch.context() as patch:
        cannot_exchange(patch)
        patch.setattr(LocalFiles, "rename", dying)
        with pytest.raises(Killed):
            output.publish()
    assert not Path(output.final_path).exists()
    assert len(swapped(output.root)) == 2


def check_replacements_that_others_heal(
    make_root: Callable[[], str], touch: Callable[[str], object]
) -> None:
    """After a kill at any step, readers see the older rows or the newer ones once anybody has touched the root."""
    seen = set()
    for killed in every_kill(least=10):
        root = make_root()
        staged_rows(root, OLD, attempt=1).publish()
        newer = staged_rows(root, NEW, attempt=2)
        with killed:
            newer.publish()
        was = named_rows(root)
        touch(root)
        now = [n for n in named_rows(root) if n not in OTHER]
        seen.add((tuple(was), tuple(now)))
        assert swapped(root) == []
        assert newer.is_published() is (now == NEW)
        assert newer.is_published() or newer.exists()
        newer.publish()
        assert [n for n in named_rows(root) if n not in OTHER] == NEW
    old, new = tuple(OLD), tuple(NEW)
    assert seen == {(old, old), ((), old), (new, new)}


#: Whoever touches a root next: none of them is asked to publish the window ``w`` itself.
NEXT: Final[dict[str, Callable[[str], object]]] = {
    "a publisher of another window": lambda root: staged_rows(
        root, OTHER, window_id="other"
    ).publish(),
    "a job of another window": lambda root: staged_rows(root, OTHER, window_id="other"),
    "a look at another window": lambda root: StagedOutput(root, "other", "c1", 1).is_published(),
    "clean": lambda root: StagedOutput.clean(root, older_than=timedelta(days=7)),
    "the check before a plan": lambda root: check_root(root, None, None),
}
