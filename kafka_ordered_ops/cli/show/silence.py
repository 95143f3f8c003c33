"""Reports of what a command waits for: a client without a broker is silent until its timeout."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

#: Silence after which somebody wonders. With the looks of one second below, it is said within three.
_LOOK_S: Final = 1.5

#: A broker that takes connections may be slow; one that has said nothing for so long is worth a word.
_NO_ANSWER_S: Final = 10.0

#: Brokers that are looked at, and how long all of them may take together.
_BROKERS_MAX: Final = 3
_CONNECT_S: Final = 1.0

_ADDRESS: Final = re.compile(r"(?:[A-Za-z_]+://)?(?P<host>\[[^]]+\]|[^:]+)(?::(?P<port>\d+))?")
_DEFAULT_PORT: Final = 9092


class Silence:
    """Says after a while why nothing goes on; ended by the first sign of progress.

    Args:
        say: gets the lines, from a thread of its own.
        brokers: ``bootstrap.servers``.
        doing: what goes on.
    """

    def __init__(self, say: Callable[[str], None], brokers: str, doing: str) -> None:
        self._say = say
        self._brokers = [one.strip() for one in brokers.split(",") if one.strip()]
        self._doing = doing
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="silence", daemon=True).start()

    def end(self) -> None:
        """Something goes on."""
        self._over.set()

    def _watch(self) -> None:
        if self._over.wait(_LOOK_S):
            return
        why = [_unreachable(one) for one in self._brokers[:_BROKERS_MAX]]
        where = ", ".join(self._brokers)
        if all(why) and not self._over.is_set():
            # None of those looked at: named with the reason of the first one.
            self._say(
                f"{self._doing}: waiting for a broker at {where} ({why[0]}); press Ctrl-C to stop"
            )
        elif not self._over.wait(_NO_ANSWER_S - _LOOK_S):
            self._say(f"{self._doing}: waiting for an answer from the brokers at {where}")


@contextmanager
def noticed(
    say: Callable[[str], None], brokers: str | None, doing: str
) -> Iterator[Silence | None]:
    """A `Silence` for the block; None, where no brokers are asked."""
    silence = None if brokers is None else Silence(say, brokers, doing)
    try:
        yield silence
    finally:
        if silence is not None:
            silence.end()


def _unreachable(address: str) -> str | None:
    """Return why no connection is taken there; None: one is."""
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
