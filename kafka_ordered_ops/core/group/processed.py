"""The processed offsets of an open window, which its later attempts need not process again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.strict_json import Int32, Stored, Text, once
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import (
    Ranges,
    TopicName,
    bounded_ranges,
    ranges_from_json,
    ranges_to_json,
    stored_topic,
)

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ProcessedOffsets:
    """The offsets that the attempts of one claim have processed.

    A separate record in the ledger: the window's record holds the whole plan, and is seldom rewritten while the window
    is processed.
    """

    #: Another claim of the same window begins with none.
    claim_id: str
    #: Only partitions that have any.
    offsets: Mapping[TopicPartition, OffsetSet]

    def with_more(self, more: Mapping[TopicPartition, OffsetSet]) -> ProcessedOffsets:
        """Return the union with more offsets."""
        new = {
            tp: self.offsets.get(tp, EMPTY_SET) | offsets for tp, offsets in more.items() if offsets
        }
        return ProcessedOffsets(self.claim_id, {**self.offsets, **new})

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON; ranges as `ranges_to_json` has them."""
        return {
            "version": _VERSION,
            "claim_id": self.claim_id,
            "partitions": [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "offsets": ranges_to_json(self.offsets[tp]),
                }
                for tp in sorted(self.offsets)
            ],
        }

    @classmethod
    def from_json(cls, value: Any) -> ProcessedOffsets:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        stored = _Stored.parse(value, "processed")
        offsets = (
            (
                TopicPartition(stored_topic(partition.topic), partition.partition),
                ranges_from_json(partition.offsets),
            )
            for partition in stored.partitions
        )
        return cls(
            stored.claim_id, once(bounded_ranges(offsets, lambda item: len(item[1])), "partition")
        )


class _StoredPartition(Stored, frozen=True):
    topic: TopicName
    partition: Int32
    offsets: Ranges


class _Stored(Stored, frozen=True):
    what = "the record of processed offsets"

    version: Literal[1]
    claim_id: Text
    partitions: list[_StoredPartition]
