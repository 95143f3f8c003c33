"""A network of a test's own: a namespace with nothing in it but a loopback interface.

Nobody else's connections are in its counters, every port is free, and a client that connects without end
takes no port from other tests. It is made by the calling thread for the clients and processes that this
thread starts; it has no name, and goes with the last process in it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_INTERFACE = "16sh14x"

#: This thread's network, not that of the process's first thread.
_THIS_NETWORK = "/proc/thread-self/ns/net"
_COUNTERS = Path("/proc/thread-self/net/snmp")


@dataclass(frozen=True)
class OwnNetwork:
    """A network that threads can enter; None as descriptor is the machine's own."""

    descriptor: int | None
    #: Why this is the machine's network, if it is.
    reason: str = ""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Everything that this thread connects or starts is in this network, until the block ends."""
        if self.descriptor is None:
            yield
            return
        before = os.open(_THIS_NETWORK, os.O_RDONLY)
        try:
            _call("setns", self.descriptor, _CLONE_NEWNET)
            try:
                yield
            finally:
                _call("setns", before, _CLONE_NEWNET)
        finally:
            os.close(before)


@contextmanager
def own_network() -> Iterator[OwnNetwork]:
    """A new network where the kernel and this user's rights allow one; else the machine's, with the reason."""
    try:
        before = os.open(_THIS_NETWORK, os.O_RDONLY)
    except OSError as error:
        yield OwnNetwork(None, f"no network namespaces: {error}")
        return
    try:
        try:
            _call("unshare", _CLONE_NEWNET)
        except OSError as error:
            yield OwnNetwork(None, f"a network namespace is refused: {error}")
            return
        try:
            descriptor = os.open(_THIS_NETWORK, os.O_RDONLY)
            _loopback_up()
        finally:
            _call("setns", before, _CLONE_NEWNET)
    finally:
        os.close(before)
    try:
        yield OwnNetwork(descriptor)
    finally:
        os.close(descriptor)


def connects() -> int:
    """How many connections were begun so far in this thread's network."""
    lines = [line.split() for line in _COUNTERS.read_text().splitlines() if line.startswith("Tcp:")]
    names, values = lines
    return int(values[names.index("ActiveOpens")])


def _call(name: str, *arguments: int) -> None:
    """A system call of Linux that Python 3.11 does not have."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack(_INTERFACE, b"lo", 0)
        _, flags = struct.unpack(_INTERFACE, fcntl.ioctl(control, _SIOCGIFFLAGS, asked))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack(_INTERFACE, b"lo", flags | _IFF_UP))
