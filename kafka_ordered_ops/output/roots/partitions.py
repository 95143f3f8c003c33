"""The folders of dates and hours above windows' folders: what is in a root, and that all of it is alike.

Readers take such folders for columns, and refuse a root where some files have more of them than others. So all windows
of a root have the same `partition_by`, and a window of another one is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.core.window.partition import DATE_FOLDER, HOUR_FOLDER, partition_kind
from kafka_ordered_ops.core.window.window import digest_in, id_digest, safe_name
from kafka_ordered_ops.output.layout import WINDOW_PREFIX, Layout, stages_folder
from kafka_ordered_ops.output.ports import Folders
from kafka_ordered_ops.output.roots.ownership import STAGE_NAME

#: Staged windows that are looked at. They are alike, for each was compared with others before it was staged.
STAGED_EXAMPLES: Final = 4


def window_folders(files: Folders, root: str, names: Sequence[str] | None = None) -> Iterator[str]:
    """Yield the folders of windows in a root, whose names may be given, by their paths in it, sorted within each folder."""
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
    """Check that the windows of a root, as `normal_root` gives it, are partitioned alike; also those that are staged.

    Args:
        files: the file system.
        root: the root.
        partition_by: how the next window is partitioned.
        but: its id, if it is known: what there is of it may move.
        names: the names in the root, from the holder of its lock; None: they are read.

    Raises:
        ConfigError: there are windows that are partitioned otherwise.
        OSError: the file system failed.
    """
    names = files.names(root) if names is None else names
    for place in _examples(files, root, names, None if but is None else id_digest(but)):
        check_place(root, place, partition_by)
    for staged in islice(_staged(files, root, but), STAGED_EXAMPLES):
        check_staged(staged, partition_by)


def check_place(root: str, place: str | None, partition_by: PartitionBy | None) -> None:
    """Raise `ConfigError` if a window's folder, by its path in the root, is not where `partition_by` puts windows."""
    if place is None:
        return
    found = partition_kind(place.rpartition("/")[0] or None)
    if found is partition_by:
        return
    raise ConfigError(
        f"partition_by is {_shown(partition_by)}, but {root} has windows that were written with {_shown(found)}, such as "
        f"{place}: many readers refuse a root whose files are not all in folders of the same columns. Nothing was changed. "
        f"Give partition_by={_shown(found)}, or write to another root"
    )


def check_staged(staged: Layout, partition_by: PartitionBy | None) -> None:
    """Raise `ConfigError` if a staged window, which may be committed already, is not for where `partition_by` puts windows."""
    if (found := kind_of(staged)) is partition_by:
        return
    raise ConfigError(
        f"partition_by is {_shown(partition_by)}, but window {staged.window_id} was staged for {staged.root} with "
        f"{_shown(found)}, and may be published there: many readers refuse a root whose files are not all in folders of "
        "the same columns. Nothing was changed. Run that window to its end, or, if nobody needs it, abandon it and remove "
        f"{staged.stage_path}; or give partition_by={_shown(found)}, or write to another root"
    )


def kind_of(output: Layout) -> PartitionBy | None:
    """Return how an output is partitioned."""
    return partition_kind(output.partition)


def _examples(files: Folders, root: str, names: Sequence[str], but: str | None) -> Iterator[str]:
    """Yield a window's folder of each kind that there is, as far as the newest date with other windows tells."""
    yield from _first(_windows(names), but)
    for date in reversed(_dates(names)):
        inside = files.names(f"{root}/{date}")
        found = [*_first(_windows(inside, date), but)]
        for hour in _hours(inside):
            windows = _windows(files.names(f"{root}/{date}/{hour}"), f"{date}/{hour}")
            if there := [*_first(windows, but)]:
                found += there
                break
        yield from found
        if found:
            return


def _first(places: Iterator[str], but: str | None) -> Iterator[str]:
    digests = ((one, digest_in(one.rpartition(WINDOW_PREFIX)[2])) for one in places)
    yield from islice((one for one, digest in digests if digest not in (None, but)), 1)


def _staged(files: Folders, root: str, but: str | None) -> Iterator[Layout]:
    """Yield complete stages of other windows."""
    stages, mine = stages_folder(root), None if but is None else safe_name(but)
    for window in files.names(stages) if files.is_folder(stages) else ():
        folder = f"{stages}/{window}"
        if window == mine or not files.is_folder(folder):
            continue
        for name in files.names(folder):
            stage = STAGE_NAME.fullmatch(name)
            # Parts have markers as well; drafts have none, and are not committed.
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
