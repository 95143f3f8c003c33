"""Debezium's changes: the rows that they become, what is refused, and the table that they make."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, DecodeError, OrderedWindows, Window, WindowPlan
from kafka_ordered_ops.decoding import Avro, Debezium, Json, decode
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.debezium import (
    FORMATS,
    KEY,
    NOTES,
    NOTES_AT_THE_END,
    ORDERS,
    ORDERS_BEFORE_THE_END,
    TRUNCATION,
    Change,
    MergedTable,
    avro,
    batch_of,
    changes,
    columns,
    schema_text,
)

ENCODINGS = pytest.mark.parametrize("encoding", ["json", "avro"])
#: The words of envelopes, and of schemas beside them.
_WORDS = st.sampled_from(
    [
        *("op", "c", "d", "before", "after", "source", "ts_ms", "id", "amount"),
        *("schema", "payload", "type", "struct", "fields", "field", "items"),
    ]
)
TABLES = {
    "notes": (NOTES, NOTES_AT_THE_END),
    "orders": (ORDERS, ORDERS_BEFORE_THE_END),
}
PLACEHOLDER = "__debezium_unavailable_value"


def rows_of(records: list[Change], wanted: Debezium, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of records, without where they were."""
    table = decode(batch_of(records), values=wanted, flatten=True, **options).read_all()
    table.validate(full=True)
    return table.drop(["topic", "partition", "offset", "timestamp", "key"]).to_pylist()


def envelope(op: str = "c", **parts: Any) -> bytes:
    """Return an envelope in JSON."""
    return json.dumps({"op": op, "source": {"ts_ms": 5}, **parts}).encode()


def bad(value: bytes, row: pa.Schema, **options: Any) -> str | None:
    """Return why a value is bad."""
    batch = batch_of([Change("t", 0, None, value)])
    table = decode(batch, values=Debezium(Json(row), **options), on_bad="keep").read_all()
    reason: str | None = table["value_error"][0].as_py()
    return reason


@ENCODINGS
def test_each_change_is_a_row(encoding: str) -> None:
    """With what happened and when; a tombstone is the deleted row of its key."""
    rows = rows_of(changes(encoding, "notes"), FORMATS[encoding, "notes"])
    times = [row.pop("__source_ts_ms") for row in rows]
    assert rows == [
        {"id": 1, "body": "first", "__op": "r", "__deleted": False},
        {"id": 2, "body": "second", "__op": "c", "__deleted": False},
        {"id": 1, "body": "first, changed", "__op": "u", "__deleted": False},
        {"id": 2, "body": "second", "__op": "d", "__deleted": True},
        {"id": 2, "body": None, "__op": None, "__deleted": True},
    ]
    assert times[4] is None
    assert times[:4] == sorted(times[:4])
    assert times[0] > 1_795_000_000_000


@ENCODINGS
def test_a_changed_key_is_a_deleted_row_and_a_new_one(encoding: str) -> None:
    """Debezium deletes the old key, with a tombstone, and then creates the new one."""
    rows = rows_of(changes(encoding, "orders")[4:7], FORMATS[encoding, "orders"])
    assert [(row["id"], row["__op"], row["__deleted"]) for row in rows] == [
        (3, "d", True),
        (3, None, True),
        (30, "c", False),
    ]


@ENCODINGS
def test_tombstones_stay_null_without_the_format_of_keys(encoding: str) -> None:
    """Nothing is known of them then, and they are not bad."""
    wanted = replace(FORMATS[encoding, "notes"], keys=None)
    table = decode(batch_of(changes(encoding, "notes")), values=wanted, on_bad="keep").read_all()
    assert table["value"].is_null().to_pylist() == [False] * 4 + [True]
    assert table["value_error"].null_count == 5


@ENCODINGS
def test_a_truncated_table_is_no_row(encoding: str) -> None:
    """A merge would keep all of its rows."""
    last = changes(encoding, "orders")[TRUNCATION:]
    with pytest.raises(DecodeError, match="the table was truncated") as failure:
        rows_of(last, FORMATS[encoding, "orders"])
    assert failure.value.offset == TRUNCATION
    [row] = rows_of(last, FORMATS[encoding, "orders"], on_bad="keep")
    assert (row["__op"], row["__deleted"], row["value_raw"]) == (None, None, last[0].value)


@ENCODINGS
def test_values_that_the_database_did_not_send_are_bad(encoding: str) -> None:
    """An update and a changed key have a placeholder for the large column; without that column they are whole."""
    known = pa.schema([*ORDERS, ("big", pa.string())])
    wanted = Debezium(Json(known)) if encoding == "json" else avro(1, 2, ("amount",))
    rows = rows_of(changes(encoding, "orders"), wanted, on_bad="keep")
    reasons = {at: row["value_error"] for at, row in enumerate(rows) if row["value_error"]}
    assert list(reasons) == [3, 6, TRUNCATION]
    assert reasons[3].startswith("big: the database did not send the value")
    assert "REPLICA IDENTITY FULL" in reasons[6]
    assert rows[2]["big"].startswith("c4ca4238a0b92382")


@pytest.mark.parametrize(
    ("arrow", "value"),
    [
        (pa.string(), PLACEHOLDER),
        (pa.binary(), base64.b64encode(PLACEHOLDER.encode()).decode()),
        (pa.list_(pa.string()), [PLACEHOLDER]),
        (pa.list_(pa.binary()), [base64.b64encode(PLACEHOLDER.encode()).decode()]),
        (pa.list_(pa.int64()), list(PLACEHOLDER.encode())),
        (
            pa.list_(pa.string()),
            [str(uuid.UUID(bytes=hashlib.md5(PLACEHOLDER.encode()).digest(), version=3))],
        ),
        (pa.map_(pa.string(), pa.string()), {PLACEHOLDER: PLACEHOLDER}),
    ],
)
def test_placeholders_of_each_type_are_known(arrow: Any, value: Any) -> None:
    """As PostgreSQL's connector writes them; a connector may have another text for them."""
    row = pa.schema([pa.field("x", arrow)])
    data = envelope(after={"x": value})
    assert "did not send" in str(bad(data, row))
    assert bad(data, row, unavailable="nothing") is None


@ENCODINGS
def test_records_of_transactions_are_no_changes(encoding: str) -> None:
    """The topic beside those of the tables has none."""
    rows = rows_of(changes(encoding, "transaction"), FORMATS[encoding, "notes"], on_bad="keep")
    assert len(rows) == 18
    assert {row["id"] for row in rows} == {None}
    assert None not in {row["value_error"] for row in rows}


def connect(kind: str, **more: Any) -> dict[str, Any]:
    """Return a field's schema as Connect's converter writes it."""
    return {"type": kind, "optional": True, **more}


DECIMAL = connect(
    "bytes",
    name="org.apache.kafka.connect.data.Decimal",
    parameters={"scale": "2", "connect.decimal.precision": "12"},
)
ROW_SCHEMA = connect(
    "struct",
    fields=[
        connect("int32", field="id"),
        {**DECIMAL, "field": "amount"},
        connect("array", field="amounts", items=DECIMAL),
    ],
)


def wrapped(schema: Any, payload: Any) -> bytes:
    """Return what Connect's converter writes with ``schemas.enable``."""
    return json.dumps({"schema": schema, "payload": payload}).encode()


def test_schemas_beside_values_are_used() -> None:
    """The scale of decimals is there; keys have the same form."""
    row = columns(
        ("id", pa.int32()),
        ("amount", pa.decimal128(12, 2)),
        ("amounts", pa.list_(pa.decimal128(12, 2))),
    )
    schema = connect("struct", fields=[{**ROW_SCHEMA, "field": "after"}, connect("string")])
    after = {"id": 1, "amount": "BBo=", "amounts": ["/w==", None, "AMg="]}
    value = wrapped(schema, {"op": "c", "source": {"ts_ms": 5}, "after": after})
    key = wrapped(connect("struct", fields=[connect("int32", field="id")]), {"id": 7})
    records = [Change("t", 0, key, value), Change("t", 1, key, None)]
    rows = rows_of(records, Debezium(Json(row), Json(KEY)))
    assert rows[0]["amount"] == Decimal("10.50")
    assert rows[0]["amounts"] == [Decimal("-0.01"), None, Decimal("2.00")]
    assert (rows[1]["id"], rows[1]["__deleted"]) == (7, True)


def test_envelopes_in_json_with_schemas_are_those_in_avro() -> None:
    """The same changes, with amounts; a snapshot has its own times."""
    kinds = {"id": "int32", "day": "int32", "paid": "boolean", "tags": "array"}
    fields = [connect(kinds.get(name, "string"), field=name) for name in ORDERS.names]
    typed = connect("struct", fields=[*fields, {**DECIMAL, "field": "amount"}])
    schema = connect("struct", fields=[{**typed, "field": "before"}, {**typed, "field": "after"}])
    records = [
        replace(change, value=change.value and wrapped(schema, json.loads(change.value)))
        for change in changes("json", "orders")[:TRUNCATION]
    ]
    wanted = Debezium(Json(columns(*ORDERS, ("amount", pa.decimal128(12, 2)))), Json(KEY))
    rows = rows_of(records, wanted)
    expected = rows_of(changes("avro", "orders")[:TRUNCATION], avro(1, 2, ("big",)))
    assert [row["amount"] for row in rows][:4] == [
        Decimal(text) for text in ("10.50", "99.99", "1.00", "2.00")
    ]
    for row in rows + expected:
        if row["__op"] == "r":
            del row["__source_ts_ms"]
    assert rows == expected


@pytest.mark.parametrize(
    ("amount", "reason"),
    [
        ("10.50", None),
        (10.5, None),
        ("BBo=", "may be base64 of a decimal without its scale"),
        ("1234", "may be base64"),
        ("AAAAAA==", "may be base64"),
    ],
)
def test_decimals_without_their_scale_are_bad(amount: Any, reason: str | None) -> None:
    """Digits alone as well: three bytes may look like them."""
    row = pa.schema([("amount", pa.decimal128(12, 2))])
    assert (reason or "None") in str(bad(envelope(after={"amount": amount}), row))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"null", "no envelope of Debezium"),
        (b"[]", "no envelope of Debezium"),
        (b'{"op": "c", "after": {}}', "no time in source.ts_ms"),
        (b'{"op": "c", "source": {"ts_ms": 1e999}}', "no time in source.ts_ms"),
        (b'{"op": [], "source": {"ts_ms": 1}}', "no op"),
        (envelope("m"), "op is 'm'"),
        (envelope("c", after=None), "op is c, and after is null"),
        (envelope("d", after={"id": 1}), "op is d, and before is null"),
        (envelope("u", after={"id": None}), "id: it must not be null"),
        (envelope("u", after=[1]), "an object is expected"),
        (wrapped(None, None), "no envelope of Debezium"),
        (b"{", "not valid JSON"),
    ],
)
def test_other_values_are_bad(value: bytes, words: str) -> None:
    """Never an error of another kind."""
    assert words in str(bad(value, NOTES))


@pytest.mark.parametrize(
    "parameters", [None, {}, {"scale": "x"}, {"scale": "99999"}, {"scale": "0", "more": 1}]
)
def test_damaged_schemas_beside_values_are_bad(parameters: Any) -> None:
    """Or their values are: a decimal of no scale, of no bytes, of too many."""
    row = pa.schema([("amount", pa.decimal128(12, 2))])
    kind = {**DECIMAL, "field": "amount", "parameters": parameters}
    after = connect("struct", field="after", fields=[kind, None, 5])
    texts = {"": "bytes", "AA": "no decimal", base64.b64encode(bytes(200)).decode(): "bytes"}
    for text, word in texts.items():
        payload = {"op": "c", "source": {"ts_ms": 5}, "after": {"amount": text}}
        reason = bad(wrapped(connect("struct", fields=[after]), payload), row)
        assert word in str(reason) or "no decimal" in str(reason)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | _WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=12,
)


ENVELOPE = st.fixed_dictionaries(
    {"op": st.sampled_from("cudrtm"), "source": st.fixed_dictionaries({"ts_ms": st.integers()})},
    optional={"before": JSON, "after": JSON},
)
#: A schema that is damaged within a row.
SCHEMA = JSON.map(
    lambda part: connect(
        "struct",
        fields=[
            connect(
                "struct", field=side, fields=[{**DECIMAL, "field": "amount", "parameters": part}]
            )
            for side in ("before", "after")
        ],
    )
)


@given(
    ENVELOPE | st.fixed_dictionaries({"schema": JSON | SCHEMA, "payload": ENVELOPE | JSON}), JSON
)
def test_any_json_is_a_row_or_has_a_reason(value: Any, key: Any) -> None:
    """Never an error of another kind; as a key as well."""
    row = columns(("id", pa.int32()), ("amount", pa.decimal128(12, 2)))
    key_data, data = json.dumps(key).encode(), json.dumps(value).encode()
    records = [Change("t", 0, key_data, data), Change("t", 1, key_data, None)]
    for parsed in rows_of(records, Debezium(Json(row), Json(KEY)), on_bad="keep"):
        assert (parsed["value_error"] is None) != (parsed["__deleted"] is None)


def test_deleted_rows_have_nulls_where_others_have_none() -> None:
    """By default, a database sends the key alone."""
    row = pa.schema([*NOTES, pa.field("at", pa.date32(), nullable=False)])
    data = envelope("d", before={"id": 1, "at": None, "body": None}, after=None)
    [deleted] = rows_of([Change("t", 0, None, data)], Debezium(Json(row)))
    assert (deleted["id"], deleted["at"]) == (1, None)
    data = envelope(after={"id": 1, "at": 20_758, "body": "x"})
    [created] = rows_of([Change("t", 0, None, data)], Debezium(Json(row)))
    assert str(created["at"]) == "2026-11-01"


def test_a_bad_key_makes_a_tombstone_bad() -> None:
    """Its row would not be deleted."""
    records = [
        Change("t", 0, b"{", None),
        Change("t", 1, b"null", None),
        Change("t", 2, None, None),
    ]
    wanted = Debezium(Json(NOTES), Json(KEY))
    rows = rows_of(records, wanted, on_bad="keep")
    reasons = [row["value_error"] for row in rows]
    assert all("the key of a tombstone" in reason for reason in reasons[:2])
    assert reasons[2] is None


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (lambda: Debezium("avro"), "give Avro(...) or Json(...)"),  # type: ignore[arg-type]
        (lambda: Debezium(Json(NOTES), "id"), "the keys of Debezium are 'id'"),  # type: ignore[arg-type]
        (lambda: Debezium(Debezium(Json(NOTES))), "the envelopes"),  # type: ignore[arg-type]
        (lambda: Debezium(Json(NOTES), unavailable=""), "unavailable"),
        (lambda: Debezium(Json(pa.schema([("__op", pa.string())]))), "one of Debezium's: __op"),
        (
            lambda: Debezium(Json(NOTES), Json(pa.schema([("id", pa.int64())]))),
            "give both the same names and types",
        ),
        (
            lambda: Debezium(Avro(schema_text(1), framing="none")),
            "not that of Debezium's envelopes",
        ),
        (lambda: Debezium(Avro('"string"', framing="none")), "not that of Debezium's envelopes"),
        (lambda: Debezium(Avro(schema_text(4))), "comes from a registry"),
        (
            lambda: Debezium(Json(pa.schema([("offset", pa.int64())]))),
            "the names of others, offset",
        ),
    ],
)
def test_formats_that_cannot_be_read_are_named(wanted: Any, words: str) -> None:
    """Before any record is read."""
    with pytest.raises(ConfigError) as failure:
        decode(batch_of([]), values=wanted(), flatten=True)
    assert words in str(failure.value)


def test_envelopes_are_no_keys() -> None:
    """And tombstones need the column of keys."""
    with pytest.raises(ConfigError, match="envelopes are values"):
        Window("t", keys=Debezium(Json(NOTES)))
    batch = batch_of([]).drop_columns(["key"])
    with pytest.raises(ConfigError, match="no column 'key'"):
        decode(batch, values=FORMATS["json", "notes"])


# --- windows -----------------------------------------------------------------------------------


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A Kafka with both tables' changes in JSON, of which the last one is that of the truncation."""
    with InMemoryKafka() as kafka:
        for table in TABLES:
            kafka.create_topic(table, partitions=1)
            for change in changes("json", table)[:TRUNCATION]:
                kafka.produce(
                    table, timestamp_ms=1_000 + change.offset, key=change.key, value=change.value
                )
        yield kafka


def up_to(table: str, milliseconds: int, **more: Any) -> Window:
    """Return the window of a table's changes up to a time."""
    cutoff = f"1970-01-01T00:00:{milliseconds / 1_000:06.3f}Z"
    values = FORMATS["json", table]
    options: dict[str, Any] = {
        "starting_offsets": "earliest",
        "values": values,
        "flatten": True,
        **more,
    }
    return Window(table, cutoff=cutoff, **options)


@pytest.mark.parametrize("table", TABLES)
def test_windows_make_the_table_of_the_source(
    kafka: InMemoryKafka, tmp_path: Any, table: str
) -> None:
    """Cut after each change, and read back from what was written."""
    schema, at_the_end = TABLES[table]
    windows = OrderedWindows(kafka.settings, group_id="g")
    merged = MergedTable()
    for end in (1_001, 1_002, 1_004, 1_005, 1_006, 2_000):
        merged.merge(windows.run(up_to(table, end), tmp_path / "lake").to_arrow())
    assert merged.rows(schema) == at_the_end


@pytest.mark.slow
@ENCODINGS
@pytest.mark.parametrize("table", TABLES)
def test_wherever_windows_are_cut_the_table_is_that_of_the_source(
    encoding: str, table: str
) -> None:
    """At any two places; also after a compaction that has left the newest record of each key."""
    schema, at_the_end = TABLES[table]
    records = changes(encoding, table)[:TRUNCATION]

    def merged(*windows: list[Change]) -> list[dict[str, Any]]:
        result = MergedTable()
        for window in windows:
            values = FORMATS[encoding, table]
            result.merge(decode(batch_of(window), values=values, flatten=True).read_all())
        return result.rows(schema)

    for first, second in combinations(range(len(records) + 1), 2):
        newest = {change.key: change for change in records[first:]}
        assert merged(records[:first], records[first:second], records[second:]) == at_the_end
        assert merged(records[:first], [*newest.values()]) == at_the_end


def test_late_changes_leave_newer_rows_as_they_are() -> None:
    """Where deleted rows stay with their mark, windows may come in any order."""
    records = changes("json", "orders")[:TRUNCATION]
    merged = MergedTable(deletes=False)
    for part in (records[7:], records[3:7], records[:3]):
        values = FORMATS["json", "orders"]
        merged.merge(decode(batch_of(part), values=values, flatten=True).read_all())
    assert merged.rows(ORDERS) == ORDERS_BEFORE_THE_END


def test_the_format_is_stored_with_the_plan(kafka: InMemoryKafka) -> None:
    """It comes back as it was, with schemas that were looked up."""
    whole = Debezium(
        Avro(schema_text(4), subject="notes-value"),
        Avro(schema_text(3), subject="notes-key"),
        unavailable="?",
    )
    planned = up_to("notes", 2_000, values=whole)
    assert Window.from_json(planned.to_json()) == planned
    asked = replace(whole, values=Avro(subject="notes-value"), keys=Avro(subject="notes-key"))
    assert planned.read_like(up_to("notes", 2_000, values=asked)).values == whole
    other = replace(asked, keys=Avro(subject="other-key"))
    assert planned.read_like(up_to("notes", 2_000, values=other)).values == replace(
        whole, keys=other.keys
    )
    windows = OrderedWindows(kafka.settings, group_id="g")
    plan = windows.plan(up_to("notes", 2_000))
    assert WindowPlan.from_text(plan.to_text()).window.values == FORMATS["json", "notes"]


def test_a_registry_that_a_part_needs_is_asked_for(kafka: InMemoryKafka, tmp_path: Any) -> None:
    """Before anything is planned."""
    windows = OrderedWindows(kafka.settings, group_id="g")
    values = Debezium(Json(NOTES), Avro(subject="notes-key"))
    with pytest.raises(ConfigError, match=r"set schema\.registry\.url"):
        windows.run(up_to("notes", 2_000, values=values), tmp_path / "lake")
    assert windows.list() == []
