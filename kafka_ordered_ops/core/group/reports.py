"""Further facts of a window: reports of its parts, and what is left of a pruned and of a forgotten window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_ordered_ops.core.strict_json import Fields, JsonError, JsonVersionError, once
from kafka_ordered_ops.core.window.plan import PARTS_MAX


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
        count = fields.integer("count", least=1, greatest=PARTS_MAX)
        results = once(_pairs(fields.anything("results")), "part")
        fields.done()
        if results and not 0 <= min(results) <= max(results) < count:
            raise JsonError(f"a window of {count} parts has a result of another one")
        return cls(count, results)


def _pairs(values: Any) -> Iterator[tuple[int, Any]]:
    for one in values if isinstance(values, list) else [None]:
        number, result = one if isinstance(one, list) and len(one) == 2 else (None, None)
        if type(number) is not int or not isinstance(result, dict):
            raise JsonError("the results of parts are not pairs of a number and an object")
        yield number, result


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
    def from_json(cls, fields: Fields) -> Forgotten:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        if (version := fields.integer("version")) != _FORGOTTEN_VERSION:
            raise JsonVersionError(
                f"a forgotten window of version {version}; this package reads version {_FORGOTTEN_VERSION}"
            )
        forgotten = cls(fields.texts("claims"), fields.text("question"))
        fields.done()
        if not forgotten.claims:
            raise JsonError("a forgotten window names no claim")
        return forgotten
