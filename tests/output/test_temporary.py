"""Folders for what is read first: nothing of them is left, not even by a process that was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_ordered_ops import SpillError
from kafka_ordered_ops.output.writing.temporary import temporary_folder
from tests.support.stages import control_of

_KILLED = """
import os, signal, sys
from kafka_ordered_ops.output.writing.temporary import temporary_folder

with temporary_folder(sys.argv[1]) as folder:
    open(folder + "/run-000000.arrow", "wb").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_has_left_goes_with_the_next_folder(tmp_path: Path) -> None:
    """Those in use stay, and so does what is only called like one."""
    root = tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(root)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    beside = control_of(root)
    [left] = beside.iterdir()
    (beside / "kafka-ordered-ops-mine").mkdir()
    (beside / "kafka-ordered-ops-file").touch()
    with temporary_folder(str(root)) as first, temporary_folder(str(root)) as second:
        assert not left.exists()
        names = {
            "kafka-ordered-ops-mine",
            "kafka-ordered-ops-file",
            Path(first).parent.name,
            Path(second).parent.name,
        }
        assert {one.name for one in beside.iterdir()} == names
    assert {one.name for one in beside.iterdir()} == {
        "kafka-ordered-ops-mine",
        "kafka-ordered-ops-file",
    }


def test_a_folder_that_cannot_be_made_is_an_error_by_name(tmp_path: Path) -> None:
    """What stands in its way is left as it is."""
    (tmp_path / "file").touch()
    with pytest.raises(SpillError, match="file"), temporary_folder(str(tmp_path / "file/x")):
        pass
