"""Both decoders, for tests of what either promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka_ordered_ops.decoding import column_reader


@contextmanager
def decoded_by(name: str) -> Iterator[None]:
    """Decode with ``python`` or ``native`` in this block; columns that are read later keep their decoder."""
    column_reader.forced = name
    try:
        yield
    finally:
        column_reader.forced = None
