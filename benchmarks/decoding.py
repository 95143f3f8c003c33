"""Measure what it costs to decode values of each format: by the native decoder, and in Python.

``python -m benchmarks.decoding`` where the native extension is installed; prints a table. CPU time of one process on one core, the best of
several rounds, so that other programs hardly change it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from benchmarks.encoded import ENCODINGS, Encoding
from kafka_ordered_ops.decoding import column_reader
from kafka_ordered_ops.decoding.column_reader import ColumnReader
from kafka_ordered_ops.decoding.decoder import DECODED_ROWS, reader_of

ROUNDS: Final = 3
#: For the native decoder; Python gets a batch.
RECORDS: Final = 400_000


def rate(reader: ColumnReader, column: pa.Array[Any]) -> float:
    """Return how many records a second of CPU time decodes."""
    parts = [column.slice(at, DECODED_ROWS) for at in range(0, len(column), DECODED_ROWS)]
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        for part in parts:
            reader.read_column(part)
        best = min(best, time.process_time() - started)
    return len(column) / best


def call_us(reader: ColumnReader, column: pa.Array[Any]) -> float:
    """Return microseconds of CPU for a call with one record."""
    one = column.slice(5, 1)
    return 1e6 / rate_of_calls(reader, one, 2_000)


def rate_of_calls(reader: ColumnReader, one: pa.Array[Any], calls: int) -> float:
    """Return how many such calls a second of CPU time makes."""
    started = time.process_time()
    for _ in range(calls):
        reader.read_column(one)
    return calls / (time.process_time() - started)


def main(arguments: Sequence[str]) -> None:
    """Print the rates."""
    records = int(arguments[0]) if arguments else RECORDS
    for encoding in ENCODINGS:
        _show(encoding, records)


def _show(encoding: Encoding, records: int) -> None:
    orders = encoding.values(DECODED_ROWS)
    size = sum(map(len, orders)) / len(orders)
    print(f"{encoding.name}: {size:.0f} bytes a record, batches of {DECODED_ROWS:,}")
    for decoder in ("python", "native"):
        column_reader.forced = decoder
        reader = reader_of(encoding.wanted, None)
        count = DECODED_ROWS if decoder == "python" else records
        good = None
        for bad in (None, 10_000, 100):
            column = pa.array(encoding.values(count, bad), pa.binary())
            speed = rate(reader, column)
            good = good or speed
            name = "all good" if bad is None else f"1 in {bad:,} bad"
            print(f"{decoder:8} {name:16} {speed:12,.0f} a second {good / speed - 1:+.0%} time")
        print(
            f"{decoder:8} a call of one   {call_us(reader, pa.array(orders[:9], pa.binary())):12.1f} us"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
