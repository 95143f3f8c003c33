"""Made-up measurements for the tests of the benchmarks."""

from __future__ import annotations

from benchmarks.results import RunFacts
from benchmarks.values import Measurement

FACTS = RunFacts("smoke", 2, "0" * 12, {"cores": "2"})


def measured(contender: str, round_: int, seconds: float, *, size: int = 100) -> Measurement:
    """One run of the comparison ``window``."""
    return Measurement(
        comparison="window",
        contender=contender,
        size=size,
        round=round_,
        seconds=seconds,
        records=size,
        beyond_s={"plan": 0.1, "commit": 0.2, "publish": 0.3},
        cpu_s=2 * seconds,
        memory_bytes=1024**2,
    )
