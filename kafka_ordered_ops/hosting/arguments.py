"""Signatures that spell out what others take: a host's public functions and operators pass their arguments on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

#: What a method has beside its arguments.
_NO_ARGUMENTS: Final = ("self", "__class__", "kwargs")


def arguments(found: Mapping[str, Any], *, own: Collection[str] = ()) -> dict[str, Any]:
    """What a function was called with, to be passed on by name.

    Args:
        found: its ``locals()``, before it has any other; what its ``**kwargs`` holds is passed on like the rest.
        own: arguments that are not passed on.
    """
    given = {name: value for name, value in found.items() if name not in (*own, *_NO_ARGUMENTS)}
    return {**given, **found.get("kwargs", {})}
