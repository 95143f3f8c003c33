"""Repair what an interrupted replacement has left, so that readers see the window again.

A process that replaces a window's output first moves the new output to ``swap/<tag>``, under the new output's tag, and
only then changes what readers see::

    swap/<tag>     the new output before it is published; or the older one, once the two have been exchanged
    swap/<tag>~0   the older output before it is removed, where the two cannot be exchanged

The folder is empty except during replacements. So one listing shows which windows a dead process was replacing, and the
tag in an entry shows what the entry is. Nothing here publishes: a new output moves back to its stage.
"""

from __future__ import annotations

import logging
from typing import Final

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.output.filesystem import (
    GOING_NAME,
    is_data,
    is_own_folder,
    remove_stage,
    tag_in,
)
from kafka_ordered_ops.output.layout import (
    Layout,
    stages_folder,
    swap_folder,
    tag_beginning,
)
from kafka_ordered_ops.output.ports import Folders
from kafka_ordered_ops.output.roots.ownership import other_places, remove_tagged

_log = logging.getLogger(__name__)

#: Separates, in the name of an entry, the tag of the new output from the number of an older one.
OLDER: Final = "~"


def is_cut_short(files: Folders, root: str) -> bool:
    """Return whether a replacement is running at a root, or was interrupted."""
    return bool(_entries(files, root))


def heal(files: Folders, output: Layout) -> bool:
    """Repair what replacements of one window have left; return whether there are entries of other windows.

    The caller holds the window's lock.
    """
    names = _entries(files, output.root)
    own = [name for name in names if name.startswith(tag_beginning(output.window_id))]
    # The outputs that readers saw, before those that were to replace them.
    for name in sorted(own, key=lambda name: OLDER not in name):
        _heal_entry(files, output.root, name)
    return len(own) < len(names)


def heal_others(files: Folders, root: str) -> None:
    """Repair what replacements of any window have left, and wait for running ones; errors are logged.

    The caller holds no lock: two processes would wait for each other's windows forever.
    """
    for name in _entries(files, root):
        path = f"{swap_folder(root)}/{name}"
        try:
            # It may have been removed with another entry of the same window, or its publisher has ended.
            if not files.is_folder(path):
                continue
            # A removal starts with the marker.
            new = name.partition(OLDER)[0]
            marker = Layout.read_visible(files, root, path) or Layout.read_tagged(files, root, new)
            window = f"{stages_folder(root)}/{name}" if marker is None else marker.window_folder
            with files.locked(stages_folder(root), window):
                if marker is None:
                    _heal_entry(files, root, name)
                else:
                    # All entries of the window: in HDFS, some of them come back with the turn.
                    heal(files, marker)
        except (OSError, SinkError) as error:
            _log.warning("%s was left by a publication that died, and stays: %s", path, error)


def _entries(files: Folders, root: str) -> list[str]:
    folder = swap_folder(root)
    names = files.names(folder)
    # The target of a link is not ours.
    return names if names and files.is_folder(folder) else []


def _heal_entry(files: Folders, root: str, name: str) -> None:
    path = f"{swap_folder(root)}/{name}"
    if not files.is_folder(path):
        return
    tag, marker = tag_in(files, path), Layout.read_visible(files, root, path)
    if marker is None:
        if _is_going(files, path):
            files.remove(path)
    elif tag == name:
        _stage_again(files, path, marker)
    else:
        _show_again(files, path, marker)


def _is_going(files: Folders, path: str) -> bool:
    """Return whether this was an output whose removal has begun."""
    if not is_own_folder(files, path):
        return False
    names = files.names(path)
    return GOING_NAME in names or not any(map(is_data, names))


def _stage_again(files: Folders, path: str, new: Layout) -> None:
    """Move an output that did not reach its place back to its stage, unless the stage was written again."""
    if files.exists(new.stage_path):
        if not is_own_folder(files, new.stage_path):
            _log.warning("%s stays: another program's %s is in the way", path, new.stage_path)
            return
        if new.own_marker(files, new.stage_path) is not None:
            remove_tagged(files, new.root, path)
            return
        remove_stage(files, new.stage_path)
    files.make_folder(new.window_folder)
    files.rename(path, new.stage_path)
    _log.warning(
        "A publication of window %s died. Its output is in %s again.",
        new.window_id,
        new.stage_path,
    )


def _show_again(files: Folders, path: str, older: Layout) -> None:
    """Move an older output back to where readers saw it; remove it if they see the window already."""
    visible = Layout.read_visible(files, older.root, older.final_path)
    if visible is not None and visible.window_id == older.window_id:
        remove_tagged(files, older.root, path)
    elif files.exists(older.final_path):
        _log.warning("%s stays: another program's %s is in the way", path, older.final_path)
    elif other_places(files, older):
        remove_tagged(files, older.root, path)
    else:
        files.make_folder(older.final_parent)
        files.rename(path, older.final_path)
        _log.warning(
            "A publication of window %s died. Readers of %s see again what they saw before.",
            older.window_id,
            older.final_path,
        )
