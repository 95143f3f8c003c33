"""Slots for work that takes much memory. Each caller has its own, so that it waits only for its own requests."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Slots:
    """Slots of one kind, for one event loop.

    Args:
        most: the number of concurrent slots of each caller.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: Unused semaphores are removed automatically.
        self._found: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, name: str) -> asyncio.Semaphore:
        """Return the semaphore of a caller."""
        semaphore = self._found.get(name)
        if semaphore is None:
            semaphore = self._found[name] = asyncio.Semaphore(self._most)
        return semaphore
