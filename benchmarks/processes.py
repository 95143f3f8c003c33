"""A process of its own for each contender."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmarks.usage import Meter
from benchmarks.values import FIRST_ROUND, Contender, Measurement, Outcome, Place, Work

#: Starting Spark takes some 5 s on two idle cores; a busy machine is slower by far.
START_TIMEOUT_S: Final = 300.0
#: The longest run of all, on the slowest machine that would still be worth measuring.
RUN_TIMEOUT_S: Final = 1_200.0
_END_TIMEOUT_S: Final = 20.0

#: Of seconds: what can be told apart.
_DIGITS: Final = 3

#: Sent in the place of a round's number.
_WAKE: Final = "wake"

_LOG_TAIL_LINES: Final = 30

#: Nothing of this process's own threads and connections goes along.
_SPAWN: Final = multiprocessing.get_context("spawn")


class ContenderFailedError(Exception):
    """A contender's process failed, or took too long; with what it said."""


class Runner:
    """One contender at work."""

    def __init__(self, comparison: str, contender: Contender, place: Place) -> None:
        self._comparison = comparison
        self._contender = contender
        self._log = place.folder / "contender.log"
        place.folder.mkdir(parents=True, exist_ok=True)
        self._line, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_serve, args=(theirs, contender.job, place, self._log), daemon=False
        )
        self._process.start()
        theirs.close()
        try:
            self._answer(START_TIMEOUT_S, "set itself up")
        except BaseException:
            self.end()
            raise

    def run(self, round_: int) -> Measurement:
        """One run, measured.

        Raises:
            ContenderFailedError: it did not come to its end.
        """
        if round_ != FIRST_ROUND:
            self._line.send(_WAKE)
            self._answer(START_TIMEOUT_S, "wake up")
        meter = Meter(self._process.pid or 0)
        with meter.running():
            self._line.send(round_)
            outcome = self._answer(RUN_TIMEOUT_S, f"do round {round_}")
        if not isinstance(outcome, Outcome):
            raise TypeError(f"{self._name} answered {outcome!r}")
        peak = outcome.memory_bytes
        return Measurement(
            comparison=self._comparison,
            contender=self._contender.name,
            size=self._contender.size,
            round=round_,
            seconds=round(outcome.seconds, _DIGITS),
            records=outcome.records,
            beyond_s={name: round(one, _DIGITS) for name, one in outcome.beyond_s.items()},
            cpu_s=None if meter.cpu_s is None else round(meter.cpu_s, _DIGITS),
            memory_bytes=meter.memory_bytes if peak is None else peak,
            order_breaks=outcome.order_breaks,
            late_records=outcome.late_records,
            is_complete=outcome.is_complete,
            figures={name: round(one, _DIGITS) for name, one in outcome.figures.items()},
        )

    def end(self) -> None:
        """Ends the process; Spark's JVM and workers end with it."""
        self._line.close()  # The other side reads the end of it, and returns.
        self._process.join(_END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def _name(self) -> str:
        return f"{self._comparison}/{self._contender.name} at {self._contender.size:,}"

    def _answer(self, timeout_s: float, what: str) -> Any:
        try:
            if not self._line.poll(timeout_s):
                raise ContenderFailedError(
                    f"{self._name} did not {what} within {timeout_s:g} s{self._tail()}"
                )
            answer = self._line.recv()
        except EOFError:
            self._process.join(_END_TIMEOUT_S)
            raise ContenderFailedError(
                f"{self._name} ended with status {self._process.exitcode} and did not {what}{self._tail()}"
            ) from None
        if isinstance(answer, _Failure):
            raise ContenderFailedError(f"{self._name} could not {what}:\n{answer.text}")
        return answer

    def _tail(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            return ". The end of its log:\n" + "\n".join(lines[-_LOG_TAIL_LINES:])
        return ""


@contextlib.contextmanager
def runners(comparison: str, contenders: list[Contender], place: Place) -> Iterator[list[Runner]]:
    """A process for each contender, one after the other; all of them end with the block."""
    with contextlib.ExitStack() as stack:
        started = []
        for number, contender in enumerate(contenders):
            own = Place(place.bootstrap, place.folder / f"{comparison}-{number}")
            runner = Runner(comparison, contender, own)
            stack.callback(runner.end)
            started.append(runner)
        yield started


class _Failure:
    """What went wrong there, as text: not every error can travel."""

    def __init__(self, text: str) -> None:
        self.text = text


def _serve(line: Connection[Any, Any], job: Any, place: Place, log: Path) -> None:
    """The other side: runs on demand until nobody asks any more."""
    # The clients and Spark's JVM write there too, and would tear the progress on the terminal apart.
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        work: Work = job.start(place)
        line.send(None)
        while True:
            asked = line.recv()
            if asked == _WAKE:
                work.wake()
                line.send(None)
            else:
                line.send(work.run(asked))
    except (EOFError, KeyboardInterrupt):
        return
    except Exception:  # noqa: BLE001 - whatever it is, the other side reports it
        with contextlib.suppress(OSError):
            line.send(_Failure(traceback.format_exc()))
