"""Some records of a plan, decoded: what a window would have, and what is wrong with it, before it is planned."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.timestamp_units import TimeUnit, record_notes, unit_notes
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.formats import OnBad
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.ports import open_lookup, open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The sample ends with the batch that exceeds it.
_BYTES_MAX: Final = 32 * 1024**2
#: Reasons that are named.
_REASONS_MAX: Final = 5
#: Of the values of a column, this share must be in another unit: among dates of birth, some are of January 1970.
_SHARE: Final = 0.1
_ORDER: Final = [(name, "ascending") for name in ("timestamp", "topic", "partition", "offset")]
#: Units in the names of columns with numbers: ``created_ms``, ``createdMillis``.
_NAMED_UNITS: Final = (
    (re.compile(r"(_|^)(ms|msecs?|millis|milliseconds)$|(Ms|Millis)$"), TimeUnit.MILLISECONDS),
    (re.compile(r"(_|^)(us|usecs?|micros|microseconds)$|(Us|Micros)$"), TimeUnit.MICROSECONDS),
    (re.compile(r"(_|^)(ns|nanos|nanoseconds)$|(Ns|Nanos)$"), TimeUnit.NANOSECONDS),
    (re.compile(r"(_|^)(secs?|seconds)$|(Secs?|Seconds)$"), TimeUnit.SECONDS),
)
_UNITS: Final = dict(zip(("s", "ms", "us", "ns"), TimeUnit, strict=True))


@dataclass(frozen=True, slots=True)
class Sample:
    """Some records of a window.

    Attributes:
        records: the first and the last ones of its partitions that retention has not removed, in order. What cannot be decoded is null, with the bytes in
            ``value_raw`` and the reason in ``value_error``.
        bad: how many of them cannot be decoded.
        notes: what is wrong with them, with their places and numbers.
        schema_ids: how many of them have the id of each writer's schema, by ``key`` and ``value``.
    """

    records: pa.Table
    bad: int
    notes: tuple[str, ...]
    schema_ids: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def sample_of(
    plan: WindowPlan,
    settings: ClientSettings,
    records_max: int,
    *,
    now_ms: int,
    stall_timeout_s: float,
) -> Sample:
    """Read some records of a plan, and decode them as its window says.

    Raises:
        ConfigError: a schema is missing or invalid.
        RegistryError, AuthenticationError: the registry fails, or refuses the credentials.
        ReadError, BrokerError: Kafka cannot be read.
    """
    decoder = None
    if plan.window.is_decoded:
        # Imported late: most windows need no decoders.
        from kafka_ordered_ops.decoding.decoder import decoder_of

        found = decoder_of(plan.window, settings)
        decoder = found and replace(found, on_bad=OnBad.KEEP, flatten=False)
    schema = RECORD_SCHEMA if decoder is None else decoder.schema_of(RECORD_SCHEMA)
    with open_lookup(settings, timeout_s=stall_timeout_s) as lookup:
        partitions = [part.tp for part in plan]
        newest, starts = lookup.greatest_timestamps(partitions), lookup.log_starts(partitions)
    reader = open_reader(
        settings,
        plan.group_id,
        plan.isolation,
        _wanted(plan, starts, records_max),
        stall_timeout_s=stall_timeout_s,
        topic_ids=plan.topic_ids,
    )
    batches, size = [], 0
    ids = defaultdict[str, Counter[str]](Counter)
    with reader:
        for batch in reader.batches():
            for part, found_ids in decoder.schema_ids(batch).items() if decoder else ():
                ids[part] += found_ids
            batches.append(batch if decoder is None else decoder.decoded(batch))
            size += batch.nbytes
            if size > _BYTES_MAX:
                break
    records = pa.Table.from_batches(batches, schema).sort_by(_ORDER)
    # Beyond each cutoff, so no plan has them.
    far = {tp: np.array([ms]) for tp, ms in newest.items() if ms is not None and ms > now_ms}
    notes, bad = _bad_notes(records)
    notes += record_notes(far, "the greatest timestamps of the logs", now_ms=now_ms)
    return Sample(records, bad, (*notes, *_time_notes(records, now_ms)), ids)


def _wanted(
    plan: WindowPlan, starts: Mapping[TopicPartition, int], records_max: int
) -> dict[TopicPartition, OffsetSet]:
    """Return the first and the last offsets of each partition that are still there; of too many partitions, some."""
    there = {tp: taken - OffsetSet.of((0, starts[tp])) for tp, taken in plan.taken.items()}
    parts = [(tp, offsets) for tp, offsets in there.items() if offsets]
    step = -(-len(parts) // records_max) or 1
    parts = parts[::step]
    each = max(1, records_max // max(1, len(parts)))
    return {
        tp: _first(offsets, each - each // 2) | _last(offsets, each // 2) for tp, offsets in parts
    }


def _first(offsets: OffsetSet, count: int) -> OffsetSet:
    taken = []
    for start, end in offsets.ranges:
        if count <= 0:
            break
        taken.append((start, min(end, start + count)))
        count -= end - start
    return OffsetSet.from_ranges(taken)


def _last(offsets: OffsetSet, count: int) -> OffsetSet:
    taken = EMPTY_SET
    for start, end in reversed(offsets.ranges):
        if count <= 0:
            break
        taken |= OffsetSet.of((max(start, end - count), end))
        count -= end - start
    return taken


# --- notes ---------------------------------------------------------------------------------------


def _bad_notes(records: pa.Table) -> tuple[list[str], int]:
    """Return the reasons of bad records, each with how many there are and the first, and how many records are bad."""
    bad, places = set[int](), defaultdict[tuple[str, str], list[int]](list)
    for part in ("key", "value"):
        if records.schema.get_field_index(f"{part}_error") < 0:
            continue
        for row, reason in enumerate(records[f"{part}_error"].to_pylist()):
            if reason is not None:
                bad.add(row)
                places[part, str(reason)].append(row)
    most = sorted(places.items(), key=lambda one: -len(one[1]))
    notes = [
        f"{len(rows):,} of {records.num_rows:,} sampled records, the first at {_place(records, rows[0])}: the {part} cannot be "
        f"decoded: {reason}"
        for (part, reason), rows in most[:_REASONS_MAX]
    ]
    if len(most) > _REASONS_MAX:
        notes.append(f"{len(most) - _REASONS_MAX:,} other reasons")
    return notes, len(bad)


def _place(records: pa.Table, row: int) -> str:
    topic, partition, offset = (
        records[name][row].as_py() for name in ("topic", "partition", "offset")
    )
    return f"{topic}[{partition}] offset {offset:,}"


def _rows_by_partition(records: pa.Table) -> dict[TopicPartition, list[int]]:
    rows = defaultdict[TopicPartition, list[int]](list)
    names: list[Any] = records["topic"].to_pylist()
    numbers: list[Any] = records["partition"].to_pylist()
    for row, (topic, partition) in enumerate(zip(names, numbers, strict=True)):
        rows[TopicPartition(topic, partition)].append(row)
    return rows


def _time_notes(records: pa.Table, now_ms: int) -> Iterator[str]:
    """Yield notes about times in another unit than their own: those of records, and decoded ones."""
    by_partition = _rows_by_partition(records)
    stamps: Any = records["timestamp"].combine_chunks().cast(pa.int64())
    stamps = stamps.to_numpy()
    of_records = {tp: stamps[rows] for tp, rows in by_partition.items()}
    yield from record_notes(of_records, "the sampled timestamps", now_ms=now_ms)
    for part in ("key", "value"):
        # There is no column if none was inferred.
        at = records.schema.get_field_index(part)
        if at < 0 or records.schema.field(at).type == pa.binary():
            continue
        for name, column in _columns(part, records[part].combine_chunks()):
            if (own := _unit_of(name, column.type)) is None:
                continue
            known = ~np.asarray(column.is_null())
            times = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            values = {tp: times[rows][known[rows]] for tp, rows in by_partition.items()}
            for note in unit_notes(values, own, f"the sampled {name}", now_ms=now_ms, share=_SHARE):
                yield f"{note}. Correct the producer, or the unit in the schema"


def _columns(name: str, column: Any) -> Iterator[tuple[str, Any]]:
    """Yield a column, or the fields of a struct at any depth."""
    if not pa.types.is_struct(column.type):
        yield name, column
        return
    for part, values in zip(column.type, column.flatten(), strict=True):
        yield from _columns(f"{name}.{part.name}", values)


def _unit_of(name: str, kind: Any) -> TimeUnit | None:
    if pa.types.is_timestamp(kind):
        return _UNITS[kind.unit]
    if not pa.types.is_int64(kind):
        return None
    last = name.rpartition(".")[2]
    return next((unit for pattern, unit in _NAMED_UNITS if pattern.search(last)), None)
