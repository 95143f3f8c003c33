"""What `doctor` has looked at: one line each, with its cure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.text import Text


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, what was found, and what to do."""

    name: str
    state: State
    text: str
    cure: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"name": self.name, "state": self.state.value, "text": self.text, "cure": self.cure}


def checks_text(checks: Sequence[Check]) -> Text:
    """What `doctor` has found; a cure stands below its line."""
    colours = {State.OK: "green", State.WARNING: "yellow", State.FAILED: "red"}
    states, names = max(map(len, colours)) + 2, max(len(one.name) for one in checks) + 2
    lines = []
    for one in checks:
        state = (one.state.ljust(states), colours[one.state])
        lines.append(Text.assemble(state, one.name.ljust(names), one.text))
        if one.cure is not None:
            lines.append(Text(" " * (states + names) + f"cure: {one.cure}"))
    return Text("\n").join(lines)
