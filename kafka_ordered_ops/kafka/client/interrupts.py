"""Handle signals during calls of the client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` if the client has lost it.

    The client's error callbacks discard an exception that a signal handler raised during the same call, and the call then
    fails without an exception. Seen with confluent-kafka 2.16, while brokers are unavailable.
    """
    try:
        yield
    except SystemError as error:
        if "without setting an exception" not in str(error):
            raise
        raise KeyboardInterrupt from error
