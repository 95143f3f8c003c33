r"""Escapes of control characters in text that is shown on a terminal.

Keys and values of records, names, notes and errors may contain any text. A terminal obeys control characters, and
reorders text between bidirectional marks. `printable` shows such characters as Python writes them, for example
``\x1b`` and ``\u202e``.
"""

from __future__ import annotations

import json
import re
from typing import Final

#: Control characters, surrogates, and invisible characters with an effect: Unicode's categories Cc, Cf, Cs, Zl and Zp,
#: except tabs and line feeds.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
#: The same, with tabs and line feeds, for values on one line.
_UNSAFE_IN_LINE: Final = re.compile(f"[\t\n]|{_UNSAFE.pattern}")


def printable(text: str) -> str:
    """Return text with escaped control characters; line feeds and tabs stay."""
    return text if text.isprintable() else _UNSAFE.sub(_escaped, text)


def in_line(text: str) -> str:
    """Return text with escaped control characters, on one line."""
    return text if text.isprintable() else _UNSAFE_IN_LINE.sub(_escaped, text)


def in_json(text: str) -> str:
    """Return JSON with escaped control characters and the same value: only strings contain them."""
    return text if text.isprintable() else _UNSAFE.sub(_json_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _json_escaped(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]
