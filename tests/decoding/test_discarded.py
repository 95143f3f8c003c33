"""Fields that have no column where columns are inferred: how many values have them, and which fields they are."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops.core.window.formats import OnBad
from kafka_ordered_ops.decoding import Json
from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.decoding.discarded import FIELDS_MAX, Discarded, discarded_in
from kafka_ordered_ops.output.parts import sum_of_facts
from tests.support.encoded_values import batch_of

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("to", pa.struct([("zip", pa.string())])),
        ("lines", pa.list_(pa.struct([("price", pa.float64())]))),
        ("by", pa.map_(pa.string(), pa.struct([("n", pa.int64())]))),
    ]
)


def counted(values: list[Any], infer: str = "discard") -> Discarded:
    """Decode values with inferred columns; return what was counted."""
    texts = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    decoder = Decoder(Json(infer=infer, inferred=COLUMNS), None, OnBad.KEEP)
    discarded = Discarded()
    batch = batch_of(texts)
    assert decoder.decoded(batch, None, discarded) == decoder.decoded(batch)
    return discarded


@pytest.mark.parametrize("infer", ["discard", "evolve"])
def test_values_are_counted_once_for_each_field(infer: str) -> None:
    """At every depth; not for what is empty, and not for bad values."""
    discarded = counted(
        [
            {"id": 1},
            {"id": 2, "new": 1, "to": {"zip": "x", "city": "y"}},
            {"new": [[], {}, None], "to": None},
            {"lines": [{"price": 1, "tax": 2}, {"tax": 3}, None], "by": {"a": {"m": True}}},
            {"id": "x", "new": 1},
            b"{",
        ],
        infer,
    )
    assert discarded.values == 2
    assert discarded.fields == {
        "value.new": 1,
        "value.to.city": 1,
        "value.lines[].tax": 1,
        "value.by[].m": 1,
    }


def test_names_are_bounded() -> None:
    """Data as keys do not fill the ledger; such values are counted all the same."""
    discarded = counted([{f"k{number}": 1} for number in range(3 * FIELDS_MAX)])
    assert discarded.values == 3 * FIELDS_MAX
    assert len(discarded.fields) <= FIELDS_MAX + 1
    facts = discarded_in(discarded.facts())
    fields: Any = facts["discarded_fields"]
    assert fields["other fields"] == 2 * FIELDS_MAX
    assert sum(fields.values()) == facts["discarded"]


def test_parts_of_a_window_are_added() -> None:
    """A part without a field has 0 of it."""
    one, other = Discarded(), Discarded()
    one.add(2, {"value.a": 2, "value.b": 1})
    other.add(1, {"value.c": 1})
    total = sum_of_facts([{"records": 5, **one.facts()}, {"records": 1, **other.facts()}])
    assert discarded_in(total) == {
        "discarded": 3,
        "discarded_fields": {"value.a": 2, "value.b": 1, "value.c": 1},
    }
    assert discarded_in({"records": 1}) == {}
