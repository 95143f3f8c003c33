"""The base of all errors of this package; `core.errors` has the tree."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, ClassVar, Final

#: No path, URL or name that can exist is longer; a message must not repeat a value of any length.
_LONG_WORD: Final = re.compile(r"\S{2001,}")
_LONG_WORD_SHOWN: Final = 100


def invariant(holds: bool, message: str) -> None:
    """Raise `AssertionError` for a bug of this package; unlike ``assert``, also under ``python -O``."""
    if not holds:
        raise AssertionError(message)


class KafkaOrderedOpsError(Exception):
    """The base class of all errors. `facts` become attributes; subclasses declare theirs with a type."""

    #: Whether the same call may succeed later without any change by a person.
    retriable: ClassVar[bool] = False
    #: The call of a service that failed, such as ``plan`` or ``commit``; None outside of one.
    step: str | None = None

    def __init__(self, message: str, **facts: Any) -> None:
        message = _LONG_WORD.sub(_shortened, message)
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark and multiprocessing pickle errors; by default, keyword arguments are lost.
        return partial(type(self), self.message, **self.facts), ()


def name_places(error: KafkaOrderedOpsError, **places: str | None) -> None:
    """Add to an error's message the places that it does not name yet, such as its group, its window and the step."""
    named = [f"{kind} {name}" for kind, name in {**places, "step": error.step}.items() if name]
    if missing := [place for place in named if place not in error.message]:
        error.message = f"{error.message} ({', '.join(missing)})"
        error.args = (error.message,)


def _shortened(word: re.Match[str]) -> str:
    text = word.group()
    return f"{text[:_LONG_WORD_SHOWN]}... ({len(text):,} characters)"
