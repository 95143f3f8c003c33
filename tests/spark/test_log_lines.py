"""The lines of a job's log, while the file is full and another one gets its name."""

from __future__ import annotations

import os
from pathlib import Path

from kafka_ordered_ops.spark.applications.log_lines import LogLines


def test_lines_go_on_from_one_file_to_the_next(tmp_path: Path) -> None:
    """Between the two there is no file of the name, and before the first line none at all."""
    path, taken = tmp_path / "job.log", list[str]()
    with LogLines(path, taken.append) as lines:
        lines.hand_on()
        path.write_text("a\nb")
        lines.hand_on()
        assert taken == ["a"]
        with open(path, "a") as file:
            file.write("\nc\n")
        os.replace(path, tmp_path / "job.log.1")
        lines.hand_on()
        path.write_text("d\nno end")
        lines.hand_on()
        assert taken == ["a", "b", "c", "d"]
    assert taken == ["a", "b", "c", "d", "no end"]


def test_a_file_that_is_gone_when_a_job_ends_is_no_error(tmp_path: Path) -> None:
    """The job's own error, or its result, is what counts."""
    path, taken = tmp_path / "job.log", list[str]()
    with LogLines(path, taken.append) as lines:
        path.write_text("a\nb")
        lines.hand_on()
        path.unlink()
    assert taken == ["a", "b"]
