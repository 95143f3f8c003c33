"""Signatures that spell out what others take: a host's public functions and operators pass their arguments on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

#: What a method has beside its arguments.
_NO_ARGUMENTS: Final = ("self", "__class__", "kwargs")

#: Those without a default: whoever takes them says what is wrong with None.
_NEEDED: Final = ("topics", "group_id", "window")


def arguments(found: Mapping[str, Any], *, own: Collection[str] = ()) -> dict[str, Any]:
    """What a function was called with, to be passed on by name; of what is None the next one has its own default.

    Args:
        found: its ``locals()``, before it has any other; what its ``**kwargs`` holds is passed on like the rest.
        own: arguments that are not passed on.
    """
    given = {**found, **found.get("kwargs", {})}
    left_out = {*own, *_NO_ARGUMENTS}
    left_out.update(name for name in given.keys() - {*_NEEDED} if given[name] is None)
    return {name: one for name, one in given.items() if name not in left_out}
