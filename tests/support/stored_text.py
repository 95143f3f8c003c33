"""What another program may have written where this package stores text: valid texts that were changed, and bombs."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

#: Values that no field expects, each of which has ended a parser somewhere.
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63),
    10**30,
    1.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "x" * 70_000,
    "\ud800",
    "\u202e\x1b[2J",
    "^(((",
    "9" * 5_000,
    [],
    {},
    [[]],
    [None],
    {"a": {"b": [1, {"c": "d"}]}},
    [0] * 3_000,
)

#: Pieces of text that break a parser, or make it slow or large.
ODD_PIECES: tuple[bytes, ...] = (
    b"[" * 5_000,
    b'{"a":' * 3_000,
    b"9" * 5_000,
    b"-",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b'"\\ud800"',
    b'"version":1,"version":2,',
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b",",
    b'"',
    b"\xed\xa0\x80",
)


# By their places: what is tried is shown, and some of it is long.
_odd_values = st.integers(0, len(ODD_VALUES) - 1).map(ODD_VALUES.__getitem__)
_odd_pieces = st.integers(0, len(ODD_PIECES) - 1).map(ODD_PIECES.__getitem__)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in list(inner)[:200]:
            yield from _places(one, (*place, key))


def _put(value: Any, place: tuple[Any, ...], change: Callable[[Any, Any], None]) -> None:
    for key in place[:-1]:
        value = value[key]
    change(value, place[-1])


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()


@st.composite
def _with_another_value(draw: Any, valid: Any) -> bytes:
    changed = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in _places(changed) if place]
        if not places:
            break
        place = draw(st.sampled_from(places))
        odd = copy.deepcopy(draw(_odd_values))
        kind = draw(st.sampled_from(["set", "remove", "add", "twice"]))

        def change(parent: Any, key: Any, kind: str = kind, odd: Any = odd) -> None:
            if kind == "remove":
                del parent[key]
            elif kind == "twice" and isinstance(parent, list):
                parent.append(parent[key])
            elif kind == "add":
                parent["surplus"] = odd if isinstance(parent, dict) else parent.append(odd)
            else:
                parent[key] = odd

        try:
            _put(changed, place, change)
        except TypeError:
            continue  # "add" to a list.
    return _text(changed)


@st.composite
def _with_another_piece(draw: Any, valid: Any) -> bytes:
    data = bytearray(_text(valid))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(start + 40, len(data))))
        data[start:end] = draw(_odd_pieces | st.binary(max_size=4))
    return bytes(data)


_leaves = _odd_values | st.integers() | st.floats() | st.text(max_size=5) | st.booleans()
#: Any JSON, and what only looks like it.
garbage = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
).map(_text) | st.binary(max_size=60)


def changed(valid: Any) -> st.SearchStrategy[bytes]:
    """Texts made from the JSON of a valid one, and garbage."""
    return _with_another_value(valid) | _with_another_piece(valid) | garbage


#: Small texts that a plain parser makes hundreds of megabytes of, or never ends with.
BOMBS: dict[str, bytes] = {
    "nested lists": b"[" * 8_000_000,
    "nested objects": b'{"a":' * 2_000_000,
    "empty lists": b"[" + b"[]," * 5_000_000 + b"[]]",
    "empty objects": b"[" + b"{}," * 5_000_000 + b"{}]",
    "numbers": b"[" + b"1," * 8_000_000 + b"1]",
    "a long number": b"9" * 8_000_000,
    "a long fraction": b"1." + b"9" * 8_000_000,
    "escapes": b'["' + b"\\ud800" * 1_000_000 + b'"]',
}


@contextmanager
def memory_bound(limit_bytes: int) -> Iterator[None]:
    """Fail if the block takes more memory than this at any moment."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= limit_bytes, f"{peak:,} bytes"
