"""The results as a file beside the tables: they can be recreated from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from benchmarks.values import Measurement

RESULTS_NAME: Final = "results.json"
_VERSION: Final = 1


@dataclass(frozen=True)
class RunFacts:
    """What a run was: numbers of one run are comparable, and those of two may not be."""

    scale: str
    repeats: int
    #: Digest of the measured code.
    code: str
    environment: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Kept:
    """The results of one comparison."""

    facts: RunFacts
    date: date
    measurements: tuple[Measurement, ...]


def keep_results(
    folder: Path, facts: RunFacts, day: date, comparison: str, measurements: Sequence[Measurement]
) -> None:
    """Puts a comparison's measurements in the place of those that the file has; the others stay."""
    path = folder / RESULTS_NAME
    content = _content(path)
    content["comparisons"][comparison] = {
        "run": facts.to_json(),
        "date": day.isoformat(),
        "measurements": [one.to_json() for one in measurements],
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")


def read_results(folder: Path) -> dict[str, Kept]:
    """The results by comparison."""
    return {
        name: Kept(
            RunFacts(**one["run"]),
            date.fromisoformat(one["date"]),
            tuple(map(Measurement.from_json, one["measurements"])),
        )
        for name, one in _content(folder / RESULTS_NAME)["comparisons"].items()
    }


def _content(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"version": _VERSION, "comparisons": {}}
    if content["version"] != _VERSION:
        raise ValueError(f"{path} has version {content['version']}, not {_VERSION}: measure anew")
    return content
