"""What has been measured, kept run by run: an interrupted benchmark goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kafka_ordered_ops
from benchmarks.values import Measurement


class Journal:
    """A file of one JSON object a line: what the run is, then its measurements.

    A file of another run (another scale, environment, or code) is put aside: its numbers are not compared
    with this one's.
    """

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        self._path = path
        header = json.dumps(run, sort_keys=True)
        self._found = {one.key: one for one in _kept(path, header)}
        self._header = header
        # A line that was cut off must not run into the next one.
        self._write()

    def __len__(self) -> int:
        return len(self._found)

    def find(self, comparison: str, contender: str, size: int, round_: int) -> Measurement | None:
        """The measurement, if it has been made."""
        return self._found.get((comparison, contender, size, round_))

    def of(self, comparison: str) -> list[Measurement]:
        """All measurements of a comparison."""
        return [one for one in self._found.values() if one.comparison == comparison]

    def add(self, measurement: Measurement) -> None:
        """Keeps one more, or a newer one in the place of an older."""
        self._found[measurement.key] = measurement
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(measurement.to_json())}\n")

    def forget(self, comparisons: Iterable[str]) -> None:
        """These are complete, and their results are elsewhere."""
        gone = set(comparisons)
        self._found = {key: one for key, one in self._found.items() if one.comparison not in gone}
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [self._header, *(json.dumps(one.to_json()) for one in self._found.values())]
        self._path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _kept(path: Path, header: str) -> Iterator[Measurement]:
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ValueError):
        return
    if first != header:
        return
    for line in lines:
        try:
            yield Measurement.from_json(json.loads(line))
        except (ValueError, TypeError):
            return  # Cut off in the middle of a line.


def code_digest() -> str:
    """What the measured code and the benchmarks' own are, in twelve characters."""
    folders = [Path(kafka_ordered_ops.__file__).parent, Path(__file__).parent]
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{file.relative_to(folder)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
