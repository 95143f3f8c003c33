"""Show a sample of a window's records: decoded ones, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from kafka_ordered_ops.cli.records.decoded import shown_as_json
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.ordered.sample import Sample

_SHOWN_MAX: Final = 3
#: Characters of a key or a value on a terminal.
_TEXT_MAX: Final = 500


def sample_facts(sample: Sample, *, is_decoded: bool) -> dict[str, Any]:
    """Return a sample as JSON; some records only if they are decoded."""
    good = sample.records
    for name in ("value_error", "key_error"):
        if name in good.schema.names:
            good = good.filter(good[name].is_null())
    shown = good.slice(0, _SHOWN_MAX).combine_chunks().to_batches() if is_decoded else []
    return {
        "records": sample.records.num_rows,
        "bad": sample.bad,
        "schema_ids": {part: dict(ids) for part, ids in sample.schema_ids.items()},
        "notes": list(sample.notes),
        "shown": [record for batch in shown for record in shown_as_json(batch)],
    }


def say_sample(screen: Screen, sample: Sample, *, is_decoded: bool) -> None:
    """Report a sample to a person."""
    facts = sample_facts(sample, is_decoded=is_decoded)
    for record in facts["shown"]:
        screen.say(
            "{topic}[{partition}] offset {offset}: ".format(**record)
            + " ".join(f"{part} {_cut(record[part])}" for part in ("key", "value"))
        )
    if is_decoded:
        screen.say(f"of {facts['records']:,} sampled records, {facts['bad']:,} cannot be decoded")
    for part, ids in sample.schema_ids.items():
        counts = ", ".join(f"{id_} ({count:,})" for id_, count in Counter(ids).most_common())
        screen.say(f"schemas of their {part}s, by id: {counts}")
    for note in sample.notes:
        screen.say(f"note: {note}")


def _cut(text: str | None) -> str:
    text = "null" if text is None else text
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."
