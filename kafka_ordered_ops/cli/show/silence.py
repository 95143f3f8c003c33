"""Reports why a command waits: a client without a broker is silent until its timeout."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

#: The silence before a report. With the connection attempts of one second below, the report is within three seconds.
_LOOK_S: Final = 1.5

#: A broker that accepts connections may be slow; after this silence it is reported.
_NO_ANSWER_S: Final = 10.0

#: Brokers to try, and the time for all of them together.
_BROKERS_MAX: Final = 3
_CONNECT_S: Final = 1.0

_ADDRESS: Final = re.compile(r"(?:[A-Za-z_]+://)?(?P<host>\[[^]]+\]|[^:]+)(?::(?P<port>\d+))?")
_DEFAULT_PORT: Final = 9092


class Silence:
    """Reports after a while why a command waits; ends at the first sign of progress.

    Args:
        say: receives the lines, from another thread.
        brokers: ``bootstrap.servers``.
        doing: the command's current work.
    """

    def __init__(self, say: Callable[[str], None], brokers: str, doing: str) -> None:
        self._say = say
        self._brokers = [address.strip() for address in brokers.split(",") if address.strip()]
        self._doing = doing
        self._over = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="silence", daemon=True).start()

    def end(self) -> None:
        """End the reports, at the first sign of progress; no report follows."""
        with self._lock:
            self._over.set()

    def _watch(self) -> None:
        if self._over.wait(_LOOK_S):
            return
        why = [_unreachable(address) for address in self._brokers[:_BROKERS_MAX]]
        where = ", ".join(self._brokers)
        if all(why):
            # No broker answered: the line has the reason of the first one.
            line = f"waiting for a broker at {where} ({why[0]}); press Ctrl-C to stop"
        else:
            self._over.wait(_NO_ANSWER_S - _LOOK_S)
            line = f"waiting for an answer from the brokers at {where}"
        with self._lock:
            if not self._over.is_set():
                self._say(f"{self._doing}: {line}")


@contextmanager
def noticed(
    say: Callable[[str], None], brokers: str | None, doing: str
) -> Iterator[Silence | None]:
    """Provide a `Silence` for the block; None, if there are no brokers."""
    silence = None if brokers is None else Silence(say, brokers, doing)
    try:
        yield silence
    finally:
        if silence is not None:
            silence.end()


def _unreachable(address: str) -> str | None:
    """Return why no connection is possible; None if it is."""
    if (match := _ADDRESS.fullmatch(address)) is None:
        return "not an address"
    host, port = match["host"].strip("[]"), int(match["port"] or _DEFAULT_PORT)
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S / _BROKERS_MAX):
            return None
    except OSError as error:
        return error.strerror or str(error)
    except OverflowError:
        return "not a port"
