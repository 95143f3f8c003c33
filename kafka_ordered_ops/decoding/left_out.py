"""The places of records that cannot be decoded, and are left out of the outputs of windows."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.core.errors import DecodeError
from kafka_ordered_ops.core.window.dead_letters import (
    REASON_BYTES_MAX,
    BadRecord,
    DeadLetter,
    DeadLetters,
)

#: The bytes of a job's bad records: one transaction of ten seconds writes them, from memory.
BYTES_MAX: Final = 16 * 1024**2

#: Why rows are bad: by their numbers, and by the columns ``key`` and ``value``.
Reasons = Mapping[int, Mapping[str, str]]

#: Columns.
_PLACE: Final = ("topic", "partition", "offset")


class LeftOut:
    """Collects the records that one job leaves out of its windows; for any thread.

    Args:
        limit: what becomes of them, and how many a window may have.
        offsets: how many each window has.
    """

    def __init__(self, limit: DeadLetter, offsets: Sequence[int]) -> None:
        self._limit = limit
        self._offsets = offsets
        self._records: list[list[BadRecord]] = [[] for _ in offsets]
        self._bytes = 0
        self._lock = threading.Lock()

    def add_rows(self, window: int, batch: pa.RecordBatch, reasons: Reasons) -> None:
        """Note rows of a batch; raise `DecodeError` if there are too many."""
        self.add(window, *bad_rows(batch, reasons))

    def add(self, window: int, bad: Sequence[BadRecord], size_bytes: int) -> None:
        """Note records of a window; raise `DecodeError` if there are too many."""
        with self._lock:
            records = self._records[window]
            records += bad
            self._bytes += size_bytes
            excess = self._limit.excess(len(records), self._offsets[window])
            if excess is not None:
                raise _too_many(records, f"at least {len(records):,}, and {excess}")
            if self._bytes > BYTES_MAX:
                raise _too_many(
                    records,
                    f"more than {BYTES_MAX:,} bytes of them, which one transaction does not take",
                )

    def count(self, window: int = 0) -> int:
        """Return how many records of a window are left out."""
        return len(self._records[window])

    def letters(self, window: int = 0) -> DeadLetters:
        """Return the records of a window that has been read to its end."""
        return DeadLetters(self._limit.topic, tuple(sorted(self._records[window], key=_place)))


class Without:
    """Leaves out the records at known places, whether or not they can be decoded now; pickled for tasks."""

    def __init__(self, letters: Iterable[DeadLetters]) -> None:
        self._places = {record[:3] for each in letters for record in each.records}
        self._offsets = pa.array(sorted({offset for *_, offset in self._places}), pa.int64())

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the other rows of a batch."""
        if not self._places:
            return batch
        may_be_bad: Any = pc.is_in(batch.column("offset"), value_set=self._offsets)
        if not may_be_bad.true_count:
            return batch
        places = zip(*(batch.column(name).to_pylist() for name in _PLACE), strict=True)
        return batch.filter(pa.array([place not in self._places for place in places]))


def bad_rows(batch: pa.RecordBatch, reasons: Reasons) -> tuple[list[BadRecord], int]:
    """Return the rows of a batch that have a reason, with their size in bytes."""
    rows = batch.take(pa.array(sorted(reasons), pa.int64()))
    columns: list[list[Any]] = [rows.column(name).to_pylist() for name in _PLACE]
    texts = [_cut(reasons[row]) for row in sorted(reasons)]
    records = [
        BadRecord(topic, partition, offset, why.get("key"), why.get("value"))
        for topic, partition, offset, why in zip(*columns, texts, strict=True)
    ]
    return records, rows.nbytes


def _cut(reasons: Mapping[str, str]) -> dict[str, str]:
    """Return reasons of limited length as JSON: they may quote the value."""
    limit = REASON_BYTES_MAX // len(reasons)
    plain = {
        name: "".join(letter if letter.isprintable() else " " for letter in reason)
        for name, reason in reasons.items()
    }
    return {name: text.encode()[:limit].decode(errors="ignore") for name, text in plain.items()}


def _place(record: BadRecord) -> tuple[str, int, int]:
    return record[:3]


def _too_many(records: list[BadRecord], numbers: str) -> DecodeError:
    first = min(records, key=_place)
    facts: dict[str, Any] = dict(zip(_PLACE, first, strict=False))
    return DecodeError(
        f"too many records cannot be decoded: {numbers}. The first: {first.topic}[{first.partition}] at offset "
        f"{first.offset}: {first.reason}. Nothing was committed, and no dead letter written. Fix the schema, "
        "raise max_bad, or keep such records with on_bad='keep'",
        **facts,
        bad=len(records),
    )
