"""Read published windows as a DataFrame, in the order in which they were written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.window import safe_name
from kafka_ordered_ops.output.filesystem import (
    LocalFiles,
    as_sink_error,
    data_names,
    files_for,
    normal_root,
    spark_path,
)
from kafka_ordered_ops.output.layout import WINDOW_PREFIX
from kafka_ordered_ops.output.staged_output import read_marker
from kafka_ordered_ops.spark.environment import check_pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: How a published window's folder begins.

#: Names that an error lists.
_SHOWN_MAX: Final = 8


def read_output(
    spark: SparkSession,
    path: str | os.PathLike[str],
    window_ids: Sequence[str] | None = None,
) -> DataFrame:
    """Return the published windows below a folder as one DataFrame, rows in the order in which they were written.

    One window after the other, the files of each by name, the rows of each file in their order. Windows
    that were written in total order come out in total order without being sorted again, over the partitions
    of the DataFrame, and so by ``collect``, ``toLocalIterator`` and ``mapInArrow``. ``spark.read.parquet`` does
    not keep this order: it packs files into tasks by size. The columns are those of the files, and
    ``window_id``.

    The result is lazy: a window that is published again in between is read in its new state, or not at all.

    Args:
        spark: the session, classic or Connect.
        path: the folder that was passed to `write_window`, `write_windows`, `stage_window` or `stage_windows`:
            a local or mounted one that this process and all executors see.
        window_ids: the windows, in this order. None: all windows, sorted by id.

    Raises:
        ConfigError: a window that is not published there or is requested twice; no window at all; or a
            path that is not local.
        EnvironmentConflictError: pyspark and pyspark-client are both installed.
    """
    check_pyspark()
    from kafka_ordered_ops.spark.read.files_source import FileOfWindow, frame_of_files

    root = normal_root(path)
    files = files_for(root)
    with as_sink_error(f"the windows below {root} cannot be looked at"):
        folders = _folders(files, root, window_ids)
        found = [
            FileOfWindow(f"{folder}/{name}", window_id)
            for window_id, folder in folders.items()
            for name in data_names(files, folder)
        ]
    if not found:
        raise ConfigError(
            f"the {len(folders)} windows below {root} have no files, but even a window without rows has one: they were "
            "deleted. Replay the windows to write them again"
        )
    # All of these jobs wrote alike, or a task says whose file is different.
    schema = spark.read.parquet(spark_path(found[0].path)).schema
    return frame_of_files(spark, found, schema)


def _folders(files: LocalFiles, root: str, window_ids: Sequence[str] | None) -> dict[str, str]:
    """Return the folders of the windows, by their ids, in the order wanted."""
    if window_ids is None:
        names = [name for name in files.names(root) if name.startswith(WINDOW_PREFIX)]
        by_id = {
            window_id: f"{root}/{name}"
            for name in names
            if (window_id := _published_id(files, root, f"{root}/{name}")) is not None
        }
        if not by_id:
            raise ConfigError(
                f"no window is published below {root}: name the folder that the windows were written to"
            )
        return dict(sorted(by_id.items()))
    if not window_ids:
        raise ConfigError("there is no window to read: pass at least one, or leave window_ids out")
    twice = [window_id for window_id, count in Counter(window_ids).items() if count > 1]
    if twice:
        raise ConfigError(f"window {twice[0]} is requested twice: pass each window once")
    folders = {one: f"{root}/{WINDOW_PREFIX}{safe_name(one)}" for one in window_ids}
    missing = [one for one, folder in folders.items() if _published_id(files, root, folder) != one]
    if missing:
        shown = ", ".join(missing[:_SHOWN_MAX]) + (" ..." if len(missing) > _SHOWN_MAX else "")
        raise ConfigError(
            f"{len(missing)} of {len(window_ids)} windows are not published below {root}: {shown}. They were "
            "written elsewhere, or are not committed yet: publishing comes after the commit"
        )
    return folders


def _published_id(files: LocalFiles, root: str, folder: str) -> str | None:
    """Return the window whose output a folder says it holds; None for one that this package did not write."""
    marker = read_marker(files, root, folder)
    return None if marker is None else marker.window_id
