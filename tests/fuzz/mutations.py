"""Inputs made from valid ones: changed, cut, spliced, repeated and nested bytes, and JSON with values that no field expects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

from tests.support.stored_text import ODD_PIECES, ODD_VALUES

#: Longer inputs are cut: they take time, and find no more.
LENGTH_MAX: Final = 200_000
#: Longer odd values and pieces are rare, for the same reason.
_LONG: Final = 1_000
_NUMBER: Final = re.compile(rb"-?\d+")
_NUMBERS: Final = tuple(
    text.encode()
    for text in (
        *(
            "0",
            "-0",
            "-1",
            "1",
            "01",
            "1.5",
            "1e3",
            "1e999",
            "-1e999",
            "1e-999",
            "1e99999999",
            "1e-99999999",
            "NaN",
            "Infinity",
        ),
        *(str(2**bits + more) for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64) for more in (-1, 0)),
        *(str(-(2**bits)) for bits in (7, 31, 63)),
        *("9" * 30, "9" * 5_000, "0." + "3" * 400, "\u0661", "1_0", "0x1"),
    )
)
_PIECES: Final = (
    *ODD_PIECES,
    *(b"\xff" * count + b"\x01" for count in (4, 8, 9)),
    *(b"\x80" * count for count in (1, 5, 10)),
    *(
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x80\xae\x1b[2J",
        b"\r\n",
        b"=" * 3,
        b"/../",
        b"{{ x }}",
    ),
)
_EDGES: Final = (
    0,
    1,
    2,
    -1,
    -2,
    127,
    128,
    255,
    2**15 - 1,
    2**15,
    2**31 - 1,
    -(2**31),
    2**62,
    -(2**63),
)


class Mutator:
    """Makes inputs of valid ones; the same for the same seed."""

    def __init__(self, valid: Sequence[bytes], seed: object) -> None:
        self._valid = valid
        self._random = Random(str(seed))
        self._json = [text for text in valid if _is_structure(text)]
        self._changes: tuple[Callable[[bytearray], None], ...] = (
            *(self._flip, self._set, self._cut, self._remove, self._repeat, self._splice),
            *(self._insert, self._number, self._length, self._nest, self._key_twice),
        )

    def inputs(self, count: int) -> list[bytes]:
        """Return the next inputs."""
        return [self._input()[:LENGTH_MAX] for _ in range(count)]

    def _input(self) -> bytes:
        random = self._random
        if self._json and random.random() < 0.4:
            data = bytearray(self._with_odd_values(random.choice(self._json)))
            if random.random() < 0.7:
                return bytes(data)
        else:
            data = bytearray(random.choice(self._valid))
        for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
            random.choice(self._changes)(data)
        return bytes(data)

    # --- bytes -----------------------------------------------------------------------------------

    def _flip(self, data: bytearray) -> None:
        for _ in range(self._random.choice((1, 1, 2, 8)) if data else 0):
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)

    def _set(self, data: bytearray) -> None:
        if data:
            byte = self._random.choice((0, 1, 0x7F, 0x80, 0xFF, self._random.randrange(256)))
            data[self._random.randrange(len(data))] = byte

    def _cut(self, data: bytearray) -> None:
        del data[self._random.randrange(len(data) + 1) :]

    def _remove(self, data: bytearray) -> None:
        start, end = self._slice(data)
        del data[start:end]

    def _repeat(self, data: bytearray) -> None:
        start, end = self._slice(data)
        data[start:start] = data[start:end] * self._random.choice((1, 1, 2, 50))

    def _splice(self, data: bytearray) -> None:
        other = self._random.choice(self._valid)
        start, end = self._slice(data)
        first, last = self._slice(other)
        data[start:end] = other[first:last]

    def _insert(self, data: bytearray) -> None:
        start, end = self._slice(data)
        piece = self._random.choice(_PIECES)
        if len(piece) > _LONG and self._random.random() < 0.9:
            piece = piece[: self._random.randrange(100)]
        data[start : self._random.choice((start, end))] = piece

    def _length(self, data: bytearray) -> None:
        """Write a number in place of one, or of what is no number: lengths and counts lie."""
        width = self._random.choice((1, 2, 4, 8))
        number = self._random.choice((*_EDGES, len(data), self._random.getrandbits(8 * width)))
        order: Any = self._random.choice(("big", "little"))
        at = self._random.randrange(len(data) + 1)
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, order)

    def _slice(self, data: bytes | bytearray) -> tuple[int, int]:
        start = self._random.randrange(len(data) + 1)
        return start, min(len(data), start + self._random.choice((1, 2, 4, 8, 30, 300)))

    # --- texts -----------------------------------------------------------------------------------

    def _number(self, data: bytearray) -> None:
        """Write another number in place of one in digits."""
        start = self._random.randrange(len(data) + 1)
        if match := _NUMBER.search(data, start) or _NUMBER.search(data):
            data[match.start() : match.end()] = self._random.choice(_NUMBERS)

    def _nest(self, data: bytearray) -> None:
        levels = self._random.choice((1, 3, 40, 70, 200, 200, 20_000))
        opening, closing = self._random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")")))
        start, end = self._slice(data)
        data[end:end] = closing * levels
        data[start:start] = opening * levels

    def _key_twice(self, data: bytearray) -> None:
        """Repeat the first key of an object, with another value."""
        start = data.find(b"{", self._random.randrange(len(data) + 1))
        end = data.find(b":", start)
        if start >= 0 and end > start:
            key = bytes(data[start + 1 : end + 1])
            data[start + 1 : start + 1] = key + self._random.choice(_NUMBERS) + b","

    def _with_odd_values(self, text: bytes) -> bytes:
        value = json.loads(text)
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            places = list(_places(value))
            if not places:
                break
            parent, key = self._random.choice(places)
            kind = self._random.randrange(6)
            if kind == 0:
                del parent[key]
            elif kind == 1 and isinstance(parent, list):
                parent.append(parent[key])
            elif kind == 2 and isinstance(parent, dict):
                parent["surplus"] = self._odd()
            elif kind == 3:
                parent[key] = self._random.choice(places)[0]
            else:
                parent[key] = self._odd()
            text = _text(value)
            value = json.loads(text)
        return text

    def _odd(self) -> Any:
        while True:
            odd = self._random.choice(ODD_VALUES)
            if (
                not (isinstance(odd, str | list) and len(odd) > _LONG)
                or self._random.random() < 0.1
            ):
                return odd


def _is_structure(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value))[
            :200
        ]:
            yield value, key
            yield from _places(inner)


def _text(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except ValueError:
        # A list was put into itself.
        return b"[[]]"
