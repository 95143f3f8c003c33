"""The public names of a room, each loaded when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_face(room: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        room: the package's ``__name__``.
        homes: the module of each public name, below ``kafka_ordered_ops``.
    """

    def load(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(f"kafka_ordered_ops.{homes[name]}"), name)
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return load
