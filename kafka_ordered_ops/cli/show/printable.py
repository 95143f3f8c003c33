r"""Text of others on a terminal: what would move its cursor, colour it, or turn the order of letters, is shown as an escape.

Keys and values of records, names, notes and errors may hold anything. A terminal obeys control characters, and shows
text between bidirectional marks in another order than it is. `printable` shows them as Python writes them, such as
``\x1b`` and ``\u202e``.
"""

from __future__ import annotations

import json
import re
from typing import Final

#: Control characters, surrogates, and everything invisible that has an effect: Unicode's categories Cc, Cf, Cs, Zl and Zp,
#: but for the tabulator and the line feed.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
#: The same and the two, in a value that has one line.
_UNSAFE_IN_LINE: Final = re.compile(f"[\t\n]|{_UNSAFE.pattern}")


def printable(text: str) -> str:
    """Return text that a terminal only shows; line feeds and tabulators stay."""
    return text if text.isprintable() else _UNSAFE.sub(_escaped, text)


def in_line(text: str) -> str:
    """Return text that a terminal only shows, on one line."""
    return text if text.isprintable() else _UNSAFE_IN_LINE.sub(_escaped, text)


def in_json(text: str) -> str:
    """Return JSON that a terminal only shows, and that is still the same value: such characters are in strings only."""
    return text if text.isprintable() else _UNSAFE.sub(_json_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _json_escaped(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]
