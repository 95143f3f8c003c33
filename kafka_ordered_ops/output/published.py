"""The files that readers see of published windows, exactly."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.core.window.window import digest_in, id_digest
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

#: Names that an error lists.
_SHOWN_MAX: Final = 8


def files(
    root: str | os.PathLike[str],
    window_ids: Sequence[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return the paths of the files of published windows, for DuckDB, Polars, pandas, PyArrow or Spark.

    Each window is in the list as a whole or not at all, also while it is published or replaced. One window after the
    other, and the files of each in the order of their rows.

    Args:
        root: the folder or the prefix that the windows were written to.
        window_ids: the windows, in this order. None: all windows, sorted by id.
        storage_options: credentials and settings of an object store; None: as the environment has them.

    Raises:
        ConfigError: a window that is not published there or is requested twice, or an invalid argument.
        SinkError: the file system or the store failed.
    """
    found = published(root, window_ids, storage_options)
    return [path for paths in found.values() for path in paths]


def window_table(
    root: str | os.PathLike[str], window_id: str, storage_options: Mapping[str, Any] | None
) -> pa.Table:
    """Read the files of a published window, its rows in order; raises what `files` raises."""
    # Imported late: a list of paths needs no Arrow.
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = normal_root(root)
    paths = published(root, [window_id], storage_options)[window_id]
    where = files_of(root, storage_options)
    tables = []
    for path in paths:
        with as_sink_error(f"{path} cannot be read"), where.open(path) as file:
            tables.append(pq.read_table(file))
    return pa.concat_tables(tables)


def published(
    root: str | os.PathLike[str],
    window_ids: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, list[str]]:
    """Return the files of published windows, by window id; see `files`."""
    root = normal_root(root)
    wanted = None if window_ids is None else _each_once(window_ids)
    with as_sink_error(f"the windows below {root} cannot be looked at"):
        if is_in_store(root):
            from kafka_ordered_ops.output.objects.reading import published_files

            found = published_files(root, wanted, storage_options)
        else:
            found = _in_folders(files_for(root, storage_options), root, wanted)
    if wanted is None:
        return dict(sorted(found.items()))
    missing = [one for one in wanted if one not in found]
    if missing:
        shown = ", ".join(missing[:_SHOWN_MAX]) + (" ..." if len(missing) > _SHOWN_MAX else "")
        raise ConfigError(
            f"{len(missing)} of {len(wanted)} windows are not published below {root}: {shown}. They were "
            "written elsewhere, or are not committed yet: publishing comes after the commit"
        )
    return {one: found[one] for one in wanted}


def _each_once(window_ids: Sequence[str]) -> tuple[str, ...]:
    if not window_ids:
        raise ConfigError("there is no window to read: pass at least one, or leave window_ids out")
    twice = [window_id for window_id, count in Counter(window_ids).items() if count > 1]
    if twice:
        raise ConfigError(f"window {twice[0]} is requested twice: pass each window once")
    return tuple(window_ids)


def _in_folders(files: Folders, root: str, wanted: tuple[str, ...] | None) -> dict[str, list[str]]:
    """Return the files of the folders that say whose output they hold."""
    names = list(window_folders(files, root))
    if wanted is not None:
        digests = {id_digest(one) for one in wanted}
        names = [name for name in names if digest_in(name.rpartition(WINDOW_PREFIX)[2]) in digests]
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
