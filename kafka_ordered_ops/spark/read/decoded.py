"""Decode values and keys in Spark's tasks: where they are read, or after another engine has read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.decoding.discarded import Discarded
from kafka_ordered_ops.decoding.left_out import Without
from kafka_ordered_ops.decoding.plain_types import plain_batch, plain_columns
from kafka_ordered_ops.spark.read.files_source import to_arrow
from kafka_ordered_ops.spark.read.order import InOrder, mark_in_order, order_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

#: Counts of fields without a column, as JSON in one of the rows that were decoded together, and null in all others. So they are
#: exact where each row is written once, however often tasks run.
DISCARDED: Final = "_koo_discarded"


@dataclass(frozen=True)
class Decoding:
    """How tasks decode; pickled for them, with the registry's credentials.

    Args:
        decoder: how records are decoded. A bad record fails the task, unless it is kept or left out.
        without: leaves out the records that become dead letters.
        is_counted: add `DISCARDED`. Then rows of several windows that are in no order may change their places.
    """

    decoder: Decoder
    without: Without
    is_counted: bool = False

    def schema_of(self, undecoded: pa.Schema) -> StructType:
        """Return the columns of decoded batches.

        Raises:
            ConfigError: Spark has no type for a column.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = plain_columns(self.decoder.schema_of(undecoded))
        if self.is_counted:
            columns = columns.append(pa.field(DISCARDED, pa.string()))
        return from_arrow_schema(columns, prefer_timestamp_ntz=True)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the batches of a task, which have the same columns."""
        columns: pa.Schema | None = None
        for batch in map(self.without, batches):
            if not self.is_counted:
                decoded = self.decoder.decoded(batch)
                columns = columns or plain_columns(decoded.schema)
                yield plain_batch(decoded, columns)
                continue
            for rows in _by_window(batch):
                discarded = Discarded()
                decoded = self.decoder.decoded(rows, None, discarded)
                columns = columns or plain_columns(decoded.schema)
                texts: list[str | None] = [None] * rows.num_rows
                if discarded.values:
                    texts[0] = json.dumps([discarded.values, discarded.fields])
                plain = plain_batch(decoded, columns)
                yield plain.append_column(DISCARDED, pa.array(texts, pa.string()))


def decoded_frame(frame: DataFrame, decoding: Decoding) -> DataFrame:
    """Return records with decoded columns, in the same order and partitions.

    Raises:
        ConfigError: there is no type for a column in Spark.
    """

    def of(records: DataFrame) -> DataFrame:
        return records.mapInArrow(decoding, decoding.schema_of(to_arrow(records.schema)))

    decoded = of(frame)
    if (known := order_of(frame)) is not None:
        dealt = None if known.dealt is None else of(known.dealt)
        mark_in_order(decoded, InOrder(known.window_ids, dealt))
    return decoded


def collected(column: Column | str) -> Column:
    """Return the values of a column as a list in JSON, for an observation: in Spark 4.0, it has lists as objects of the JVM."""
    from pyspark.sql import functions as f

    return f.to_json(f.collect_list(column))


def total_discarded(texts: Iterable[str]) -> dict[str, int | None]:
    """Return the counts that `DISCARDED` had in the rows of a window, as facts of its output."""
    total = Discarded()
    for text in texts:
        values, fields = json.loads(text)
        total.add(values, fields)
    return total.facts()


def _by_window(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each window that a batch has."""
    if not batch.num_rows or "window_id" not in batch.schema.names:
        yield batch
        return
    ids: Any = batch.column("window_id")
    windows: Any = pc.unique(ids)
    if len(windows) == 1:
        yield batch
        return
    for window_id in windows:
        yield batch.filter(pc.equal(ids, window_id))
