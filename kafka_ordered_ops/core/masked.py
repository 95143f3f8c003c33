"""Find secrets among settings by their names, and show them as ``***``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

#: The names of ``spark.redaction.regex``, and those of JAAS, Azure and Google.
_SECRET: Final = re.compile(
    r"secret|passw|passphrase|token|credential|access[._-]?key|account[._-]?key|private[._-]?key|api[._-]?key|jaas"
    r"|[._]sas[._]",
    re.IGNORECASE,
)
MASK: Final = "***"


def secrets_among(settings: Any) -> Iterator[str]:
    """Yield the values of settings whose names mark them as secrets; nothing for anything but a mapping."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            if isinstance(value, str) and value and _SECRET.search(str(name)):
                yield value


def masked(settings: Any) -> Any:
    """Return settings with their secrets masked; anything but a mapping unchanged."""
    if not isinstance(settings, Mapping):
        return settings
    return {
        name: MASK if _SECRET.search(str(name)) else masked(value)
        for name, value in settings.items()
    }


def shown_fields(value: object, **fields: Any) -> str:
    """Return the representation of a value, with its fields that are not empty."""
    fields_text = ", ".join(
        f"{name}={field!r}" for name, field in fields.items() if field not in (None, (), {})
    )
    return f"{type(value).__name__}({fields_text})"
