"""Parse Java's ``.properties`` syntax, the format of files with client settings."""

from __future__ import annotations

import re
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError

# Not str.splitlines, which also splits at characters that a password may contain.
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_PROPERTY: Final = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's ``.properties`` syntax: comments, continued lines, escapes; a later key wins.

    Raises `ConfigError` with the line number, but never with the line, which may contain a secret.
    """
    properties: dict[str, str] = {}
    lines = iter(enumerate(_LINE_END.split(text), start=1))
    for number, line in lines:
        logical = line.lstrip()
        if not logical or logical[0] in "#!":
            continue
        # An odd number of backslashes at the end continues the line; an even number is escaped backslashes.
        while (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1] + next(lines, (number, ""))[1].lstrip()
        match = _PROPERTY.fullmatch(logical)
        if match is None:
            raise ConfigError(f"line {number} of the client settings is not 'key=value'")
        key, value = (_unescaped(part, number) for part in match.groups())
        properties[key] = value
    return properties


def _unescaped(text: str, number: int) -> str:
    try:
        # Java writes a character beyond U+FFFF as two escapes, one for each half.
        return _ESCAPE.sub(_unescape, text).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        # Without the error, which shows some of the text.
        raise ConfigError(
            f"line {number} of the client settings has an incomplete escape: Java writes "
            "a character beyond U+FFFF as two escapes, \\uD800 to \\uDBFF and \\uDC00 to \\uDFFF"
        ) from None


def _unescape(match: re.Match[str]) -> str:
    code, char = match.groups()
    return chr(int(code, 16)) if code else _ESCAPED.get(char, char)
