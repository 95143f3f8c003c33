"""The checks of `doctor`: one line each, with its fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.text import Text


class State(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """A check: its name, its result, and how to fix a problem."""

    name: str
    state: State
    text: str
    cure: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON."""
        return {"name": self.name, "state": self.state.value, "text": self.text, "cure": self.cure}


def checks_text(checks: Sequence[Check]) -> Text:
    """Return the checks as text, each fix below its check."""
    colours = {State.OK: "green", State.WARNING: "yellow", State.FAILED: "red"}
    states, names = max(map(len, colours)) + 2, max(len(check.name) for check in checks) + 2
    lines = []
    for check in checks:
        state = (check.state.ljust(states), colours[check.state])
        lines.append(Text.assemble(state, check.name.ljust(names), check.text))
        if check.cure is not None:
            lines.append(Text(" " * (states + names) + f"fix: {check.cure}"))
    return Text("\n").join(lines)
