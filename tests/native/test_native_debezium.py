"""Envelopes of Debezium that the native decoder reads: the same rows as in Python."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.window.formats import OnBad
from kafka_ordered_ops.decoding import Avro, Debezium
from kafka_ordered_ops.decoding.decoder import Decoder
from tests.support.debezium import FORMATS, Change, batch_of, changes
from tests.support.decoders import decoded_by
from tests.support.encoded_values import encoded
from tests.support.readers import needs_native

pytestmark = [pytest.mark.native, needs_native]

UNAVAILABLE = "??"
ROW = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "data", "type": ["null", "bytes"]},
        {"name": "texts", "type": ["null", {"type": "array", "items": ["null", "string"]}]},
        {"name": "numbers", "type": ["null", {"type": "array", "items": ["null", "int"]}]},
        {"name": "store", "type": ["null", {"type": "map", "values": ["null", "string"]}]},
        {"name": "either", "type": ["null", "string", "int"]},
    ],
}
SOURCE = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW]},
        {"name": "after", "type": ["null", "Row"]},
        {"name": "op", "type": "string"},
        {"name": "source", "type": SOURCE},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
TEXTS = st.sampled_from(["a", UNAVAILABLE, ""])
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 9),
        "text": st.none() | TEXTS,
        "data": st.none() | TEXTS.map(str.encode),
        "texts": st.none() | st.lists(st.none() | TEXTS, max_size=2),
        "numbers": st.none() | st.lists(st.sampled_from([None, 63, 64]), max_size=2),
        "store": st.none() | st.dictionaries(TEXTS, st.none() | TEXTS, max_size=2),
        "either": st.none() | TEXTS | st.integers(0, 3),
    }
)
ENVELOPES = st.fixed_dictionaries(
    {
        "before": st.none() | ROWS,
        "after": st.none() | ROWS,
        "op": st.sampled_from("ccuurrddtmx"),
        "source": st.fixed_dictionaries({"ts_ms": st.integers(0, 9)}),
    }
).map(lambda envelope: encoded(envelope, ENVELOPE))
KEYS = st.integers(0, 9).map(lambda number: encoded({"id": number}, KEY))


def assert_same(wanted: Debezium, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch that both decoders decode to the same."""
    both = []
    for by in ("native", "python"):
        with decoded_by(by):
            both.append(Decoder(wanted, None, OnBad.KEEP).decoded(batch))
        both[-1].validate(full=True)
    native, python = both
    assert native.schema == python.schema
    assert native.to_pylist() == python.to_pylist()
    return native


@pytest.mark.parametrize("table", ["notes", "orders"])
def test_changes_of_debezium_are_the_same(table: str) -> None:
    """Those that a real one has written, whole and in parts."""
    batch = batch_of(changes("avro", table))
    wanted = FORMATS["avro", table]
    assert assert_same(wanted, batch).num_rows > 4
    for at in range(0, batch.num_rows, 3):
        assert_same(wanted, batch.slice(at, 3))


@given(
    st.lists(
        st.tuples(
            st.none() | KEYS | st.just(b"?"),
            st.none() | ENVELOPES | ENVELOPES.map(lambda e: e[:-1]),
        ),
        max_size=8,
    ),
    st.booleans(),
)
def test_random_changes_are_the_same(records: list[Any], has_keys: bool) -> None:
    """With placeholders in every type, tombstones, other operations, and damaged envelopes."""
    values, key = json.dumps(ENVELOPE), json.dumps(KEY)
    wanted = Debezium(
        Avro(values, framing="none"),
        keys=Avro(key, framing="none") if has_keys else None,
        unavailable=UNAVAILABLE,
    )
    assert_same(wanted, batch_of([Change("t", n, *parts) for n, parts in enumerate(records)]))
