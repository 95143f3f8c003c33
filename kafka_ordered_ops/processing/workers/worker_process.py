"""What a worker process runs: the user's function, for the records that come through a pipe."""

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
    """Process what comes until the pipe is closed, also by the other process's death."""
    # Ctrl-C goes to every process of a terminal; the first one decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="ends-with-parent", daemon=True).start()
    call = call_of(pickle.loads(function), in_batches=in_batches, produces=produces)
    pipe.send_bytes(READY)
    while True:
        try:
            records = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        answers = [(one.value, one.error) for one in call(records)]
        try:
            pipe.send_bytes(_pickled(answers))
        except BrokenPipeError:
            return


def _end_with_parent() -> None:
    """End with the other process, also in the middle of a call: its records are begun again by whoever processes them next."""
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
    """Return the error, or one that says the same if it cannot be pickled; with its traceback as a note."""
    text = "".join(traceback.format_exception(error))
    try:
        found = pickle.loads(pickle.dumps(error))
        if isinstance(found, BaseException):
            error.add_note(f"in a worker process:\n{text}")
            return error
    except Exception:  # noqa: BLE001 - the user's class; the text is what is left of it
        pass
    return ProcessingError(
        f"the function raised {type(error).__name__} in a worker process:\n{text}"
    )
