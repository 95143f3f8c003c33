"""The main loop of a worker process: it runs the user's function for the records from a pipe."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

from kafka_ordered_ops.core.errors import ProcessingError
from kafka_ordered_ops.processing.workers.calls import call_of

#: Sent once the function is loaded.
READY = b"ready"


def serve(pipe: Connection, function: bytes, in_batches: bool, produces: bool) -> None:
    """Process records until the pipe is closed, also by the death of the other process."""
    # Ctrl-C reaches every process of a terminal; the parent process decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="ends-with-parent", daemon=True).start()
    called, decode = pickle.loads(function)
    call = call_of(called, in_batches=in_batches, produces=produces, decode=decode)
    pipe.send_bytes(READY)
    while True:
        try:
            records = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        answers = [(result.value, result.error) for result in call(records)]
        try:
            pipe.send_bytes(_pickled(answers))
        except BrokenPipeError:
            return


def _end_with_parent() -> None:
    """End with the parent process, even in the middle of a call: another process starts its records again."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _pickled(answers: list[tuple[Any, BaseException | None]]) -> bytes:
    if all(error is None for _, error in answers):
        try:
            return pickle.dumps(answers)
        except Exception as wrong:  # noqa: BLE001 - the user's values; their records fail
            error = ProcessingError(
                f"what the function returned cannot be pickled: {type(wrong).__name__}: {wrong}. Return plain values"
            )
            return pickle.dumps([(None, error)] * len(answers))
    return pickle.dumps([(value, error and _portable(error)) for value, error in answers])


def _portable(error: BaseException) -> BaseException:
    """Return the error with its traceback as a note, or an error with the same text if it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        restored = pickle.loads(pickle.dumps(error))
        if isinstance(restored, BaseException):
            error.add_note(f"in a worker process:\n{text}")
            return error
    except Exception:  # noqa: BLE001 - the user's class; only its text can be sent
        pass
    return ProcessingError(
        f"the function raised {type(error).__name__} in a worker process:\n{text}"
    )
