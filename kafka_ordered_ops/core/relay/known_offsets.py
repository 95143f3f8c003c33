"""The offsets of a set that are in a collection, without a look at each offset of long ranges."""

from __future__ import annotations

from collections.abc import Collection

from kafka_ordered_ops.core.offset_set import OffsetSet


def known_offsets(offsets: OffsetSet, known: Collection[int]) -> list[int]:
    """Return the offsets that are known, in a list, so that the collection may change while it is read."""
    if offsets.count <= len(known):
        return [one for start, end in offsets for one in range(start, end) if one in known]
    return [one for one in known if one in offsets]
