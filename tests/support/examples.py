"""How many random examples a property tries: few by day, very many by night."""

from __future__ import annotations

from hypothesis import settings

#: Of a property that names no number: `make test`, and each change.
BY_DAY = 30
#: `make nightly`.
BY_NIGHT = 2_000


def examples(by_day: int) -> int:
    """The examples of a property that names its number by day: by night as many times more as all have."""
    return by_day * (settings().max_examples // BY_DAY)
