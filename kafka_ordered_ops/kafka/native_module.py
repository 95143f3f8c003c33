"""The native extension, a separate distribution: it reads records and decodes their values."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Final

#: The interface that this package knows.
_INTERFACE: Final = 3


@cache
def native_module() -> ModuleType | None:
    """Return the extension; None if it is not installed, or has another interface."""
    try:
        import kafka_ordered_ops_native as module
    except ImportError:
        return None
    return module if module.INTERFACE == _INTERFACE else None
