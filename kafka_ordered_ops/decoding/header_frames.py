"""Schema ids in the headers of records, as Confluent's serializers can write them: put in front of the values, where others are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

#: Returns the number of the schema with a GUID.
IdOf: TypeAlias = Callable[[str], int]

#: The header of each column: the bytes that would stand before its value, or a byte 1 and the GUID of the schema in their place.
_HEADERS: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}
_GUID: Final = 1
_GUID_END: Final = 17


def no_id(guid: str) -> int:
    """Return 0, where ids are not looked up."""
    return 0


def with_frames(batch: pa.RecordBatch, columns: Mapping[str, IdOf]) -> pa.RecordBatch:
    """Return a batch with each frame of a header in front of its value, in these columns.

    Nulls stay null, and values without such a header stay as they are. GUIDs become numbers. Raises as `columns` do.
    """
    at = batch.schema.get_field_index("headers")
    headers: Any = None if at < 0 else batch.column(at)
    if headers is None or not _is_list_of_pairs(headers.type) or headers.null_count == len(headers):
        return batch
    pairs: Any = pc.list_flatten(headers)
    rows: Any = pc.list_parent_indices(headers)
    for name, id_of in columns.items():
        index = batch.schema.get_field_index(name)
        found = pc.equal(pairs.field("key"), pa.scalar(_HEADERS[name]))
        if index < 0 or not pc.any(found).as_py():
            continue
        values: Any = batch.column(index)
        frames: list[bytes] = [b""] * len(headers)
        with_frame: list[int] = rows.filter(found).to_pylist()
        contents: list[bytes | None] = pairs.field("value").filter(found).to_pylist()
        # Backwards, because the first of several headers counts.
        for row, frame in reversed(list(zip(with_frame, contents, strict=True))):
            frames[row] = frame or b""
        is_there: list[bool] = values.is_valid().to_pylist()
        frames = [
            _frame(frame, id_of) if known else b""
            for frame, known in zip(frames, is_there, strict=True)
        ]
        prefixes = pa.array(frames, values.type)
        framed = pc.binary_join_element_wise(prefixes, values, pa.scalar(b"", values.type))
        batch = batch.set_column(index, batch.schema.field(index), framed)
    return batch


def _frame(header: bytes, id_of: IdOf) -> bytes:
    """Return what stands before a value for a header."""
    if len(header) < _GUID_END or header[0] != _GUID:
        return header
    number = id_of(str(UUID(bytes=header[1:_GUID_END])))
    return b"\0" + number.to_bytes(4, "big") + header[_GUID_END:]


def _is_list_of_pairs(kind: Any) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    return {"key", "value"} <= {field.name for field in kind.value_type}
