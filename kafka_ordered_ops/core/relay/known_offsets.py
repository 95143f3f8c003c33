"""The offsets of a set that are in a collection, without looking up each offset of long ranges."""

from __future__ import annotations

from collections.abc import Collection

from kafka_ordered_ops.core.offset_set import OffsetSet


def known_offsets(offsets: OffsetSet, known: Collection[int]) -> list[int]:
    """Return the known offsets as a list, so that the collection may change during iteration."""
    if offsets.count <= len(known):
        return [offset for start, end in offsets for offset in range(start, end) if offset in known]
    return [offset for offset in known if offset in offsets]
