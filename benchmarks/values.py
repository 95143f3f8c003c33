"""What is measured, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

#: The round that comes before those that count.
FIRST_ROUND: Final = 0


@dataclass(frozen=True)
class Place:
    """Where contenders work: the broker, and a folder for what they write."""

    bootstrap: str
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """One run, as the contender's process saw it."""

    seconds: float
    #: What the run delivered, for a check that all contenders do the same work.
    records: int
    #: Named parts of the way around the job, in seconds; they are not in `seconds`.
    beyond_s: Mapping[str, float] = field(default_factory=dict)
    #: Other named numbers, each with its unit in the name.
    figures: Mapping[str, float] = field(default_factory=dict)
    #: Set where the peak of a process of its own was measured, instead of the whole tree's.
    memory_bytes: int | None = None
    #: Records that came after a greater one; None where nobody counted.
    order_breaks: int | None = None
    #: Records that the reader marked as late, which are in no order; None where it marks none.
    late_records: int | None = None
    #: False: cut off after too long, so that `seconds` and `records` are of what was done until then.
    is_complete: bool = True


def _is_awake() -> None:
    """What a contender without workers of its own needs."""


@dataclass(frozen=True)
class Work:
    """What a contender does when it is asked to."""

    #: Does the work once; told the round.
    run: Callable[[int], Outcome]
    #: Done before each run but the first, and not measured: starts again what has ended since the last one.
    wake: Callable[[], None] = _is_awake


class Job(Protocol):
    """A contender's work; it travels to the process that does it."""

    def start(self, place: Place) -> Work:
        """Sets up what every run needs (a Spark session, connections): not measured."""


@dataclass(frozen=True)
class Contender:
    """Somebody who does the work of a comparison at one size."""

    name: str
    #: Records, partitions or old windows: what the comparison varies.
    size: int
    job: Job
    #: Rounds that count; None: as many as the run has.
    rounds: int | None = None
    #: Whether a round 0 comes before the others.
    warms_up: bool = True


@dataclass(frozen=True)
class Comparison:
    """Contenders whose rounds are interleaved."""

    name: str
    contenders: tuple[Contender, ...]
    #: Topics that it needs, made beforehand.
    prepare: Callable[[Place], None]


@dataclass(frozen=True)
class Measurement:
    """One run, with what its process and all that are below it used."""

    comparison: str
    contender: str
    size: int
    #: 0: the first run in its process, which is in no median.
    round: int
    seconds: float
    records: int
    beyond_s: Mapping[str, float]
    #: None where the system does not tell.
    cpu_s: float | None
    memory_bytes: int | None
    #: As in `Outcome`.
    order_breaks: int | None = None
    late_records: int | None = None
    is_complete: bool = True
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Which measurement it is."""
        return self.comparison, self.contender, self.size, self.round

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Measurement:
        """The inverse of `to_json`."""
        return cls(**content)
