"""Random schemas of Avro, readers that have evolved, and values in bytes: good, damaged, and written in odd ways."""

from __future__ import annotations

import struct
import uuid
from random import Random
from typing import Any, Final

Schema = Any

_PLAIN: Final[list[Schema]] = [
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-nanos"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "string", "logicalType": "unknown"},
]
_NESTED: Final = ("array", "map", "optional", "union", "record")
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_LETTERS: Final = ("a", "Z", "é", "€", "😀", "\0", "{", "-")
_DAYS: Final = {"time-millis": 86_400_000, "time-micros": 86_400_000_000}


class RandomAvro:
    """Makes schemas and values from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._names = 0

    def schema(self) -> Schema:
        """Return a schema: mostly a record."""
        return self._type(3) if self._chance(8) else self.record()

    def record(self) -> Schema:
        """Return the schema of a record."""
        return self._record(4)

    def evolved(self, schema: Schema) -> Schema:
        """Return a reader's schema: fields go, come with a default, move and are renamed; types are promoted, unions changed."""
        random = self._random
        if isinstance(schema, list):
            members = [self.evolved(member) if self._chance(3) else member for member in schema]
            if len(members) > 1 and self._chance(3):
                members.pop(random.randrange(len(members)))
            return random.sample(members, len(members))
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in _PROMOTED and self._chance(3):
            return random.choice(_PROMOTED[kind])
        if kind == "array":
            schema = {**schema, "items": self.evolved(schema["items"])}
        elif kind == "map":
            schema = {**schema, "values": self.evolved(schema["values"])}
        elif kind == "record":
            schema = self._evolved_record(schema)
        elif kind == "enum" and self._chance(2):
            schema = self._evolved_enum(schema)
        if self._chance(6) and kind != "null":
            schema = random.sample(["null", schema], 2)
        return schema

    def value(self, schema: Schema) -> bytes:
        """Return a value in bytes."""
        random = self._random
        if isinstance(schema, list):
            branch = random.randrange(len(schema))
            return self._long(branch) + self.value(schema[branch])
        parts: Any = {"type": schema} if isinstance(schema, str) else schema
        match parts["type"]:
            case "record":
                return b"".join(self.value(field["type"]) for field in parts["fields"])
            case "array":
                return self._blocks(lambda: self.value(parts["items"]))
            case "map":
                # Few keys, so that some come twice.
                return self._blocks(
                    lambda: (
                        self._sized(random.choice("abcdefghijklmn").encode())
                        + self.value(parts["values"])
                    )
                )
            case "enum":
                return self._long(random.randrange(len(parts["symbols"])))
        return self._plain_value(parts)

    def damaged(self, data: bytes) -> bytes:
        """Return bytes with a few of them changed, cut off, or added."""
        random = self._random
        changed = bytearray(data)
        for _ in range(random.randint(0, 2)):
            if changed:
                changed[random.randrange(len(changed))] = random.randrange(256)
        kept = random.choice((len(changed), random.randint(0, len(changed))))
        return bytes(changed[:kept]) + random.randbytes(random.choice((0, 0, 1, 9)))

    def chance(self, one_in: int) -> bool:
        """Return true once in so many calls, about."""
        return self._chance(one_in)

    def below(self, count: int) -> int:
        """Return a number from 0 to below `count`."""
        return self._random.randrange(count)

    def _chance(self, one_in: int) -> bool:
        return self._random.randrange(one_in) == 0

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _type(self, depth: int) -> Schema:
        random = self._random
        kinds = ("plain",) * 5 + ("enum", "fixed", "decimal", "fixed decimal", "fixed uuid")
        kind = random.choice(kinds + _NESTED * 2 * (depth > 0))
        match kind:
            case "enum":
                symbols = ["A", "B", "C", "D"][: random.randint(1, 4)]
                return {"type": kind, "name": self._name("E"), "symbols": symbols}
            case "fixed":
                return {"type": kind, "name": self._name("F"), "size": random.choice((0, 1, 5, 12))}
            case "decimal" | "fixed decimal":
                return self._decimal(kind)
            case "fixed uuid":
                name = self._name("U")
                return {"type": "fixed", "name": name, "size": 16, "logicalType": "uuid"}
            case "array":
                return {"type": kind, "items": self._type(depth - 1)}
            case "map":
                return {"type": kind, "values": self._type(depth - 1)}
            case "optional":
                return random.sample(["null", self._member(depth)], 2)
            case "union":
                members = ("null", "boolean", "int", "string", "bytes", "double")
                return [*random.sample(members, random.randint(1, 4)), self._record(depth - 1)]
            case "record":
                return self._record(depth - 1)
        return random.choice(_PLAIN)

    def _member(self, depth: int) -> Schema:
        while (member := self._type(depth - 1)) == "null" or isinstance(member, list):
            pass
        return member

    def _decimal(self, kind: str) -> Schema:
        precision = self._random.choice((1, 5, 18, 38, 39, 76))
        digits = {"precision": precision, "scale": self._random.randint(0, precision)}
        if kind == "decimal":
            return {"type": "bytes", "logicalType": kind, **digits}
        size = self._random.choice((1, 8, 16, 17, 33, 41))
        return {
            "type": "fixed",
            "name": self._name("D"),
            "size": size,
            "logicalType": "decimal",
            **digits,
        }

    def _record(self, depth: int) -> Schema:
        count = self._random.randint(0, 4) if depth < 4 else self._random.randint(1, 6)
        types = [self._type(max(depth - 1, 0)) for _ in range(count)]
        fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
        return {"type": "record", "name": self._name("R"), "fields": fields}

    def _evolved_record(self, schema: Schema) -> Schema:
        random = self._random
        fields = []
        for field in schema["fields"]:
            if self._chance(5):
                continue
            evolved = {**field, "type": self.evolved(field["type"])}
            if self._chance(6):
                evolved = {**evolved, "name": f"new_{field['name']}", "aliases": [field["name"]]}
            fields.append(evolved)
        for number in range(random.choice((0, 0, 1, 2))):
            kind = self._type(1)
            fields.append({"name": f"added{number}", "type": kind, "default": self._default(kind)})
        return {**schema, "fields": random.sample(fields, len(fields))}

    def _evolved_enum(self, schema: Schema) -> Schema:
        symbols = self._random.sample(schema["symbols"], len(schema["symbols"]))
        symbols = [*symbols[: self._random.randint(1, len(symbols))], "NEW"]
        default = {"default": self._random.choice(symbols)} if self._chance(2) else {}
        return {**schema, "symbols": symbols, **default}

    def _default(self, schema: Schema) -> Any:
        """Return a default of a schema, in JSON."""
        if isinstance(schema, list):
            return self._default(schema[0])
        parts: Any = {"type": schema} if isinstance(schema, str) else schema
        match parts["type"]:
            case "null":
                return None
            case "boolean":
                return self._chance(2)
            case "int" | "long":
                return self._random.randint(0, 9_999)
            case "float" | "double":
                return self._random.choice((0, 1.5, -0.1, 1e300))
            case "string":
                is_uuid = parts.get("logicalType") == "uuid"
                return str(uuid.UUID(int=7)) if is_uuid else "ä" * self._random.randint(0, 3)
            case "bytes":
                return "\u0001" * self._random.randint(0, 1)
            case "fixed":
                return "\0" * parts["size"]
            case "enum":
                return parts["symbols"][0]
            case "array":
                return [self._default(parts["items"]) for _ in range(self._random.randint(0, 2))]
            case "map":
                return {
                    key: self._default(parts["values"]) for key in self._random.choice(("", "xy"))
                }
        return {part["name"]: self._default(part["type"]) for part in parts["fields"]}

    def _plain_value(self, parts: Any) -> bytes:
        random = self._random
        logical = parts.get("logicalType")
        match parts["type"]:
            case "null":
                return b""
            case "boolean":
                return bytes([random.randrange(2)])
            case "int" | "long" as kind:
                if day := _DAYS.get(logical):
                    return self._long(random.randrange(day))
                bits = random.randrange(31 if kind == "int" else 63)
                return self._long(random.randint(-(1 << bits), 1 << bits))
            case "float":
                return struct.pack("<f", random.uniform(-10, 10))
            case "double":
                return struct.pack("<d", random.uniform(-1e300, 1e300))
            case "fixed":
                return self._fixed(parts["size"], parts)
            case "bytes" if logical == "decimal":
                return self._sized(self._unscaled(parts["precision"]))
            case "bytes":
                return self._sized(random.randbytes(random.randrange(4)))
        if logical == "uuid":
            text = str(uuid.UUID(bytes=random.randbytes(16)))
            forms = (text, text, text.upper(), f"urn:uuid:{text}", f"{{{text}}}", text[:-1])
            return self._sized(random.choice((*forms, text.replace("-", ""))).encode())
        letters = random.choices(_LETTERS, k=random.randrange(6))
        return self._sized("".join(letters).encode())

    def _fixed(self, size: int, parts: Any) -> bytes:
        if parts.get("logicalType") != "decimal":
            return self._random.randbytes(size)
        unscaled = self._unscaled(parts["precision"])[-size:]
        sign = b"\xff" if unscaled[:1] >= b"\x80" else b"\0"
        return sign * (size - len(unscaled)) + unscaled

    def _unscaled(self, precision: int) -> bytes:
        most = 10 ** self._random.randint(0, precision + self._chance(9))
        number = self._random.randint(-most, most)
        return number.to_bytes(
            number.bit_length() // 8 + 1 + self._random.randrange(2), "big", signed=True
        )

    def _blocks(self, item: Any) -> bytes:
        """Return items in blocks, of which some have their length before them."""
        data = b""
        for _ in range(self._random.choice((0, 1, 1, 1, 2))):
            count = self._random.choice((1, 2, 3, 12))
            items = b"".join(item() for _ in range(count))
            has_length = self._chance(3)
            data += self._long(-count) + self._long(len(items)) if has_length else self._long(count)
            data += items
        return data + b"\0"

    def _sized(self, data: bytes) -> bytes:
        return self._long(len(data)) + data

    def _long(self, number: int) -> bytes:
        left = (number << 1) ^ (number >> 63)
        encoded = bytearray()
        while left > 0x7F:
            encoded.append(left & 0x7F | 0x80)
            left >>= 7
        if self._chance(200) and len(encoded) < 8:
            # A number may have zeros before it.
            return bytes([*encoded, left | 0x80, 0])
        return bytes([*encoded, left])
