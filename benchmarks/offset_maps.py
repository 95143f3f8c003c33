"""Offset maps: how long both formats take to write and read, and how large they are. No broker takes part."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.values import Comparison, Contender, Outcome, Place, Work
from kafka_ordered_ops.core.offset_map.ours import (
    OffsetMap,
    decode_offset_map,
    encode_offset_map,
)
from kafka_ordered_ops.core.offset_map.parallel_consumer import (
    decode_parallel_consumer_map,
    encode_parallel_consumer_map,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet

OFFSET_MAPS: Final = "offset-maps"

_RANGES: Final = 100_000
_SETS: Final = 10_000
_VECTORS: Final = Path("tests/core/parallel_consumer_vectors.json")
_BASE: Final = 1_000_000
_SEED: Final = 20_261_123

#: No limit: a map of so many random ranges fits no commit, and is to be written whole.
_LIMIT_BYTES: Final = 1 << 30


class Step(StrEnum):
    """What is timed."""

    ENCODE = "encode, ours"
    DECODE = "decode, ours"
    ENCODE_THEIRS = "encode, Parallel Consumer's"
    DECODE_THEIRS = "decode, Parallel Consumer's"


#: Contenders whose records are the sets with a payload that is not larger than Parallel Consumer's.
RANDOM_SETS: Final = "payloads of random sets"
LIBRARYS_SETS: Final = "payloads of the library's own maps"


class TimeMaps:
    """Writes or reads one map of 100,000 random ranges."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def start(self, _place: Place) -> Work:
        """Makes the map."""
        done = OffsetSet(
            _BASE + np.cumsum(np.random.default_rng(_SEED).geometric(0.1, 2 * _RANGES))
        )
        ours, theirs = _ours(done), _theirs(done)
        work: dict[Step, Callable[[], Any]] = {
            Step.ENCODE: lambda: _ours(done),
            Step.DECODE: lambda: decode_offset_map(ours),
            Step.ENCODE_THEIRS: lambda: _theirs(done),
            Step.DECODE_THEIRS: lambda: decode_parallel_consumer_map(theirs, _BASE),
        }

        def run(_round: int) -> Outcome:
            started = time.perf_counter()
            work[self._step]()
            return Outcome(seconds=time.perf_counter() - started, records=_RANGES)

        return Work(run)


class ComparePayloads:
    """Counts the sets whose payload is not larger than Parallel Consumer's."""

    def __init__(self, *, random: bool) -> None:
        self._random = random

    def start(self, _place: Place) -> Work:
        """Nothing to set up."""

        def run(_round: int) -> Outcome:
            started = time.perf_counter()
            sizes = _random_sizes() if self._random else _librarys_sizes()
            fine = sum(ours <= theirs for ours, theirs in sizes)
            return Outcome(seconds=time.perf_counter() - started, records=fine)

        return Work(run)


def offset_maps_comparison() -> Comparison:
    """Both formats."""
    return Comparison(
        OFFSET_MAPS,
        (
            *(Contender(step.value, _RANGES, TimeMaps(step)) for step in Step),
            Contender(RANDOM_SETS, _SETS, ComparePayloads(random=True), 1, warms_up=False),
            Contender(
                LIBRARYS_SETS,
                len(_vectors()),
                ComparePayloads(random=False),
                1,
                warms_up=False,
            ),
        ),
        lambda _place: None,
    )


def _ours(done: OffsetSet) -> bytes:
    one = OffsetMap(bytes(16), bytes(16), 1, _BASE, done)
    return encode_offset_map(one, limit_bytes=_LIMIT_BYTES)


def _theirs(done: OffsetSet) -> bytes:
    return encode_parallel_consumer_map(_BASE, done, limit_bytes=_LIMIT_BYTES)


def _payload_bytes(done: OffsetSet) -> int:
    """Of our map, without its frame."""
    return _body_bytes(_ours(done)) - _body_bytes(_ours(EMPTY_SET))


def _body_bytes(metadata: bytes) -> int:
    return len(base64.b64decode(metadata.partition(b":")[2].rstrip(b".")))


def _random_sizes() -> Iterator[tuple[int, int]]:
    """Bytes of the two payloads, of sets of up to 1,000 ranges: dense, sparse, single offsets, regular."""
    rng = np.random.default_rng(_SEED)
    for _ in range(_SETS):
        ranges = int(2 ** rng.uniform(0, 10))
        mean = 2 ** rng.uniform(0, 14, 2)
        runs = np.column_stack([rng.geometric(1 / one, ranges) for one in mean]).ravel()
        if rng.random() < 0.2:
            runs = np.resize(runs[: 2 * int(rng.integers(1, 5))], 2 * ranges)
        done = OffsetSet(_BASE + np.cumsum(runs))
        yield _payload_bytes(done), len(base64.b64decode(_theirs(done))) - 1


def _librarys_sizes() -> Iterator[tuple[int, int]]:
    """The same of the maps that the library itself chose to write."""
    for case in _vectors():
        label = next(iter(case["chosen_in_runs"]))
        theirs = base64.b64decode(case["metadata"][label]["b64"])
        text = case["metadata"][label]["b64"].encode()
        found = decode_parallel_consumer_map(text, _BASE)
        yield _payload_bytes(found.done), len(theirs) - 1


def _vectors() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_VECTORS.read_text(encoding="utf-8"))["encode"]
    return found
