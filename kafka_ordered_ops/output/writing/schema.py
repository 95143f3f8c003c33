"""The columns of a window's files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ordered_ops.output.address import is_in_store
from kafka_ordered_ops.output.filesystem import data_names
from kafka_ordered_ops.output.published import published
from kafka_ordered_ops.output.publisher import files_of
from kafka_ordered_ops.output.writing.staged_output import StagedOutput


def output_schema(output: StagedOutput) -> pa.Schema | None:
    """Return the columns of a published window, from the footer of one of its files; None without files.

    Raises:
        OSError, pyarrow.ArrowException: the file could not be read: it may be being replaced right now.
        ConfigError: the output has an unknown scheme, or is in an object store and not published.
    """
    where = files_of(output.root, output.storage_options)
    if is_in_store(output.root):
        paths = published(output.root, [output.window_id], output.storage_options)[output.window_id]
    else:
        folder = output.final_path
        paths = [f"{folder}/{name}" for name in data_names(where, folder)]
    if not paths:
        return None
    with where.footer(paths[0]) as footer:
        return pq.read_schema(footer)
