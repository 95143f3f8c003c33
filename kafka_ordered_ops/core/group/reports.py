"""Further facts of a window: reports of its parts, and what is left of a pruned and of a forgotten window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from kafka_ordered_ops.core.strict_json import Count, JsonError, Stored, Text, Texts, once
from kafka_ordered_ops.core.window.plan import PartsCount


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


class StoredReports(Stored, frozen=True):
    """The JSON of `PartReports`."""

    count: PartsCount
    results: list[tuple[int, dict[str, Any]]]

    @property
    def reports(self) -> PartReports:
        """The reports; raises `JsonError` for two of a part, or one that the window does not have."""
        results = once(self.results, "part")
        if results and not 0 <= min(results) <= max(results) < self.count:
            raise JsonError(f"a window of {self.count} parts has a result of another one")
        return PartReports(self.count, results)


class Pruned(Stored, frozen=True):
    """The rest of a window's share after its offsets were pruned from the ledger."""

    offsets: Count
    lost: Count


#: Version of what is kept of a forgotten window.
_FORGOTTEN_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What the ledger keeps of a delivered window that was forgotten: its output stands, and its id is used up."""

    #: Its claims whose output readers may see, the newest last.
    claims: tuple[str, ...]
    #: What it asked for; see `Window.question_digest`.
    question: str

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON."""
        return {
            "version": _FORGOTTEN_VERSION,
            "claims": list(self.claims),
            "question": self.question,
        }

    @classmethod
    def from_json(cls, value: Any) -> Forgotten:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        stored = _StoredForgotten.parse(value, "forgotten")
        return cls(stored.claims, stored.question)


class _StoredForgotten(Stored, frozen=True):
    what = "the forgotten window"

    version: Literal[1]
    claims: Annotated[Texts, Meta(min_length=1)]
    question: Text
