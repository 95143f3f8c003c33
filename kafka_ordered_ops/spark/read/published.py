"""Read published windows as a DataFrame, in the order in which they were written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.output.address import spark_path
from kafka_ordered_ops.output.filesystem import normal_root
from kafka_ordered_ops.output.published import published
from kafka_ordered_ops.output.publisher import files_of
from kafka_ordered_ops.spark.environment import check_pyspark
from kafka_ordered_ops.spark.read.reading import parquet_reader
from kafka_ordered_ops.spark.s3a import lend_credentials

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_output(
    spark: SparkSession,
    path: str | os.PathLike[str],
    window_ids: Sequence[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Return the published windows below a folder as one DataFrame, rows in the order in which they were written.

    Rows are returned window by window, the files of each window by name, the rows of each file in order. Windows that
    were written in total order are returned in total order without another sort, across the partitions of the DataFrame,
    and also by ``collect``, ``toLocalIterator`` and ``mapInArrow``. ``spark.read.parquet`` does not keep this order,
    because it packs files into tasks by size. The columns are those of the files, and ``window_id``.

    The result is lazy: if a window is published again before it is read, its new state is read, or the read fails.

    Args:
        spark: the session, classic or Connect.
        path: the folder that was passed to `write_window`, `write_windows`, `stage_window` or `stage_windows`:
            a local or mounted one that this process and all executors see, or a prefix in an object store.
        window_ids: the windows, in this order. None selects all windows, sorted by id.
        storage_options: credentials and settings of an object store, with which this process looks at the windows;
            None uses those of the environment. For Spark, as in `write_window`.

    Raises:
        ConfigError: a window that is not published there or is requested twice; no window at all; or a
            path of an unknown scheme.
        EnvironmentConflictError: pyspark and pyspark-client are both installed.
    """
    check_pyspark()
    from kafka_ordered_ops.spark.read.files_source import FileOfWindow, frame_of_files

    windows = published(path, window_ids, storage_options)
    if not windows:
        raise ConfigError(
            f"no window is published below {normal_root(path)}: name the folder that the windows were written to"
        )
    files = [
        FileOfWindow(name, window_id) for window_id, names in windows.items() for name in names
    ]
    if not files:
        raise ConfigError(
            f"the {len(windows)} windows below {normal_root(path)} have no files, but even a window without rows has one: "
            "they were deleted. Replay the windows to write them again"
        )
    lend_credentials(spark, normal_root(path), storage_options)
    # If a job wrote other columns, an error names its file.
    schema = parquet_reader(spark).parquet(spark_path(files[0].path)).schema
    return frame_of_files(spark, files, schema, files_of(normal_root(path), storage_options))
