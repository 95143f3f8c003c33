"""An attempt that is killed halfway: SIGKILL ends another process that writes the window, before its commit.

It uses no Spark: a second one would take longer to start than all of the story's days.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Final

from kafka_ordered_ops.cli.demo.job import FLIGHTS_FOLDER, question
from kafka_ordered_ops.cli.demo.story import GROUP, Step
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.delivery.open_window import OpenWindow
from kafka_ordered_ops.delivery.ordered_windows import OrderedWindows
from kafka_ordered_ops.output.address import control_folder

#: It takes some seconds on two idle cores.
FILES_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.02

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
        )
        try:
            _await_file(stage, process, log)
        finally:
            process.kill()
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


def _write_and_wait(window: OpenWindow) -> None:
    window.write(window.to_arrow())
    signal.pause()


def _main(bootstrap: str, folder: str, window_id: str, cutoff: str, planned_at: str) -> None:
    step = Step(window_id, datetime.fromisoformat(cutoff), datetime.fromisoformat(planned_at))
    with OrderedWindows(bootstrap, GROUP) as windows:
        windows.run(
            question(step), Path(folder) / FLIGHTS_FOLDER, job=_write_and_wait, window_id=window_id
        )


if __name__ == "__main__":
    _main(*sys.argv[1:])
