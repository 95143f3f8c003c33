"""Clients in forked processes, where they can be neither used nor destroyed.

A fork copies a client without its threads. Any call of the copy waits forever, and so does its destruction, which Python
starts with the last reference, at the latest when the child ends. So a child keeps every client of its parent, and uses
none.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Final

from kafka_ordered_ops.core.errors import NotShareableError

_clients: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def keep_in_children(client: object) -> None:
    """Keep a client from being destroyed in processes that are forked while it lives."""
    _clients.add(client)


def _keep() -> None:
    for client in list(_clients):
        # An extra reference without a holder: nothing in this process can release it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


os.register_at_fork(after_in_child=_keep)


class Home:
    """The process in which a connection was opened."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether the current process is the one that opened it."""
        return os.getpid() == self._pid

    def check(self, what: str) -> None:
        """Raise `NotShareableError` in another process."""
        if not self.is_here:
            raise NotShareableError(
                f"{what} was opened in process {self._pid}, and this is process {os.getpid()}, forked from it: "
                "connections cannot be shared. Open one in this process"
            )
