"""Records of one partition in memory, as sorted runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.release.sorting import Piece, in_order, joined_rows, row_bytes_of
from kafka_ordered_ops.core.types import INT64_MAX

#: Runs of one partition in memory, before small runs are merged.
RUNS_MAX: Final = 16
#: `CHUNKS_JOINED` chunks of about the same size are joined, up to `CHUNK_RECORDS` records: a chunk takes 10 KB besides
#: its data.
CHUNKS_JOINED: Final = 16
CHUNK_RECORDS: Final = 4_096


class Bound(NamedTuple):
    """A place in the order. Records with a smaller key, or with this key and a rank up to this rank, are below it."""

    key: int
    rank: int


#: All records are below it.
EVERYTHING: Final = Bound(INT64_MAX, INT64_MAX)


class _Chunk(NamedTuple):
    piece: Piece
    #: An offset at or below all offsets of the chunk; None for the rest of a split chunk.
    known_min: int | None
    nbytes: int

    @property
    def rank(self) -> int:
        """The order of magnitude of the size: the same for chunks of about the same size."""
        return (self.piece.keys.size.bit_length() - 1) // 4

    @property
    def offset_min(self) -> int:
        if self.known_min is not None:
            return self.known_min
        offsets = self.piece.rows.column("offset").to_numpy()
        return int((offsets if self.piece.places is None else offsets[self.piece.places]).min())

    @property
    def first_key(self) -> int:
        return int(self.piece.keys[0])

    @property
    def last_key(self) -> int:
        return int(self.piece.keys[-1])


class _Run:
    """Records of one partition with ascending keys, in consecutive chunks."""

    __slots__ = ("chunks", "last_key", "records")

    def __init__(self, chunks: Iterable[_Chunk]) -> None:
        self.chunks = deque(chunks)
        self.records = sum(chunk.piece.keys.size for chunk in self.chunks)
        self.last_key = self.chunks[-1].last_key

    def append(self, chunk: _Chunk) -> int:
        """Add a chunk; return the number of bytes by which the run grows."""
        self.records += chunk.piece.keys.size
        self.last_key = chunk.last_key
        self.chunks.append(chunk)
        grown = chunk.nbytes
        chunks = self.chunks
        while len(chunks) >= CHUNKS_JOINED and chunks[-CHUNKS_JOINED].rank <= chunks[-1].rank:
            last = [chunks[n] for n in range(-CHUNKS_JOINED, 0)]
            if sum(part.piece.keys.size for part in last) > CHUNK_RECORDS:
                break
            for _ in last:
                chunks.pop()
            joined = _joined(last)
            chunks.append(joined)
            grown += joined.nbytes - sum(part.nbytes for part in last)
        return grown


class Lane:
    """The held records of one partition in memory: runs, in the order in which their records arrived."""

    __slots__ = ("_runs", "nbytes", "number", "records")

    def __init__(self, number: int) -> None:
        self.number = number
        self.records = self.nbytes = 0
        self._runs: list[_Run] = []

    @property
    def offset_min(self) -> int | None:
        """An offset at or below all held offsets; None if no record is held."""
        return min((chunk.offset_min for run in self._runs for chunk in run.chunks), default=None)

    def rising_keys(self) -> Iterator[Int64Array]:
        """Yield the keys of the records, in ascending pieces."""
        return (chunk.piece.keys for run in self._runs for chunk in run.chunks)

    def keys_and_offsets(self) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yield the keys and offsets of the records, chunk by chunk."""
        for run in self._runs:
            for chunk in run.chunks:
                piece = chunk.piece
                offsets = cast(Int64Array, piece.rows.column("offset").to_numpy())
                yield piece.keys, offsets if piece.places is None else offsets[piece.places]

    def add(self, keys: Int64Array, rows: pa.RecordBatch, offset_min: int, row_bytes: int) -> None:
        """Hold records that arrived in this order."""
        places = None
        if keys.size > 1 and bool(np.any(keys[1:] < keys[:-1])):
            places = np.argsort(keys, kind="stable")
            keys = keys[places]
        piece = Piece(keys, self.number, rows, row_bytes, places)
        chunk = _Chunk(piece, offset_min, piece.nbytes)
        self.records += keys.size
        if self._runs and self._runs[-1].last_key <= chunk.first_key:
            self.nbytes += self._runs[-1].append(chunk)
        else:
            self.nbytes += chunk.nbytes
            self._runs.append(_Run([chunk]))

    def take(self, bound: Bound, rank: int) -> Iterator[Piece]:
        """Take the records below a bound."""
        side: Any = "right" if rank <= bound.rank else "left"
        emptied = False
        for run in self._runs:
            while run.chunks:
                chunk = run.chunks[0]
                count = int(np.searchsorted(chunk.piece.keys, bound.key, side=side))
                if not count:
                    break
                run.chunks.popleft()
                run.records -= count
                self.records -= count
                if count < chunk.piece.keys.size:
                    # Memory is only freed once the whole chunk is taken.
                    taken, rest = chunk.piece.split(count)
                    run.chunks.appendleft(chunk._replace(piece=rest, known_min=None))
                    yield taken
                    break
                self.nbytes -= chunk.nbytes
                yield chunk.piece
            emptied = emptied or not run.chunks
        if emptied:
            self._runs = [run for run in self._runs if run.chunks]

    def compact(self) -> None:
        """Merge small runs if there are too many: `take` looks at each of them."""
        if len(self._runs) <= RUNS_MAX:
            return
        # Merge the newest runs, back to a run that is larger than all later ones: a record is only merged again into a
        # run of twice the size.
        first, newer = len(self._runs) - 1, self._runs[-1].records
        while first and self._runs[first - 1].records <= 2 * newer:
            first -= 1
            newer += self._runs[first].records
        merged = self._runs[first:]
        if len(merged) < 2:
            merged, first = self._runs[-2:], len(self._runs) - 2
        offset_min = min(chunk.offset_min for run in merged for chunk in run.chunks)
        pieces = [chunk.piece for run in merged for chunk in run.chunks]
        self.nbytes -= sum(chunk.nbytes for run in merged for chunk in run.chunks)
        ranks = np.zeros(self.number + 1, dtype=np.int64)
        chunks = [
            _Chunk(
                Piece(batch.keys, self.number, batch.rows(), batch.row_bytes),
                offset_min,
                batch.nbytes,
            )
            for batch in in_order(pieces, ranks)
        ]
        self.nbytes += sum(chunk.nbytes for chunk in chunks)
        self._runs[first:] = [_Run(chunks)]


def _joined(chunks: Sequence[_Chunk]) -> _Chunk:
    """Return consecutive chunks as one chunk."""
    rows = joined_rows([_gathered(chunk.piece) for chunk in chunks])
    keys = np.concatenate([chunk.piece.keys for chunk in chunks])
    piece = Piece(keys, chunks[0].piece.lanes, rows, row_bytes_of(rows))
    return _Chunk(piece, min(chunk.offset_min for chunk in chunks), piece.nbytes)


def _gathered(piece: Piece) -> pa.RecordBatch:
    if piece.places is None:
        return piece.rows
    return piece.rows.take(cast("pa.Array[pa.Int64Scalar]", pa.array(piece.places)))
