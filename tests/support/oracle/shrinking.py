"""Make a failing list of steps short, by leaving steps out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

S = TypeVar("S")


def shortest(steps: Sequence[S], still_fails: Callable[[tuple[S, ...]], bool]) -> tuple[S, ...]:
    """Return a part of failing steps that still fails, from which no step can be left out alone."""
    kept = tuple(steps)
    size = len(kept)
    while size:
        at = 0
        while at < len(kept):
            shorter = kept[:at] + kept[at + size :]
            if still_fails(shorter):
                kept = shorter
            else:
                at += size
        size //= 2
    return kept
