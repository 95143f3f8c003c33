"""A border: where bytes that other programs wrote are read. What holds at each, for any input, and how that is tried.

A border gives a value or raises a named error, within bounds of time and memory. Everything else is a fault.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import kafka_ordered_ops
from kafka_ordered_ops import KafkaOrderedOpsError
from tests.fuzz.mutations import Mutator

#: Of the process, so that a loaded machine fails no input.
CPU_S_MAX: Final = 0.1
MEMORY_BYTES_MAX: Final = 64 * 1024**2
#: An error quotes a part of its input, not all of it.
MESSAGE_LENGTH_MAX: Final = 5_000
#: Memory is measured after so many inputs.
_BATCH: Final = 100
#: CPU seconds after which an input is taken for one without an end.
_HANGS_S: Final = 20
_SHORTENED_S: Final = 10
_HOME: Final = str(Path(kafka_ordered_ops.__file__).parent)


@dataclass(frozen=True)
class Border:
    """Where inputs are read.

    Args:
        valid: inputs that are read without an error; all others are made from them.
        read: reads an input as the package does, and asserts what holds for the value.
        errors: what it may raise.
        cost: how many times fewer inputs it gets than others, because each takes so much longer.
        cpu_s: the time of one input, where a library alone takes most of it.
        close: ends what it needs.
    """

    valid: Sequence[bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = (KafkaOrderedOpsError,)
    cost: int = 1
    cpu_s: float = CPU_S_MAX
    close: Callable[[], object] = lambda: None


class Text(bytes):
    """An input of a border that takes text: bytes that are not UTF-8 become halves of surrogate pairs."""

    def decode(self, *_: Any) -> str:
        """Return the text."""
        return super().decode("utf-8", "surrogateescape")


class Fault(NamedTuple):
    """What was wrong with an input."""

    #: Equal for the same fault of different inputs.
    kind: str
    details: str


class _HangsError(BaseException):
    """The input takes too long. No error that a parser may catch."""


def fault_of(border: Border, data: bytes) -> Fault | None:
    """Return what is wrong with one input, its memory aside; None if nothing is."""
    spent_s = 0.0
    for _ in range(3):
        began_s = time.process_time()
        fault = _read(border, data)
        spent_s = time.process_time() - began_s
        if fault is not None or spent_s <= border.cpu_s:
            return fault
    return Fault("time", f"{spent_s:.3f} s of CPU time")


def attack(
    border: Border, kept: Sequence[bytes], count: int, seed: object
) -> tuple[bytes, Fault] | None:
    """Return the first input with a fault, made as short as possible; None if there was none in so many."""
    mutator = Mutator([*border.valid, *kept], seed)
    for start in range(0, count, _BATCH):
        inputs = mutator.inputs(min(_BATCH, count - start))
        with _measured() as grown:
            for data in inputs:
                if (fault := fault_of(border, data)) is not None:
                    return _shortened(border, data, fault, fault_of), fault
        if grown() > MEMORY_BYTES_MAX:
            for data in inputs:
                if (fault := memory_fault_of(border, data)) is not None:
                    return _shortened(border, data, fault, memory_fault_of), fault
    return None


def memory_fault_of(border: Border, data: bytes) -> Fault | None:
    """Return a fault if an input takes too much memory, Arrow's and that of Rust included."""
    with _measured() as grown:
        _read(border, data)
    if grown() <= MEMORY_BYTES_MAX:
        return None
    return Fault("memory", f"{grown():,} bytes")


def _read(border: Border, data: bytes) -> Fault | None:
    signal.setitimer(signal.ITIMER_VIRTUAL, _HANGS_S)
    try:
        border.read(data)
    except border.errors as error:
        length = len(str(error))
        return None if length <= MESSAGE_LENGTH_MAX else Fault("message", f"{length:,} characters")
    except Exception as error:  # noqa: BLE001 - any other error is what is looked for
        return _foreign(error)
    except BaseException as error:
        # Rust's panics are no `Exception`, and their class has no module to import.
        if isinstance(error, _HangsError) or type(error).__name__ == "PanicException":
            return _foreign(error)
        raise
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return None


def _foreign(error: BaseException) -> Fault:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(_HOME)] or list(frames)
    place = f"{own[-1].filename.removeprefix(_HOME)}:{own[-1].name}"
    return Fault(f"{type(error).__name__} in {place}", "".join(traceback.format_exception(error)))


def _shortened(
    border: Border,
    data: bytes,
    fault: Fault,
    check: Callable[[Border, bytes], Fault | None],
    tries: int = 1_000,
) -> bytes:
    """Return an input with the same fault from which nothing can be removed, or what was found in some seconds."""
    size, ends_s = len(data), time.process_time() + _SHORTENED_S
    while size := size // 2:
        at = 0
        while at < len(data) and tries and time.process_time() < ends_s:
            tries -= 1
            shorter = data[:at] + data[at + size :]
            found = check(border, shorter)
            if found is not None and found.kind == fault.kind:
                data = shorter
            else:
                at += size
    return data


# --- this process --------------------------------------------------------------------------------


@contextmanager
def guarded() -> Iterator[None]:
    """End inputs that hang, and leave the garbage of others out of the time of each."""

    def hangs(*_: object) -> None:
        raise _HangsError(f"more than {_HANGS_S} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, hangs)
    # What is there already is not looked through again and again.
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def _measured() -> Iterator[Callable[[], int]]:
    """Measure by how much the memory of this process was larger in the block, at most, than before it."""
    gc.collect()
    # The peak becomes the current size (proc(5)).
    Path("/proc/self/clear_refs").write_text("5")
    before, peak = _resident(), 0
    yield lambda: peak - before
    peak = _status("VmHWM:")


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _status(name: str) -> int:
    [line] = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)
    ]
    return 1024 * int(line.split()[1])
