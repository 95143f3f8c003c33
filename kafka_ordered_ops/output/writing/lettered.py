"""The output of another program's sink, with the records that are left out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from kafka_ordered_ops.core.window.dead_letters import (
    DeadLetters,
    dead_letters_in,
    with_dead_letters,
    without_dead_letters,
)


@dataclass(frozen=True)
class LetteredOutput:
    """An output whose JSON also has the records that become dead letters; in all else the sink's own."""

    output: Any
    dead_letters: DeadLetters

    def to_json(self) -> dict[str, Any]:
        """Return the sink's JSON and the records."""
        return with_dead_letters(self.output.to_json(), self.dead_letters)

    def __getattr__(self, name: str) -> Any:
        # The sink's methods for several outputs would not recognize outputs like this one.
        if name.endswith("_with") or name in {field.name for field in fields(self)}:
            raise AttributeError(name)
        return getattr(self.output, name)


def found_with_letters(found: Callable[[Mapping[str, Any]], Any], result: Mapping[str, Any]) -> Any:
    """Return what a sink finds by its own JSON, with the records that the ledger has beside it; None if it is gone."""
    letters = dead_letters_in(result)
    if letters is None:
        return found(result)
    output = found(without_dead_letters(result))
    return None if output is None else LetteredOutput(output, letters)
