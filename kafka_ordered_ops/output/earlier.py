"""What earlier versions have left in the root: they had their stages there, and published markers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka_ordered_ops.output.filesystem import LOCK_NAME
from kafka_ordered_ops.output.layout import Layout
from kafka_ordered_ops.output.ownership import is_own_name
from kafka_ordered_ops.output.ports import Folders


def has_stages(files: Folders, output: Layout) -> bool:
    """Return whether an earlier version has staged anything of the window."""
    return files.is_folder(output.old_window_folder)


@contextmanager
def adopted(files: Folders, output: Layout) -> Iterator[None]:
    """Move the window's complete stages of an earlier version to where stages are now; keep such publishers out.

    For who holds the root's lock. Drafts stay: their jobs may still write to them.
    """
    if not has_stages(files, output):
        yield
        return
    with files.locked(output.old_stages_folder, output.old_window_folder):
        for name in files.names(output.old_window_folder):
            path = f"{output.old_window_folder}/{name}"
            target = f"{output.window_folder}/{name}"
            is_written_to = "~draft-" in name or "~shared-" in name
            if is_written_to or files.exists(target) or not is_own_name(files, output, path):
                continue
            files.make_folder(output.window_folder)
            files.rename(path, target)
        files.remove_if_empty(output.old_window_folder)
        yield


def remove_lock(files: Folders, output: Layout) -> None:
    """Remove the folder in which earlier versions had their stages, once nothing is in it."""
    folder = output.old_stages_folder
    if files.is_folder(folder) and files.names(folder) == [LOCK_NAME]:
        files.remove(folder)
