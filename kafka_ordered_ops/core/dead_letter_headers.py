"""The headers that a dead letter has besides its own: where the record was, and why it is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: The prefix of the added headers.
PREFIX: Final = "koo."
#: The client refuses records above 1 MB: a long error text must not prevent the write.
TEXT_BYTES_MAX: Final = 4_000


def headers_about(facts: Mapping[str, str]) -> tuple[tuple[str, bytes], ...]:
    """Return a header for each fact, its text in UTF-8, truncated between characters."""
    return tuple((PREFIX + name, _encoded(text)) for name, text in facts.items())


def _encoded(text: str) -> bytes:
    cut = text.encode(errors="replace")[:TEXT_BYTES_MAX]
    return cut.decode(errors="ignore").encode()
