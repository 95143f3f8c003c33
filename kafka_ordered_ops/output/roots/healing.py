"""Put right what a replacement that was cut short has left: readers see again what they saw, or see already.

Whoever replaces a window's output first moves the new one to ``swap/<tag>``, by its own tag, and only then touches what
readers see::

    swap/<tag>     the new output on its way in; or the older one, once the two have been exchanged in one step
    swap/<tag>~0   the older one on its way out, where they cannot be exchanged

So one listing of the folder, which is empty but for such instants, tells which windows a dead process was at, and the tag
in an entry tells what it is. Nothing here decides what is published: a new output goes back to its stage.
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

#: In the name of an entry: between the tag of the new output and the number of an older one.
OLDER: Final = "~"


def is_cut_short(files: Folders, root: str) -> bool:
    """Return whether a replacement is under way at a root, or was cut short."""
    return bool(_entries(files, root))


def heal(files: Folders, output: Layout) -> bool:
    """Put right what is left of replacements of one window; return whether there is something of other windows.

    The caller holds the window's lock.
    """
    names = _entries(files, output.root)
    mine = [name for name in names if name.startswith(tag_beginning(output.window_id))]
    # What readers saw, before what was to replace it.
    for name in sorted(mine, key=lambda name: OLDER not in name):
        _heal_entry(files, output.root, name)
    return len(mine) < len(names)


def heal_others(files: Folders, root: str) -> None:
    """Put right what is left of replacements of any window, and wait for those under way; errors are logged.

    The caller holds no lock: two processes that wait for each other's windows would never end.
    """
    for name in _entries(files, root):
        path = f"{swap_folder(root)}/{name}"
        try:
            # It may be gone with another one of the same window, or its publisher has ended.
            if not files.is_folder(path):
                continue
            # Of what is being removed, the marker goes first.
            new = name.partition(OLDER)[0]
            marker = Layout.read_visible(files, root, path) or Layout.read_tagged(files, root, new)
            window = f"{stages_folder(root)}/{name}" if marker is None else marker.window_folder
            with files.locked(stages_folder(root), window):
                if marker is None:
                    _heal_entry(files, root, name)
                else:
                    # All of the window: in HDFS, some of it comes back with the turn.
                    heal(files, marker)
        except (OSError, SinkError) as error:
            _log.warning("%s was left by a publication that died, and stays: %s", path, error)


def _entries(files: Folders, root: str) -> list[str]:
    folder = swap_folder(root)
    names = files.names(folder)
    # What is behind a link is not ours.
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
    """Return whether this was an output, and its removal has begun."""
    if not is_own_folder(files, path):
        return False
    names = files.names(path)
    return GOING_NAME in names or not any(map(is_data, names))


def _stage_again(files: Folders, path: str, new: Layout) -> None:
    """Move an output that did not get to its place back to its stage, unless the stage was written again."""
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
        "A publication of window %s died. What it was to show is in %s again.",
        new.window_id,
        new.stage_path,
    )


def _show_again(files: Folders, path: str, older: Layout) -> None:
    """Move an older output back to where readers saw it, unless they see the window; then remove it."""
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
