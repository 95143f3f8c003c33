"""When a client may be destroyed: neither in a forked process, nor by a thread of the client library.

A fork copies a client without its threads. Any call of the copy waits forever, and so does its destruction, which Python
starts with the last reference, at the latest when the child ends. So a child keeps every client of its parent, and uses
none.

The library ends the process if one of its own threads destroys a client. Such a thread runs Python to deliver an answer, and
thus also the garbage collector, which may find the client there: an error that interrupted a request refers to it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from kafka_ordered_ops.core.errors import NotShareableError

_clients: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
#: Clients that a thread of the client library was about to destroy.
_left: Final[list[object]] = []


@functools.cache
def lasting(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a subclass of a client's class: its objects support weak references, and only Python's threads destroy them."""
    if not isinstance(make, type):
        return make
    return type(make.__name__, (make,), {"__del__": _leave_to_python})


def _leave_to_python(client: object) -> None:
    # The class of threads that Python did not start.
    if isinstance(threading.current_thread(), threading._DummyThread):
        _left.append(client)
        # The collector has removed the weak reference.
        _clients.add(client)


def destroy_left() -> None:
    """Destroy the clients that threads of the client library have left."""
    _left.clear()


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
