"""Values of Avro's logical types, each checked."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

from kafka_ordered_ops.decoding.avro.schema import AvroType
from kafka_ordered_ops.decoding.bad import BadValueError

_Convert: TypeAlias = Callable[[Any], Any]

#: The length of a day, by the logical type.
DAYS: Final = {"time-millis": 86_400_000, "time-micros": 86_400_000_000}
_HEX: Final = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)


def conversion(writer: AvroType, reader: AvroType) -> _Convert | None:
    """Return what makes a primitive value as written one of the reader's type, checked."""
    if reader.logical == "decimal":
        return lambda value: _decimal(value, reader.precision, reader.scale)
    if reader.logical == "uuid":
        return _uuid_of_bytes if reader.kind == "fixed" else _uuid_of_text
    if day := DAYS.get(reader.logical or ""):
        return lambda value: _time(value, day)
    if reader.kind in ("float", "double") and writer.kind in ("int", "long"):
        return float
    if (writer.kind, reader.kind) == ("string", "bytes"):
        return str.encode
    if (writer.kind, reader.kind) == ("bytes", "string"):
        return bytes.decode
    return None


def _decimal(unscaled: bytes, precision: int, scale: int) -> Decimal:
    number = int.from_bytes(unscaled, "big", signed=True)
    digits = tuple(map(int, str(abs(number)))) if len(unscaled) <= 40 else ()
    if not 0 < len(digits) <= precision:
        raise BadValueError(f"a decimal has more than {precision} digits")
    return Decimal((int(number < 0), digits, -scale))


def _time(value: int, day: int) -> int:
    if not 0 <= value < day:
        raise BadValueError(f"{value} is not a time of day")
    return value


def _uuid_of_text(text: str) -> str:
    # Other forms are: urn:uuid:..., braces around it, no hyphens.
    digits = text.replace("urn:", "").replace("uuid:", "").strip("{}").replace("-", "")
    if not _HEX.fullmatch(digits):
        raise BadValueError("a text is not a UUID")
    return str(uuid.UUID(digits))


def _uuid_of_bytes(data: bytes) -> str:
    return str(uuid.UUID(bytes=data))
