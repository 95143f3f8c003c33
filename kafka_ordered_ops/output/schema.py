"""The columns of a window's files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ordered_ops.output.filesystem import data_names, files_for
from kafka_ordered_ops.output.staged_output import StagedOutput


def output_schema(output: StagedOutput) -> pa.Schema | None:
    """Return the columns of what readers see of a window, from the end of one of its files; None where it has none.

    Raises:
        OSError, pyarrow.ArrowException: the file could not be read: it may be replaced at this very moment.
        ConfigError: an output that is no local folder.
    """
    folder = output.final_path
    names = data_names(files_for(output.root), folder)
    return pq.read_schema(f"{folder}/{names[0]}") if names else None
