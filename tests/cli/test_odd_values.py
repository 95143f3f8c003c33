"""Odd values for every call and command, in a process that they might end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeTopic

_TIMEOUT_S = 800
#: A message may quote names, and the beginning of a value.
_TEXT_MAX = 5_000


@pytest.mark.long
@pytest.mark.timeout(_TIMEOUT_S + 60)
def test_odd_values_end_with_an_error_of_this_package(
    bootstrap: str, topic: MakeTopic, tmp_path: Path
) -> None:
    """No signal, no raw error of a client or of Python, and no value of a hundred thousand characters in a message."""
    # A pipe would be held open by what the script leaves running when it is killed.
    told = tmp_path / "told"
    with told.open("w") as file:
        script = subprocess.Popen(
            [sys.executable, "-m", "tests.support.odd_values_script", bootstrap, topic()],
            stdout=file,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        script.wait(_TIMEOUT_S)
    finally:
        if script.poll() is None:
            os.killpg(script.pid, signal.SIGKILL)
            script.wait()
    lines: list[dict[str, Any]] = [json.loads(line) for line in told.read_text().splitlines()]
    assert script.returncode == 0, f"ended with {script.returncode} in {lines[-1]}"
    outcomes = list(zip(lines[::2], lines[1::2], strict=True))
    assert len(outcomes) > 400
    bad = [
        (call, outcome.get("error"), outcome["text"][-1_000:])
        for call, outcome in outcomes
        if outcome.get("raw") or len(outcome.get("text", "")) > _TEXT_MAX
    ]
    assert bad == []
