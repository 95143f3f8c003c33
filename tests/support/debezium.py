"""Changes as Debezium has written them, and what a table of them holds."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops.decoding import Avro, Debezium, Json

SAMPLES: Final = Path(__file__).parents[1] / "samples" / "debezium"
_SCHEMAS: Final = json.loads((SAMPLES / "avro-schemas.json").read_text())


def columns(*parts: Any) -> pa.Schema:
    """Return a schema of fields, and of pairs of names and types."""
    return pa.schema([*parts])


#: The tables' columns; in JSON without ``big``, which some records do not know, and ``amount``, whose scale is not there.
NOTES: Final = columns(pa.field("id", pa.int32(), nullable=False), ("body", pa.string()))
ORDERS: Final = columns(
    pa.field("id", pa.int32(), nullable=False),
    ("customer", pa.string()),
    ("paid", pa.bool_()),
    ("placed", pa.string()),
    ("day", pa.int32()),
    ("meta", pa.string()),
    ("tags", pa.list_(pa.string())),
)
KEY: Final = pa.schema([("id", pa.int32())])
#: How Debezium's own records were found at the end, and those of ``orders`` before that table was truncated.
NOTES_AT_THE_END: Final = [{"id": 1, "body": "first, changed"}]
ORDERS_BEFORE_THE_END: Final = [
    {
        "id": 1,
        "customer": None,
        "paid": False,
        "placed": "2026-11-01T10:00:00.123456Z",
        "day": 20_758,
        "meta": '{"a": 1}',
        "tags": ["x", "y"],
    },
    {
        "id": 4,
        "customer": "c-4",
        "paid": True,
        "placed": "infinity",
        "day": None,
        "meta": '{"n": 12345678901234567890}',
        "tags": None,
    },
    {
        "id": 30,
        "customer": "c-3",
        "paid": False,
        "placed": "2026-11-25T09:44:12.235614Z",
        "day": 20_760,
        "meta": None,
        "tags": [],
    },
]


@dataclass(frozen=True)
class Change:
    """A record that Debezium has written."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None


def changes(encoding: str, table: str) -> list[Change]:
    """Return the records of a table, or of ``transaction``, in ``json`` or ``avro``."""
    return [change for change in _all(encoding) if change.topic == table]


def _all(encoding: str) -> Iterator[Change]:
    for line in (SAMPLES / f"{encoding}.jsonl").read_text().splitlines():
        record = json.loads(line)
        key, value = (_bytes(record[part], encoding) for part in ("key", "value"))
        yield Change(record["topic"].rpartition(".")[2], record["offset"], key, value)


def _bytes(text: str | None, encoding: str) -> bytes | None:
    if text is None:
        return None
    return base64.b64decode(text) if encoding == "avro" else text.encode()


def batch_of(records: Iterable[Change]) -> pa.RecordBatch:
    """Return records as they are read, a millisecond apart."""
    rows: list[dict[str, Any]] = [
        {
            "topic": change.topic,
            "partition": 0,
            "offset": change.offset,
            "timestamp": change.offset,
            "key": change.key,
            "value": change.value,
        }
        for change in records
    ]
    return pa.RecordBatch.from_pylist(
        rows,
        columns(
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", "UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
        ),
    )


def schema_text(schema_id: int, without: Iterable[str] = ()) -> str:
    """Return a schema, an envelope's without some columns of the row."""
    schema = json.loads(json.dumps(_SCHEMAS[str(schema_id)]))
    if without:
        row = schema["fields"][0]["type"][1]
        row["fields"] = [part for part in row["fields"] if part["name"] not in without]
    return json.dumps(schema)


def avro(key_id: int, value_id: int, without: Iterable[str] = ()) -> Debezium:
    """Return the format of envelopes and keys with these schemas; no registry is needed."""
    key, value = schema_text(key_id), schema_text(value_id)
    return Debezium(Avro(schema_text(value_id, without), writer=value), keys=Avro(key, writer=key))


#: The formats of the tables in each encoding, with the columns above.
FORMATS: Final[Mapping[tuple[str, str], Debezium]] = {
    ("json", "notes"): Debezium(Json(NOTES), keys=Json(KEY)),
    ("json", "orders"): Debezium(Json(ORDERS), keys=Json(KEY)),
    ("avro", "notes"): avro(3, 4),
    ("avro", "orders"): avro(1, 2, ("big", "amount")),
}
#: The last record of ``orders``.
TRUNCATION: Final = 11


class MergedTable:
    """The rule of a table with mode ``merge``: the newest change of a key counts.

    Args:
        deletes: whether deleted rows go, or stay with their mark.
    """

    def __init__(self, *, deletes: bool = True) -> None:
        self._deletes = deletes
        self._rows: dict[int, dict[str, Any]] = {}

    def merge(self, window: pa.Table) -> None:
        """Merge the rows of a window, in any order."""
        for row in window.to_pylist():
            known = self._rows.get(row["id"])
            if known is not None and _place(known) > _place(row):
                continue
            if row["__deleted"] and self._deletes:
                self._rows.pop(row["id"], None)
            else:
                self._rows[row["id"]] = row

    def rows(self, schema: pa.Schema) -> list[dict[str, Any]]:
        """Return the rows that are not deleted, by id."""
        return [
            {name: row[name] for name in schema.names}
            for _, row in sorted(self._rows.items())
            if not row["__deleted"]
        ]


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("timestamp", "topic", "partition", "offset"))
