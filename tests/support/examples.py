"""How many random examples a property tries: few by day, very many by night."""

from __future__ import annotations

from hypothesis import settings

#: Of a property that names no number: `make test`, and each change.
BY_DAY = 30
#: `make nightly`.
BY_NIGHT = 2_000


def examples(count: int, *, by_day: int | None = None) -> int:
    """The examples of a property that names its number: by night as many times more as all have, by day maybe fewer."""
    more = settings().max_examples // BY_DAY
    return count * more if by_day is None or more > 1 else by_day
