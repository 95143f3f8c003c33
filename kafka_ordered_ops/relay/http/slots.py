"""Turns of callers, for what takes much memory: each name has its own, so that one caller waits for itself alone."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Slots:
    """Turns of one kind, for one event loop.

    Args:
        most: how many each caller has at the same time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: Those that nobody uses are gone by themselves.
        self._found: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, name: str) -> asyncio.Semaphore:
        """Return what a caller acquires."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = asyncio.Semaphore(self._most)
        return found
