"""Random columns, texts of JSON that serializers write for them, and odd ones; by numbers of a seed, the same in every run."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import pyarrow as pa

_PLAIN: Final = (
    pa.bool_(),
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.int16(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(38, 9),
    pa.decimal128(5, 2),
    pa.decimal128(4, 0),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
)
_NAMES: Final = ("id", "name", "größe", 'a"b', "x\\y", "tab\t", "😀", "a.b", "Id")
#: What may stand anywhere in place of a value.
_ODD: Final = [
    "0",
    "-0",
    "-0.0",
    "1.0",
    "1.50",
    "1e3",
    "1E+2",
    "1e-2",
    "12.5e1",
    "0.1",
    "-1",
    "127",
    "128",
    "-129",
    "255",
    "256",
    "65536",
    "2147483648",
    "-2147483649",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "123456789012345678901234567890.123456789",
    "1e400",
    "-1e400",
    "1e-400",
    "3.5e38",
    "1e99999",
    "1e99999999999999999999",
    "01",
    "1.",
    ".5",
    "-",
    "+1",
    "1e",
    "0x1",
    "1_0",
    "NaN",
    "Infinity",
    "-Infinity",
    "nan",
    "true",
    "false",
    "True",
    "null",
    "nul",
    "None",
    '""',
    '"12"',
    '"1.5"',
    '"',
    '1.5"',
    '"1.5',
    '"',
    '"1e2"',
    '"-0"',
    '"NaN"',
    '"Infinity"',
    '"1_0"',
    '"null"',
    '"2026-02-28"',
    '"2026-02-29"',
    '"2024-02-29"',
    '"1900-02-29"',
    '"2000-02-29"',
    '"0000-01-01"',
    '"0001-01-01"',
    '"9999-12-31"',
    '"2026-13-01"',
    '"2026-00-10"',
    '"2026-1-1"',
    '"2026-02-28T03:04:05Z"',
    '"2026-02-28T03:04:05"',
    '"2026-02-28t03:04:05.5z"',
    '"2026-02-28',
    '03:04:05.123456789+05:30"',
    '"2026-02-28T03:04:05-00:00"',
    '"2026-02-28T03:04:05+24:00"',
    '"2026-02-28T24:00:00Z"',
    '"2026-02-28T23:59:60Z"',
    '"2026-02-28T03:04Z"',
    '"0001-01-01T00:00:00+23:59"',
    '"9999-12-31T23:59:59-23:59"',
    '"2026-02-28T03:04:05.1234567891Z"',
    '"2026-02-28T03:04:05.Z"',
    '"1677-09-21T00:12:43.145224192Z"',
    '"1677-09-21T00:12:43.145224191Z"',
    '"2262-04-11T23:47:16.854775807Z"',
    '"2262-04-11T23:47:16.854775808Z"',
    '"03:04"',
    '"03:04:05"',
    '"03:04:05.250"',
    '"23:59:59.999999999"',
    '"24:00"',
    '"03:60"',
    '"3:04"',
    '"03:04:05Z"',
    "86399",
    "86400",
    "86400000000",
    "-1",
    '"AAE="',
    '"AAE"',
    '"AAF="',
    '"AA',
    'E="',
    '"A==="',
    '"===="',
    '"AAEC"',
    '"\\u0041AEC"',
    '"\\u00e9"',
    '"\\ud83d\\ude00"',
    '"\\ud83d"',
    '"\\ude00"',
    '"\\ud83dx"',
    '"\\ud83d\\u0041"',
    '"\\x"',
    '"\\u12"',
    '"\\u12g4"',
    '"\\b\\f\\n\\r\\t\\/\\\\\\""',
    '"a\\"',
    '"',
    "[]",
    "[1]",
    "[null]",
    "[1,]",
    "[,]",
    "[1",
    "2]",
    "{}",
    '{"a":1}',
    '{"a":1,}',
    '{"a"}',
    '{"a":1,"a":1}',
    '{"a":1,"\\u0061":2}',
    "{1:2}",
    '{"a":{"b":1,"b":2}}',
    "[[[]]]",
    "[{}]",
]
_LONG: Final = ("7" * 400, "7" * 401, f'"{"7" * 401}"', f"0.{'3' * 399}", f'"{"a." * 300}"')


class RandomJson:
    """Columns, and texts for them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.columns = pa.schema(self._fields(3, least=1))

    def text(self) -> bytes:
        """Return a text as serializers write it."""
        random = self.random
        value = self._object(self.columns)
        return json.dumps(
            value,
            ensure_ascii=random.random() < 0.5,
            separators=random.choice([None, (",", ":")]),
            indent=random.choice([None, None, 1]),
        ).encode()

    def odd(self) -> bytes:
        """Return a text with an odd value in it."""
        random = self.random
        token = random.choice(_LONG) if random.random() < 0.05 else random.choice(_ODD)
        name = random.choice([*self.columns.names, "other"])
        value = self._object(self.columns)
        field = None if name == "other" else self.columns.field(name)
        mark = "\0odd\0"
        value[name] = mark
        if field is not None and random.random() < 0.5:
            if pa.types.is_list(field.type):
                value[name] = [mark]
            elif pa.types.is_map(field.type):
                value[name] = {"k": mark}
            elif pa.types.is_struct(field.type):
                value[name] = {field.type[0].name: mark}
        return json.dumps(value).replace(json.dumps(mark), token).encode()

    def damaged(self, data: bytes) -> bytes:
        """Return bytes that are changed, cut or longer."""
        random, changed = self.random, bytearray(data)
        for _ in range(random.randrange(1, 3)):
            at = random.randrange(len(changed) + 1)
            match random.randrange(5):
                case 0:
                    changed[at : at + 1] = random.choice(
                        b'{}[]",:\\ntf0-.e \n\t\x00\x1f\xc3\xff'
                    ).to_bytes()
                case 1:
                    del changed[at:]
                case 2:
                    changed[at:at] = random.choice(
                        [b" ", b"\n", b"null", b"{", b"[", b'"', b"\xef\xbb\xbf", b"9"]
                    )
                case 3:
                    del changed[at : at + 1]
                case _:
                    other = random.randrange(len(changed) + 1)
                    changed[at:at] = changed[min(at, other) : max(at, other)][:30]
        return bytes(changed)

    def _fields(self, levels: int, least: int = 0) -> list[Any]:
        names = self.random.sample(_NAMES, self.random.randrange(least, 6) or 1)
        is_nullable = [self.random.random() < 0.9 for _ in names]
        return [
            pa.field(name, self._type(levels - 1), nullable=nullable)
            for name, nullable in zip(names, is_nullable, strict=True)
        ]

    def _type(self, levels: int) -> Any:
        match self.random.randrange(9) if levels else 9:
            case 0:
                return pa.struct(self._fields(levels))
            case 1:
                return pa.list_(self._type(levels - 1))
            case 2:
                return pa.map_(pa.string(), self._type(levels - 1))
        return self.random.choice(_PLAIN)

    # --- values ----------------------------------------------------------------------------------

    def _object(self, fields: Any) -> dict[str, Any]:
        random = self.random
        value: dict[str, Any] = {}
        for field in fields:
            if field.nullable and random.random() < 0.2:
                if random.random() < 0.5:
                    value[field.name] = None
            else:
                value[field.name] = self._value(field.type)
        pairs = [*value.items()]
        if random.random() < 0.3:
            random.shuffle(pairs)
        if random.random() < 0.2:
            pairs.insert(random.randrange(len(pairs) + 1), ("more", [1.5, {"x": None}, "y"]))
        return dict(pairs)

    def _value(self, arrow: Any) -> Any:
        random, types = self.random, pa.types
        if types.is_struct(arrow):
            return self._object(arrow)
        if types.is_list(arrow):
            return [self._item(arrow.value_type) for _ in range(random.randrange(4))]
        if types.is_map(arrow):
            keys = random.sample(_NAMES, random.randrange(4))
            return {key: self._item(arrow.item_type) for key in keys}
        if types.is_boolean(arrow):
            return random.random() < 0.5
        if types.is_integer(arrow):
            least = -(2 ** (arrow.bit_width - 1)) if types.is_signed_integer(arrow) else 0
            greatest = least + 2**arrow.bit_width - 1
            return random.choice([0, 1, least, greatest, random.randint(least, greatest)])
        if types.is_floating(arrow):
            return random.choice([0.0, -1.5, 3, random.random(), 1e-40, 2.0**100, 5e-324])
        if types.is_decimal(arrow):
            digits = random.randrange(10 ** min(arrow.precision, 15)) / 10**arrow.scale
            text = f"{digits:.{arrow.scale}f}"
            return random.choice([text, int(digits)])
        if types.is_string(arrow):
            return "".join(random.choice('ab"\\\n é😀/\0') for _ in range(random.randrange(20)))
        if types.is_binary(arrow):
            return base64.b64encode(random.randbytes(random.randrange(6))).decode()
        return self._time(arrow)

    def _item(self, arrow: Any) -> Any:
        return None if self.random.random() < 0.1 else self._value(arrow)

    def _time(self, arrow: Any) -> Any:
        random, types = self.random, pa.types
        seconds = random.randrange(-(10**9), 4 * 10**9)
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}.get(getattr(arrow, "unit", "s"), 0)
        fraction = f".{random.randrange(10**digits):0{digits}d}" if digits else ""
        if types.is_date(arrow):
            return random.choice([moment.date().isoformat(), seconds // 86_400])
        if types.is_time(arrow):
            return random.choice([f"{moment:%H:%M:%S}{fraction}", f"{moment:%H:%M}"])
        zone = random.choice(["Z", "z", "+01:30", "-11:00"]) if arrow.tz else ""
        return random.choice([f"{moment:%Y-%m-%d}T{moment:%H:%M:%S}{fraction}{zone}", seconds])
