"""The lock of a root, for several of its windows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.layout import Layout
from kafka_ordered_ops.output.ports import Folders
from kafka_ordered_ops.output.roots.healing import heal, heal_others, is_cut_short

_Thing = TypeVar("_Thing")


def folders_of(output: Layout) -> Folders:
    """Return the file system of an output."""
    return files_for(output.root, output.storage_options)


def in_batches(
    first: Layout, things: Sequence[_Thing]
) -> Iterator[tuple[Folders, Sequence[_Thing]]]:
    """Yield outputs below one root, or items that belong to them, in batches that one lock covers."""
    files = folders_of(first)
    for at in range(0, len(things), files.windows_together):
        yield files, things[at : at + files.windows_together]


@contextmanager
def locked(files: Folders, outputs: Sequence[Layout]) -> Iterator[None]:
    """Keep other publishers of several windows below a root out, and repair what dead ones have left.

    While the lock is held, no other process changes the names of these windows in the root, so the holder reads them once.
    Between two locks it must read them again, because other publishers and other programs may have changed them.
    """
    root, are_others = outputs[0].root, False
    files.make_folder(root)
    with files.locked(outputs[0].stages_folder, outputs[0].window_folder):
        if is_cut_short(files, root):
            # Heal each window, even after entries of other windows were found.
            are_others = any(list(map(partial(heal, files), outputs)))
        yield
    if are_others:
        heal_others(files, root)


def look_after(files: Folders, output: Layout) -> None:
    """Repair what dead publishers have left, before a window is read."""
    if is_cut_short(files, output.root):
        with locked(files, [output]):
            pass
