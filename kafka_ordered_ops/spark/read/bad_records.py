"""Find the records that cannot be decoded, before a job reads the other ones.

Tasks of Spark may run more than once, and what they leave out is in no result. So one pass returns the places of all bad
records, as its result, and the job's own pass leaves out exactly these places: however often its tasks run, each record
either is in the output or becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kafka_ordered_ops.core.window.dead_letters import BadRecord, DeadLetter, DeadLetters
from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.decoding.left_out import BYTES_MAX, LeftOut, Reasons, bad_rows
from kafka_ordered_ops.spark.failures import named_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: In the order of `BadRecord`.
_PLACE: Final = ("topic", "partition", "offset")
_TYPES: Final[dict[str, pa.DataType]] = {
    "window_id": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "key_error": pa.string(),
    "value_error": pa.string(),
    "bytes": pa.int64(),
}
_DDL: Final = "window_id string, topic string, partition int, offset bigint, key_error string, value_error string, bytes bigint"


def find_bad_records(
    frame: DataFrame, decoder: Decoder, limit: DeadLetter, offsets: Mapping[str, int]
) -> tuple[DeadLetters, ...]:
    """Return the bad records of each window, by one pass over all records.

    Args:
        frame: the records of the windows, with ``window_id``, in any order.
        decoder: how they are decoded.
        limit: how many of them a window may have.
        offsets: how many each window has, by its id.

    Raises:
        DecodeError: there are too many.
        ReadError, RecordsLostError, BrokerError: a task cannot read Kafka.
    """
    found = frame.mapInArrow(partial(_bad_rows, decoder, limit), _DDL)
    # One more than all windows may have. The order lets each task, and this process, hold no more than that.
    greatest = len(offsets) * limit.greatest + 1
    try:
        rows = found.orderBy("window_id", *_PLACE).limit(greatest).collect()
    except Exception as error:
        # An error of Spark or py4j, which Connect does not have.
        if (named := named_error(error)) is None:
            raise
        raise named from error
    left_out = LeftOut(limit, list(offsets.values()))
    numbers = {window_id: number for number, window_id in enumerate(offsets)}
    for row in rows:
        bad = BadRecord(*(row[name] for name in BadRecord._fields))
        left_out.add(numbers[row["window_id"]], [bad], row["bytes"])
    return tuple(map(left_out.letters, range(len(offsets))))


def _bad_rows(
    decoder: Decoder, limit: DeadLetter, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the bad records of a task; once there are too many, the others do not matter."""
    counts: dict[str, int] = {}
    total_bytes = 0
    for batch in batches:
        if total_bytes > BYTES_MAX or max(counts.values(), default=0) > limit.greatest:
            continue
        if not (reasons := _reasons(decoder, batch)):
            continue
        records, size = bad_rows(batch, reasons)
        rows = pa.array(sorted(reasons), pa.int64())
        window_ids: list[Any] = batch.column("window_id").take(rows).to_pylist()
        for window_id in window_ids:
            counts[window_id] = counts.get(window_id, 0) + 1
        total_bytes += size
        columns: list[Any] = [window_ids, *zip(*records, strict=True)]
        sizes = [-(-size // len(records))] * len(records)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(values, type_)
                for values, type_ in zip([*columns, sizes], _TYPES.values(), strict=True)
            ],
            names=list(_TYPES),
        )


def _reasons(decoder: Decoder, batch: pa.RecordBatch) -> dict[int, Mapping[str, str]]:
    reasons: dict[int, Mapping[str, str]] = {}

    def note(_: pa.RecordBatch, bad: Reasons) -> None:
        reasons.update(bad)

    decoder.decoded(batch, note)
    return reasons
