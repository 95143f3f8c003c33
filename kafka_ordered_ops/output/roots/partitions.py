"""The folders of dates and hours above windows' folders: find them, and check that all windows use the same.

Readers take such folders for columns, and fail on a root where some files have more of them than others. So all windows
of a root have the same `partition_by`, and a window with another one is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.core.window.partition import DATE_FOLDER, HOUR_FOLDER, partition_kind
from kafka_ordered_ops.core.window.window_id import is_window_id
from kafka_ordered_ops.output.layout import WINDOW_PREFIX, Layout, stages_folder
from kafka_ordered_ops.output.ports import Folders
from kafka_ordered_ops.output.roots.ownership import STAGE_NAME

#: How many staged windows are checked. They are alike, because each was compared with others before it was staged.
STAGED_EXAMPLES: Final = 4


def window_folders(files: Folders, root: str, names: Sequence[str] | None = None) -> Iterator[str]:
    """Yield the folders of a root's windows by their paths in it, sorted within each folder; `names` are those in the root."""
    names = files.names(root) if names is None else names
    yield from _windows(names)
    for date in _dates(names):
        inside = files.names(f"{root}/{date}")
        yield from _windows(inside, date)
        for hour in _hours(inside):
            yield from _windows(files.names(f"{root}/{date}/{hour}"), f"{date}/{hour}")


def check_folders(
    files: Folders,
    root: str,
    partition_by: PartitionBy | None,
    *,
    but: str | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Check that the windows of a root, published and staged, are partitioned alike.

    Args:
        files: the file system.
        root: the root as `normal_root` returns it.
        partition_by: how the next window is partitioned.
        but: the id of the next window, if known: its own folders are ignored, because they may move.
        names: the names in the root, from the holder of its lock; None reads them.

    Raises:
        ConfigError: there are windows with another partitioning.
        OSError: the file system failed.
    """
    names = files.names(root) if names is None else names
    for place in _examples(files, root, names, but):
        check_place(root, place, partition_by)
    for staged in islice(_staged(files, root, but), STAGED_EXAMPLES):
        check_staged(staged, partition_by)


def check_place(root: str, place: str | None, partition_by: PartitionBy | None) -> None:
    """Raise `ConfigError` if the path of a window's folder in the root does not match `partition_by`."""
    if place is None:
        return
    kind = partition_kind(place.rpartition("/")[0] or None)
    if kind is partition_by:
        return
    raise ConfigError(
        f"partition_by is {_shown(partition_by)}, but {root} has windows that were written with {_shown(kind)}, such as "
        f"{place}: many readers refuse a root whose files are not all in folders of the same columns. Nothing was changed. "
        f"Give partition_by={_shown(kind)}, or write to another root"
    )


def check_staged(staged: Layout, partition_by: PartitionBy | None) -> None:
    """Raise `ConfigError` if the place of a staged window, which may be committed already, does not match `partition_by`."""
    if (kind := kind_of(staged)) is partition_by:
        return
    raise ConfigError(
        f"partition_by is {_shown(partition_by)}, but window {staged.window_id} was staged for {staged.root} with "
        f"{_shown(kind)}, and may be published there: many readers refuse a root whose files are not all in folders of "
        "the same columns. Nothing was changed. Run that window to its end, or, if nobody needs it, abandon it and remove "
        f"{staged.stage_path}; or give partition_by={_shown(kind)}, or write to another root"
    )


def kind_of(output: Layout) -> PartitionBy | None:
    """Return how an output is partitioned."""
    return partition_kind(output.partition)


def _examples(files: Folders, root: str, names: Sequence[str], but: str | None) -> Iterator[str]:
    """Yield an example of a window's folder of each kind: in the root, and in the newest date with other windows."""
    yield from _first(_windows(names), but)
    for date in reversed(_dates(names)):
        inside = files.names(f"{root}/{date}")
        places = [*_first(_windows(inside, date), but)]
        for hour in _hours(inside):
            windows = _windows(files.names(f"{root}/{date}/{hour}"), f"{date}/{hour}")
            if there := [*_first(windows, but)]:
                places += there
                break
        yield from places
        if places:
            return


def _first(places: Iterator[str], but: str | None) -> Iterator[str]:
    ids = ((place, place.rpartition(WINDOW_PREFIX)[2]) for place in places)
    yield from islice((place for place, name in ids if name != but and is_window_id(name)), 1)


def _staged(files: Folders, root: str, but: str | None) -> Iterator[Layout]:
    """Yield complete stages of other windows."""
    stages = stages_folder(root)
    for window in files.names(stages) if files.is_folder(stages) else ():
        folder = f"{stages}/{window}"
        if window == but or not files.is_folder(folder):
            continue
        for name in files.names(folder):
            stage = STAGE_NAME.fullmatch(name)
            # Parts have markers too; drafts have none, and are not committed.
            if stage is None or (stage[3] or "").startswith(("~draft-", "~shared-", "~older-")):
                continue
            if (marker := Layout.read(files, root, f"{folder}/{name}")) is not None:
                yield marker


def _windows(names: Sequence[str], parent: str = "") -> Iterator[str]:
    above = f"{parent}/" if parent else ""
    return (f"{above}{name}" for name in names if name.startswith(WINDOW_PREFIX))


def _dates(names: Sequence[str]) -> list[str]:
    return [name for name in names if DATE_FOLDER.fullmatch(name)]


def _hours(names: Sequence[str]) -> list[str]:
    return [name for name in names if HOUR_FOLDER.fullmatch(name)]


def _shown(partition_by: PartitionBy | None) -> str:
    return "None" if partition_by is None else repr(partition_by.value)
