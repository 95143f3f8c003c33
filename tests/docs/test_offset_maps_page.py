"""The example of the page on offset maps, to the byte."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from kafka_ordered_ops.core.offset_map.ours import OffsetMap, encode_offset_map
from kafka_ordered_ops.core.offset_map.parallel_consumer import (
    Encoding,
    encode_parallel_consumer_map,
)
from kafka_ordered_ops.core.offset_set import OffsetSet

PAGE = (Path(__file__).parents[2] / "docs" / "parallel-consumer.md").read_text()
DONE = OffsetSet.of((101, 105), (106, 110))


def rows_after(text: str) -> bytes:
    """The bytes in the table that follows a text; ``...`` stands for those in between."""
    table = (
        PAGE.partition(text)[2]
        .partition("| bytes | meaning |\n|---|---|\n")[2]
        .partition("\n\n")[0]
    )
    found: list[int] = []
    for line in table.splitlines():
        first, _, last = line.split("`")[1].partition(" ... ")
        found += bytes.fromhex(first)
        if last:
            found += range(found[-1] + 1, int(last, 16) + 1)
    return bytes(found)


@pytest.mark.parametrize("encoding", [Encoding.RUN_LENGTH, Encoding.BIT_SET])
def test_parallel_consumers_format(encoding: Encoding) -> None:
    """Text and bytes are those of the encoder."""
    text = encode_parallel_consumer_map(100, DONE, encoding=encoding).decode()
    assert rows_after(f"`{text}`") == base64.b64decode(text)


def test_what_is_written() -> None:
    """It is the shorter of the two."""
    text = encode_parallel_consumer_map(100, DONE).decode()
    assert f"As BitSet it is `{text}`, which is shorter" in PAGE


def test_this_packages_format() -> None:
    """Text and bytes are those of the encoder."""
    ids = bytes(range(32))
    text = encode_offset_map(OffsetMap(ids[:16], ids[16:], 7, 100, DONE)).decode()
    assert rows_after(f"`{text}`") == base64.b64decode(text[len("~koo1:") : -1])
