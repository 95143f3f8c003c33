"""Columns of JSON that are inferred from a window's first records, once it is decided which records it has."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops.core.errors import DecodeError
from kafka_ordered_ops.core.group.decisions import claiming
from kafka_ordered_ops.core.group.decisions.claiming import ClaimWish
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.column_types import fields_from_json, fields_to_json
from kafka_ordered_ops.core.window.formats import Format, Framing, Infer, Json, is_open
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.frames import content
from kafka_ordered_ops.decoding.header_frames import no_id, with_frames
from kafka_ordered_ops.decoding.json.inference import Inferred, JsonInference, Place, place_text
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings

_log = logging.getLogger("kafka_ordered_ops.windows")

#: Records from which columns are inferred, and their bytes: each partition has an equal share, at least one record.
SAMPLE_RECORDS: Final = 10_000
SAMPLE_BYTES: Final = 16 * 1024**2

#: Columns and fields that a note names.
_NAMED_MAX: Final = 20


def with_inferred(
    view: GroupView,
    wish: ClaimWish,
    *,
    settings: ClientSettings,
    stall_timeout_s: float,
) -> ClaimWish:
    """Return a draft whose windows have their columns: those of the group, inferred ones, or both.

    The group's columns are read from the view that the draft was made from: if another process stores others meanwhile, the
    draft cannot be claimed. Windows of one draft have the same columns. Without values there are none yet: the next window
    decides.

    Raises:
        DecodeError: no columns hold all values; the error has the places of two values.
        ReadError, RecordsLostError, BrokerError: Kafka cannot be read.
    """
    window = wish.windows[0].window
    wanted = {
        name: part
        for name, part in (("value", window.values), ("key", window.keys))
        if isinstance(part, Json) and is_open(part)
    }
    if not wanted:
        return wish
    stored = {} if view.state is None or wish.policy.redefine else view.state.columns
    sampled = {
        name: part
        for name, part in wanted.items()
        if name not in stored or part.infer is not Infer.FREEZE
    }
    sample = None
    if sampled:
        plans = claiming.build_plans(view, wish)
        if plans is None:
            # The draft is out of date already, and is made again.
            return wish
        sample = _read(plans, sampled, settings, stall_timeout_s)
    columns, notes = dict(stored), list[str]()
    formats: dict[str, Format | None] = {"value": window.values, "key": window.keys}
    for name, part in wanted.items():
        known = fields_from_json(stored[name]) if name in stored else None
        if sample is not None and name in sampled:
            known = _inferred(name, part, known, sample, notes)
        fixed = part.with_columns(known)
        formats[name] = fixed
        if known is not None:
            columns[name] = fields_to_json(fixed.columns)
    windows = [
        replace(one, window=replace(one.window, values=formats["value"], keys=formats["key"]))
        for one in wish.windows
    ]
    for note in notes:
        _log.info("group %s: %s", view.group_id, note)
    return replace(
        wish,
        windows=windows,
        columns=columns,
        notes=(*wish.notes, *notes),
    )


@dataclass(slots=True)
class _Sample:
    """The first records of windows."""

    records: int
    #: Whether the windows may have more records.
    is_cut: bool
    parts: Mapping[str, JsonInference]


def _read(
    plans: Sequence[WindowPlan],
    parts: Mapping[str, Json],
    settings: ClientSettings,
    stall_timeout_s: float,
) -> _Sample:
    """Read the first records of each partition: the same ones in every attempt, in whatever order they arrive."""
    taken: dict[TopicPartition, OffsetSet] = {}
    for plan in plans:
        for tp, offsets in plan.taken.items():
            taken[tp] = taken[tp] | offsets if tp in taken else offsets
    chosen = sorted(taken)[:SAMPLE_RECORDS]
    sample = _Sample(0, len(chosen) < len(taken), {name: JsonInference() for name in parts})
    if not chosen:
        return sample
    records_left = dict.fromkeys(chosen, SAMPLE_RECORDS // len(chosen))
    bytes_left = dict.fromkeys(chosen, SAMPLE_BYTES // len(chosen))
    in_headers = {name: no_id for name, part in parts.items() if part.framing == Framing.CONFLUENT}
    reader = open_reader(
        settings,
        plans[0].group_id,
        plans[0].isolation,
        {tp: taken[tp] for tp in chosen},
        stall_timeout_s=stall_timeout_s,
        topic_ids={name: topic_id for plan in plans for name, topic_id in plan.topic_ids.items()},
    )
    with reader:
        for batch in reader.batches():
            for tp, offset, row in _rows(with_frames(batch, in_headers), parts):
                if records_left[tp] <= 0 or bytes_left[tp] <= 0:
                    sample.is_cut = True
                    reader.stop(tp)
                    break
                records_left[tp] -= 1
                bytes_left[tp] -= sum(len(data or b"") for data in row.values())
                sample.records += 1
                _add(sample, parts, row, (tp.topic, tp.partition, offset))
    return sample


def _rows(
    batch: pa.RecordBatch, parts: Mapping[str, Json]
) -> Iterator[tuple[TopicPartition, int, dict[str, bytes | None]]]:
    """Yield the place of each record of a batch, which is of one partition, and its key, value or both."""
    if not batch.num_rows:
        return
    topic: Any = batch.column("topic")[0].as_py()
    partition: Any = batch.column("partition")[0].as_py()
    tp = TopicPartition(topic, partition)
    offsets: Any = batch.column("offset")
    columns: list[Any] = [batch.column(name) for name in parts]
    # One by one: the batch may be much larger than what is left of the sample.
    for row in range(batch.num_rows):
        data = [column[row].as_py() for column in columns]
        yield tp, offsets[row].as_py(), dict(zip(parts, data, strict=True))


def _add(
    sample: _Sample, parts: Mapping[str, Json], row: Mapping[str, bytes | None], place: Place
) -> None:
    for name, data in row.items():
        if data is None:
            continue
        try:
            text = content(data, Framing(parts[name].framing or Framing.NONE))
        except BadValueError as error:
            sample.parts[name].add_bad(place, str(error))
        else:
            sample.parts[name].add(text, place)


def _inferred(
    name: str, part: Json, known: pa.Schema | None, sample: _Sample, notes: list[str]
) -> pa.Schema | None:
    """Return the columns of a part of the records, and add notes about them; None if there are none yet."""
    inference = sample.parts[name]
    given = [] if part.schema is None else part.schema.names
    found = inference.columns(known, given, adds=known is None or part.infer is Infer.EVOLVE)
    if known is None and not found.columns.names and not given:
        _check_nothing(name, inference, sample)
        notes.append(
            f"no columns are inferred for {name}, because the window has no values with fields: the group has none yet"
        )
        return None
    notes += _notes(name, part, known, found, sample)
    return found.columns


def _check_nothing(name: str, inference: JsonInference, sample: _Sample) -> None:
    """Raise `DecodeError` if there are values, or may be, and no columns follow from them."""
    place, reason = inference.first_bad or (None, "")
    if not sample.is_cut and place is None:
        return
    if place is None:
        why = f"none of the first {sample.records:,} records has a {name} with fields"
        topic = partition = offset = None
    else:
        topic, partition, offset = place
        why = f"no {name} of the first {sample.records:,} records is an object, {place_text(place)}: {reason}"
    raise DecodeError(
        f"columns cannot be inferred: {why}. Give them: Json(pyarrow.schema(...)). Nothing was planned",
        topic=topic,
        partition=partition,
        offset=offset,
        bad=inference.bad,
    )


def _notes(
    name: str, part: Json, known: pa.Schema | None, found: Inferred, sample: _Sample
) -> list[str]:
    """Return what people should know of inferred columns."""
    records = f"the window's first {sample.records:,} records" if sample.is_cut else "its records"
    inference, notes = sample.parts[name], list[str]()
    if known is None:
        columns = part.with_columns(found.columns).columns
        texts = [f"{column.name} {column.type}" for column in columns]
        notes.append(
            f"columns of {name}, inferred from {records} for this and all later windows of the group: {_some(texts)}"
        )
        if found.blank:
            notes.append(
                f"fields of {name} that are null or empty in all of {records} become no columns: {_some(found.blank)}"
            )
    elif found.added:
        notes.append(f"new columns of {name}, added from {records}: {_some(found.added)}")
    if found.left_out:
        fields = [f"{path} (in {count:,})" for path, count in found.left_out.items()]
        notes.append(
            f"fields of {name} in {records} that the group has no columns for are left out: {_some(fields)}"
        )
    if inference.first_bad is not None:
        place, reason = inference.first_bad
        notes.append(
            f"{inference.bad:,} values in {records} have a bad {name}, the first at {place_text(place)}: {reason[:200]}"
        )
    return notes


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
