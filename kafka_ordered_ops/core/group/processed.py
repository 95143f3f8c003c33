"""The processed offsets of an open window, which its later attempts need not process again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.strict_json import Fields, JsonVersionError, once
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import (
    bounded_ranges,
    ranges_to_json,
    stored_ranges,
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
        new = {tp: self.offsets.get(tp, EMPTY_SET) | one for tp, one in more.items() if one}
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
    def from_json(cls, fields: Fields) -> ProcessedOffsets:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        if (version := fields.integer("version", least=1)) != _VERSION:
            raise JsonVersionError(
                f"processed offsets of version {version}; this package reads version {_VERSION}"
            )
        claim_id = fields.text("claim_id")
        stored = bounded_ranges(_partitions(fields), lambda one: len(one[1]))
        offsets = once(stored, "partition")
        fields.done()
        return cls(claim_id, offsets)


def _partitions(fields: Fields) -> Iterator[tuple[TopicPartition, OffsetSet]]:
    for one in fields.objects("partitions"):
        tp = TopicPartition(stored_topic(one), one.int32("partition"))
        offsets = stored_ranges(one, "offsets")
        one.done()
        yield tp, offsets
