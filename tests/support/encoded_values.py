"""Records whose values are encoded."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa


def batch_of(payloads: Sequence[bytes | None], topic: str = "orders") -> pa.RecordBatch:
    """Return records of partition 0 from offset 0 on, with these values."""
    count = len(payloads)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([topic] * count, pa.string()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "value": pa.array(payloads, pa.binary()),
        }
    )


def encoded(value: Any, schema: Any, schema_id: int | None = None) -> bytes:
    """Return a value in Avro, as fastavro writes it; with an id, framed as Confluent's serializers do."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    frame = b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")
    return frame + buffer.getvalue()
