"""What stands before a value: the id of a schema, and in Protobuf, which of its messages the value is."""

from __future__ import annotations

import zlib
from typing import Final
from uuid import UUID

from kafka_ordered_ops.core.window.formats import Framing
from kafka_ordered_ops.decoding.bad import BadValueError

#: Bytes of a schema's id, after a zero byte.
ID_BYTES: Final = {Framing.CONFLUENT: 4, Framing.APICURIO_8: 8}
#: Messages within messages, in an index.
_INDEX_LENGTH_MAX: Final = 64
_VARINT_BYTES_MAX: Final = 10
#: AWS Glue's frame: a version, how the rest is compressed, and the UUID of a schema.
_GLUE_VERSION: Final = 3
_GLUE_PLAIN: Final = 0
_GLUE_ZLIB: Final = 5
_GLUE_BYTES: Final = 18
#: A few bytes of zlib may ask for gigabytes. Brokers take records of 1 MiB by default.
_UNZIPPED_MAX: Final = 16 * 1024**2


def id_end(data: bytes, framing: Framing) -> int:
    """Return the position after a schema's id, 0 without a frame; raise `BadValueError` for another beginning."""
    if framing is Framing.NONE:
        return 0
    if framing is Framing.GLUE:
        _check_glue(data)
        return _GLUE_BYTES
    end = 1 + ID_BYTES[framing]
    if len(data) < end or data[0] != 0:
        raise BadValueError("it does not begin with a zero byte and a schema id")
    return end


def schema_id(data: bytes, end: int) -> int:
    """Return the id that ends at a position."""
    return int.from_bytes(data[1:end], "big")


def id_text(data: bytes, framing: Framing) -> str | None:
    """Return the id of a value's schema as text; None if it has none."""
    try:
        if framing == Framing.GLUE:
            return glue_id(data)
        return None if framing == Framing.NONE else str(schema_id(data, id_end(data, framing)))
    except BadValueError:
        return None


def glue_id(data: bytes) -> str:
    """Return the UUID of a schema in the frame of AWS Glue; raise `BadValueError` for another beginning."""
    _check_glue(data)
    return str(UUID(bytes=data[2:_GLUE_BYTES]))


def content(data: bytes, framing: Framing) -> bytes:
    """Return what follows the frame; raise `BadValueError` for another frame."""
    end = id_end(data, framing)
    is_plain = framing is not Framing.GLUE or data[1] == _GLUE_PLAIN
    return data[end:] if is_plain else _decompressed(data)


def without_compression(data: bytes) -> bytes:
    """Return a value in the frame of AWS Glue as it is without compression; raise `BadValueError`."""
    _check_glue(data)
    if data[1] == _GLUE_PLAIN:
        return data
    return bytes([_GLUE_VERSION, _GLUE_PLAIN]) + data[2:_GLUE_BYTES] + _decompressed(data)


def _decompressed(data: bytes) -> bytes:
    """Return what follows the frame of AWS Glue, which says that it is compressed; raise `BadValueError`."""
    if data[1] != _GLUE_ZLIB:
        raise BadValueError(f"AWS Glue has no compression {data[1]}")
    unzip = zlib.decompressobj()
    try:
        plain = unzip.decompress(data[_GLUE_BYTES:], _UNZIPPED_MAX)
    except zlib.error as error:
        raise BadValueError(f"it cannot be decompressed: {error}") from None
    if unzip.unconsumed_tail:
        raise BadValueError(f"it has more than {_UNZIPPED_MAX:,} bytes without compression")
    if not unzip.eof or unzip.unused_data:
        raise BadValueError("its compressed bytes are cut, or others follow them")
    return plain


def _check_glue(data: bytes) -> None:
    if len(data) < _GLUE_BYTES or data[0] != _GLUE_VERSION:
        raise BadValueError("it does not begin with the frame of AWS Glue")


def message_index(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the index of a message in its schema, as Confluent's serializers write it, and the position after it.

    The index has a number for each level: ``(1, 0)`` is the first message in the second one. Raises `BadValueError`.
    """
    count, at = _zigzag(data, at)
    if not count:
        return (0,), at
    if not 0 < count <= _INDEX_LENGTH_MAX:
        raise BadValueError(f"the index of its message has {count:,} numbers")
    index = []
    for _ in range(count):
        number, at = _zigzag(data, at)
        if number < 0:
            raise BadValueError(f"the index of its message has the number {number:,}")
        index.append(number)
    return tuple(index), at


def glue_message_index(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the index of a message as AWS Glue's serializers write it, one number, and the position after it."""
    number, at = varint(data, at)
    return (number,), at


def delimited(data: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes whose length stands before them, and the position after them; raise `BadValueError`."""
    length, at = varint(data, at)
    if length > len(data) - at:
        raise BadValueError("it ends before its message begins")
    return data[at : at + length], at + length


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, at = varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in Protobuf's encoding, and the position after it; raise `BadValueError`."""
    number = 0
    for place, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise BadValueError("it ends before its message begins")
