"""A process that works on for a long time holds no more than it did after its first part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import linear_regression
from typing import Final

import pytest

from tests.conftest import MakeTopic
from tests.support.soak import USES

pytestmark = [pytest.mark.long, pytest.mark.timeout(14_400)]

#: Each with a hundred records. `make nightly` has 2,000.
ROUNDS: Final = int(os.environ.get("SOAK_ROUNDS", "200"))
#: What a process may grow in the second half of its run, by the slope of its samples: an allocator is never quite flat.
_MEMORY_KB_MAX: Final = 8_192
#: What it keeps of each window of its group: the record in the ledger, up to 32 MiB in all.
_WINDOW_KB_MAX: Final = {"windows": 12, "processing": 12}


@pytest.mark.parametrize("use", USES)
def test_a_long_run_is_flat(bootstrap: str, topic: MakeTopic, tmp_path: Path, use: str) -> None:
    """Memory, threads and descriptors do not grow in the second half of its rounds."""
    command = [sys.executable, "-m", "tests.support.soak", use, bootstrap, topic()]
    ran = subprocess.run(
        [*command, str(ROUNDS), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    samples = [json.loads(line) for line in ran.stdout.splitlines()]
    print(*samples[:: max(len(samples) // 8, 1)], sep="\n")
    half = samples[len(samples) // 2 :]
    rounds = [sample["round"] for sample in half]
    grown = {
        what: linear_regression(rounds, [sample[what] for sample in half]).slope
        * (rounds[-1] - rounds[0])
        for what in ("memory_kb", "threads", "descriptors")
    }
    print(grown)
    assert grown["threads"] < 1
    assert grown["descriptors"] < 1
    assert grown["memory_kb"] < _MEMORY_KB_MAX + _WINDOW_KB_MAX.get(use, 0) * ROUNDS // 2
