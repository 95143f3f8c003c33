"""Functions for worker processes: they have to be found by name there."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from kafka_ordered_ops.processing import NewRecord, Record


class StrangeError(Exception):
    """Cannot be unpickled: it asks for more than it tells."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def answer(record: Record) -> Any:
    """Does what the record's value says, and tells its process."""
    match record.value:
        case b"exit":
            os._exit(3)
        case b"kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"hang":
            time.sleep(600)
        case b"raise":
            raise StrangeError("strange", "very")
        case b"closure":
            return lambda: None
    return os.getpid()


class Unreadable:
    """Raises where it is unpickled: in the process that started the worker."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return _raise, (self.error,)


def _raise(error: BaseException) -> Any:
    raise error


def unreadable(record: Record) -> Any:
    """Returns what ends the program of whoever looks at it."""
    match record.value:
        case b"exit":
            return Unreadable(SystemExit(3))
        case b"away":
            return Unreadable(OSError("no such file"))
    return os.getpid()


def emptied(records: list[Record]) -> None:
    """Works through its list as through a stack."""
    while records:
        records.pop()


def lengths(records: list[Record]) -> list[int]:
    """How many there were, for each."""
    return [len(records)] * len(records)


def burn(record: Record) -> int:
    """Computes for some milliseconds."""
    return sum(number * number % 7 for number in range(60_000))


def copied(record: Record) -> NewRecord:
    """A record of `out` that names the one of `orders`."""
    value = f"{record.partition}:{record.offset}".encode()
    return NewRecord(record.topic.replace("orders", "out"), record.key, value)


def seen(record: Record) -> Any:
    """Return the value as the function got it."""
    return record.value
