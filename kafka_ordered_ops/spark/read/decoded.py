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
    from pyspark.sql import DataFrame
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

    def columns_of(self, undecoded: pa.Schema) -> pa.Schema:
        """Return the columns of decoded batches.

        Raises:
            ConfigError: there is no type for a column in Spark.
        """
        columns = plain_columns(self.decoder.schema_of(undecoded))
        return columns.append(pa.field(DISCARDED, pa.string())) if self.is_counted else columns

    def schema_of(self, undecoded: pa.Schema) -> StructType:
        """Return the same as Spark has it."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.columns_of(undecoded), prefer_timestamp_ntz=True)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the batches of a task."""
        for batch in map(self.without, batches):
            if not self.is_counted:
                yield _plain(self.decoder.decoded(batch))
                continue
            for rows in _by_window(batch):
                discarded = Discarded()
                decoded = _plain(self.decoder.decoded(rows, None, discarded))
                texts: list[str | None] = [None] * rows.num_rows
                if discarded.values:
                    texts[0] = json.dumps([discarded.values, discarded.fields])
                yield decoded.append_column(DISCARDED, pa.array(texts, pa.string()))


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


def total_discarded(texts: Iterable[str]) -> dict[str, int | None]:
    """Return the counts that `DISCARDED` had in the rows of a window, as facts of its output."""
    total = Discarded()
    for text in texts:
        values, fields = json.loads(text)
        total.add(values, fields)
    return total.facts()


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    return plain_batch(batch, plain_columns(batch.schema))


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
