"""Further fields of a window's record: reports of its parts, and the rest of a pruned window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_ordered_ops.core.strict_json import Fields, JsonError


@dataclass(frozen=True, slots=True)
class PartReports:
    """A split window: the number of parts, and their reports."""

    count: int
    #: By part index, from 0.
    results: Mapping[int, Any] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[int, ...]:
        """The parts that have not reported."""
        return tuple(index for index in range(self.count) if index not in self.results)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        results = [[index, result] for index, result in sorted(self.results.items())]
        return {"count": self.count, "results": results}

    @classmethod
    def from_json(cls, fields: Fields) -> PartReports:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        count = fields.integer("count", least=1)
        try:
            results = {int(index): result for index, result in fields.anything("results")}
        except (TypeError, ValueError) as error:
            raise JsonError(f"the results of parts are not pairs: {error}") from error
        fields.done()
        return cls(count, results)


@dataclass(frozen=True, slots=True)
class Pruned:
    """The rest of a window's share after its offsets were pruned from the ledger."""

    offsets: int
    lost: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"offsets": self.offsets, "lost": self.lost}

    @classmethod
    def from_json(cls, fields: Fields) -> Pruned:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        pruned = cls(fields.integer("offsets", least=0), fields.integer("lost", least=0))
        fields.done()
        return pruned
