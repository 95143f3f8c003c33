"""Stop an endless command by Ctrl-C or SIGTERM, between two batches."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

#: Time from a signal to an interrupt, for example of a write to a full pipe.
_END_S: Final = 0.5


class Stop:
    """Whether a signal has requested the end."""

    def __init__(self) -> None:
        self.is_requested = self.is_interrupt = False

    def ask(self, number: int, _frame: FrameType | None) -> None:
        """Note the signal; the second one ends at once."""
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested, self.is_interrupt = True, number == signal.SIGINT
        signal.setitimer(signal.ITIMER_REAL, _END_S)


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Provide a `Stop` that signals reach until the block ends."""
    stop = Stop()
    before = {signal.SIGALRM: signal.signal(signal.SIGALRM, _over)}
    for number in (signal.SIGINT, signal.SIGTERM):
        # A shell has its background jobs ignore Ctrl-C; that stays.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, stop.ask)
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _over(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
