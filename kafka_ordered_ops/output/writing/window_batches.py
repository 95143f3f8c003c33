"""A window's records as Arrow batches in this process, without Spark and without an output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from kafka_ordered_ops.core.window.plan import WindowPlan, check_not_covered
from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.decoding.discarded import Discarded
from kafka_ordered_ops.decoding.left_out import LeftOut
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA as STAGE_SCHEMA
from kafka_ordered_ops.ordered.records.pieces import pieces_of
from kafka_ordered_ops.output.writing.in_order import HELD_BYTES_MAX, in_total_order
from kafka_ordered_ops.output.writing.stage import Progress, Tally, counted


def window_schema(decoder: Decoder | None) -> pa.Schema:
    """Return the columns of a window's records."""
    return STAGE_SCHEMA if decoder is None else decoder.schema_of(STAGE_SCHEMA)


def read_batches(
    plan: WindowPlan,
    settings: ClientSettings,
    folder: Callable[[], str],
    *,
    ordered: bool = True,
    held_bytes_max: int = HELD_BYTES_MAX,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    progress: Progress | None = None,
    finished: Callable[[Mapping[str, Any]], object] = lambda _: None,
    decoder: Decoder | None = None,
    left_out: LeftOut | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield exactly the plan's records, in batches of `window_schema`, with at most a few hundred MiB in memory.

    Args:
        plan: the window.
        settings: how to reach the cluster.
        folder: creates the folder for spilled records; called when it is needed.
        ordered: sort by (timestamp, topic, partition, offset). Otherwise yield records as they arrive.
        held_bytes_max: how much Arrow data to hold in memory for sorting.
        stall_timeout_s: how long to wait for progress of any partition.
        progress: called while records are read, with (offsets done, offsets in all).
        finished: called with the facts of the window once all records have been yielded.
        decoder: the columns of values and keys.
        left_out: gets the records that are left out.

    Raises:
        DecodeError: a value cannot be decoded.
        WindowCoveredError: other windows deliver this one's records.
        SpillError: the files for spilled records fail.
        ReadError, RecordsLostError, BrokerError: raised by the reader.
    """
    check_not_covered(plan)
    pieces, tally = pieces_of([plan]), Tally([plan])
    reader = open_reader(
        settings,
        plan.group_id,
        plan.isolation,
        {piece.tp: piece.wanted for piece in pieces},
        stall_timeout_s=stall_timeout_s,
        topic_ids=plan.topic_ids,
    )
    arriving = counted(reader, pieces, tally, progress)
    batches = (
        in_total_order(arriving, folder, held_bytes_max=held_bytes_max)
        if ordered
        else (batch.records for batch in arriving)
    )
    # Last: bytes take less memory and disk than columns.
    leave_out = None if left_out is None else partial(left_out.add_rows, 0)
    discarded = Discarded() if decoder is not None and decoder.discards else None
    yield from (
        batches
        if decoder is None
        else (decoder.decoded(batch, leave_out, discarded) for batch in batches)
    )
    finished(tally.facts(0, left_out, discarded))
