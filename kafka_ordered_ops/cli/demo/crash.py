"""An attempt that is killed halfway: another process runs the window, and SIGKILL ends it while Spark writes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Final

from kafka_ordered_ops.cli.demo.job import FLIGHTS_FOLDER, run_window, start_spark
from kafka_ordered_ops.cli.demo.story import GROUP, Step
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.output.address import control_folder
from kafka_ordered_ops.windows import OrderedWindows

#: A new session, a first read and some files: 12 s on two idle cores, minutes on a machine that is busy otherwise.
FILES_TIMEOUT_S: Final = 600.0

#: The time between the first file and the commit is a few tenths of a second.
_POLL_S: Final = 0.005

_LOG_TAIL_CHARACTERS: Final = 2_000


def kill_halfway(bootstrap: str, step: Step, folder: Path, log: Path) -> int:
    """Run the window in another process and kill that process when its first file exists.

    Returns the number of files that it left.

    Raises:
        SinkError: the process ended by itself, or wrote nothing in time.
    """
    control = Path(control_folder(str(folder / FLIGHTS_FOLDER)))
    stage = control / "stage" / step.window_id
    command = [sys.executable, "-m", __name__, bootstrap, str(folder)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(log, flags, 0o600), "wb") as output:
        process = subprocess.Popen(
            [*command, step.window_id, step.cutoff.isoformat(), step.planned_at.isoformat()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Its Spark ends with it: one process group, one signal.
            start_new_session=True,
        )
        try:
            _await_file(stage, process, log)
        finally:
            # If it has ended by itself, its Spark may still run.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return len(_files(stage))


def _await_file(stage: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + FILES_TIMEOUT_S
    while not _files(stage):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            tail = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL_CHARACTERS:]
            why = "ended by itself" if ended else f"wrote no file within {FILES_TIMEOUT_S:g} s"
            raise SinkError(f"the process that was to be killed halfway {why}. Its output:\n{tail}")
        time.sleep(_POLL_S)


def _files(stage: Path) -> list[Path]:
    return list(stage.rglob("*.parquet"))


def _main(bootstrap: str, folder: str, window_id: str, cutoff: str, planned_at: str) -> None:
    step = Step(window_id, datetime.fromisoformat(cutoff), datetime.fromisoformat(planned_at))
    with OrderedWindows({"bootstrap.servers": bootstrap}, GROUP) as windows:
        run_window(start_spark(), windows, step, Path(folder))


if __name__ == "__main__":
    _main(*sys.argv[1:])
