"""Runs a comparison: round after round, in each of them one contender after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.journal import Journal
from benchmarks.processes import ContenderFailedError, Runner, runners
from benchmarks.values import FIRST_ROUND, Comparison, Contender, Measurement, Place

#: Rounds of what takes minutes each: the full run is to end within two hours.
_LONG_RECORDS: Final = 20_000_000
_LONG_ROUNDS: Final = 3


@dataclass(frozen=True)
class Step:
    """One run that is to be made."""

    contender: Contender
    round: int


#: Told of each step before it is made (None as the measurement) and after it.
Report = Callable[[Comparison, Step, Measurement | None], None]


def rounds_at(records: int) -> int | None:
    """The rounds of a contender that reads so many records; None: as many as the run has."""
    return _LONG_ROUNDS if records >= _LONG_RECORDS else None


def rounds_of(contenders: Sequence[Contender], repeats: int) -> Iterator[list[Step]]:
    """The rounds, each with the contenders that take part in it."""
    for round_ in range(repeats + 1):
        steps = [Step(one, round_) for one in contenders if _takes_part(one, round_, repeats)]
        if steps:
            yield steps


def steps_in_all(comparison: Comparison, repeats: int) -> int:
    """How many runs a comparison takes."""
    return sum(len(steps) for steps in rounds_of(comparison.contenders, repeats))


def measure(
    comparison: Comparison, journal: Journal, place: Place, *, repeats: int, report: Report
) -> None:
    """Makes the measurements of a comparison that the journal lacks.

    A round that was interrupted is recreated, whole: its contenders are to meet the same conditions. Sizes
    come one after the other, each with processes of its own.

    Raises:
        ContenderFailedError: a run failed, or delivered other records than the ones beside it.
    """
    missing = [
        steps
        for contenders in _by_size(comparison)
        for steps in rounds_of(contenders, repeats)
        if not _is_kept(comparison, steps, journal)
    ]
    if not missing:
        return
    comparison.prepare(place)
    for contenders in _by_size(comparison):
        size = contenders[0].size
        rounds = [steps for steps in missing if steps[0].contender.size == size]
        if rounds:
            _measure_size(comparison, contenders, rounds, journal, place, report)


def _measure_size(
    comparison: Comparison,
    contenders: Sequence[Contender],
    rounds: list[list[Step]],
    journal: Journal,
    place: Place,
    report: Report,
) -> None:
    needed = [one for one in contenders if any(one == step.contender for r in rounds for step in r)]
    if rounds[0][0].round != FIRST_ROUND:
        # These processes are new: each of them has its first run before what counts.
        rounds = [[Step(one, FIRST_ROUND) for one in needed if one.warms_up], *rounds]
    with runners(comparison.name, needed, place) as started:
        by_name = dict(zip((one.name for one in needed), started, strict=True))
        for steps in rounds:
            made = [_step(comparison, step, by_name, report) for step in steps]
            _check_records(made)
            for one in made:
                journal.add(one)


def _step(
    comparison: Comparison, step: Step, by_name: dict[str, Runner], report: Report
) -> Measurement:
    report(comparison, step, None)
    made = by_name[step.contender.name].run(step.round)
    report(comparison, step, made)
    return made


def _check_records(made: Sequence[Measurement]) -> None:
    found = {one.contender: one.records for one in made if one.is_complete}
    if len(set(found.values())) > 1:
        raise ContenderFailedError(
            f"the contenders of {made[0].comparison} at {made[0].size:,} did not deliver the same: {found}"
        )


def _is_kept(comparison: Comparison, steps: Sequence[Step], journal: Journal) -> bool:
    return all(
        journal.find(comparison.name, step.contender.name, step.contender.size, step.round)
        for step in steps
    )


def _takes_part(contender: Contender, round_: int, repeats: int) -> bool:
    if round_ == FIRST_ROUND:
        return contender.warms_up
    return round_ <= min(repeats, repeats if contender.rounds is None else contender.rounds)


def _by_size(comparison: Comparison) -> list[list[Contender]]:
    sizes: dict[int, list[Contender]] = {}
    for one in comparison.contenders:
        sizes.setdefault(one.size, []).append(one)
    return list(sizes.values())


def only(comparison: Comparison, names: Sequence[str]) -> Comparison:
    """The comparison with some of its contenders; all of them where none is named."""
    kept: Any = tuple(one for one in comparison.contenders if not names or one.name in names)
    return replace(comparison, contenders=kept)
