"""Find exactly the files of published windows that readers see."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.output.address import is_in_store
from kafka_ordered_ops.output.filesystem import (
    as_sink_error,
    data_names,
    normal_root,
)
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.layout import WINDOW_PREFIX, Layout
from kafka_ordered_ops.output.ports import Folders
from kafka_ordered_ops.output.publisher import files_of
from kafka_ordered_ops.output.roots.ownership import lost_marker
from kafka_ordered_ops.output.roots.partitions import window_folders

if TYPE_CHECKING:
    import pyarrow as pa

#: How many names an error lists.
_SHOWN_MAX: Final = 8


def files(
    root: str | os.PathLike[str],
    window_ids: Sequence[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return the paths of the files of published windows, for DuckDB, Polars, pandas, PyArrow or Spark.

    Each window is in the list as a whole or not at all, also while it is published or replaced. The files are grouped
    by window, and the files of each window are in the order of their rows.

    Args:
        root: the folder or the prefix that the windows were written to.
        window_ids: the windows, in this order. None selects all windows, sorted by id.
        storage_options: credentials and settings of an object store; None uses those of the environment.

    Raises:
        ConfigError: a window that is not published there or is requested twice, or an invalid argument.
        SinkError: the file system or the store failed.
    """
    by_window = published(root, window_ids, storage_options)
    return [path for paths in by_window.values() for path in paths]


def window_table(
    root: str | os.PathLike[str], window_id: str, storage_options: Mapping[str, Any] | None
) -> pa.Table:
    """Read the files of a published window, its rows in order; raise what `files` raises."""
    # Imported late: a list of paths needs no Arrow.
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = normal_root(root)
    paths = published(root, [window_id], storage_options)[window_id]
    where = files_of(root, storage_options)
    tables = []
    for path in paths:
        with as_sink_error(f"{path} cannot be read"), where.open(path) as file:
            # Not in Arrow's threads: one that lets go of a file of Python while the interpreter ends aborts the process.
            tables.append(pq.ParquetFile(file, pre_buffer=False).read(use_threads=False))
    return pa.concat_tables(tables)


def published(
    root: str | os.PathLike[str],
    window_ids: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, list[str]]:
    """Return the files of published windows, by window id; see `files`."""
    root = normal_root(root)
    selected = None if window_ids is None else _each_once(window_ids)
    with as_sink_error(f"the windows below {root} cannot be read"):
        if is_in_store(root):
            from kafka_ordered_ops.output.objects.reading import published_files

            by_window = published_files(root, selected, storage_options)
        else:
            by_window = _in_folders(files_for(root, storage_options), root, selected)
    if selected is None:
        return dict(sorted(by_window.items()))
    missing = [window_id for window_id in selected if window_id not in by_window]
    if missing:
        listed = ", ".join(missing[:_SHOWN_MAX]) + (" ..." if len(missing) > _SHOWN_MAX else "")
        raise ConfigError(
            f"{len(missing)} of {len(selected)} windows are not published below {root}: {listed}. They were "
            "written elsewhere, or are not committed yet: publishing comes after the commit"
        )
    return {window_id: by_window[window_id] for window_id in selected}


def _each_once(window_ids: Sequence[str]) -> tuple[str, ...]:
    if not window_ids:
        raise ConfigError("there is no window to read: pass at least one, or leave window_ids out")
    twice = [window_id for window_id, count in Counter(window_ids).items() if count > 1]
    if twice:
        raise ConfigError(f"window {twice[0]} is requested twice: pass each window once")
    return tuple(window_ids)


def _in_folders(
    files: Folders, root: str, selected: tuple[str, ...] | None
) -> dict[str, list[str]]:
    """Return the files of the folders with a marker, by window id."""
    names = list(window_folders(files, root))
    if selected is not None:
        folders_of = {f"{WINDOW_PREFIX}{window_id}" for window_id in selected}
        names = [name for name in names if name.rpartition("/")[2] in folders_of]
    folders: dict[str, str] = {}
    for folder in (f"{root}/{name}" for name in names):
        marker = Layout.read_visible(files, root, folder)
        if marker is None:
            if lost := lost_marker(files, root, folder):
                raise SinkError(f"{folder} cannot be read: another program made it{lost}")
            continue
        if (other := folders.setdefault(marker.window_id, folder)) != folder:
            raise ConfigError(
                f"{other} and {folder} both hold window {marker.window_id}: one of them was copied there. Move it away"
            )
    return {
        window_id: [f"{folder}/{name}" for name in data_names(files, folder)]
        for window_id, folder in folders.items()
    }
