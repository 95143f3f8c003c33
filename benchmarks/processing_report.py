"""The part of the page that is about per-record processing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.plots import draw_lines
from benchmarks.processing import (
    JAVA,
    PROCESSING,
    PROCESSING_CPU,
    PROCESSING_RATE,
    contender_name,
)
from benchmarks.statistics import Results, Spread, ratio
from benchmarks.tables import memory_text, picture, spread_text, table
from benchmarks.values import Measurement
from benchmarks.work_processor import Way
from kafka_ordered_ops.core.processing.scheduling import Ordering

_Results = Mapping[str, Sequence[Results]]

_WHO: Final = (*(way.value for way in Way), JAVA)


def times_ideal(one: Results) -> Spread | None:
    """How many times as long a contender took as its function's calls alone would take."""
    return one.spread(_overhead)


def times_ideal_of(one: Results, other: Results) -> Spread | None:
    """The same, by another contender's: what is left of their difference once their sleeps are taken out of it."""
    theirs = {run.round: overhead for run in other.rounds if (overhead := _overhead(run))}
    return Spread.of(
        [
            mine / theirs[run.round]
            for run in one.rounds
            if (mine := _overhead(run)) and run.round in theirs
        ]
    )


def side_by_side(results: Sequence[Results]) -> Iterator[tuple[str, dict[str, Results]]]:
    """Yield each order and number of keys, as text, with its contenders by who works."""
    found = {(one.contender, one.size): one for one in results if one.rounds}
    for size in dict.fromkeys(one.size for one in results):
        for ordering in Ordering:
            row = {
                who: found[contender_name(ordering, who), size]
                for who in _WHO
                if (contender_name(ordering, who), size) in found
            }
            if row:
                keys = f", {size:,} {'key' if size == 1 else 'keys'}"
                yield f"{ordering}{keys if ordering is Ordering.KEY else ''}", row


def _overhead(run: Measurement) -> float | None:
    return run.seconds / run.beyond_s["ideal"] if run.beyond_s.get("ideal") else None


def _processing(folder: Path, results: _Results) -> Iterator[str]:
    mine = results[PROCESSING]
    yield "## Records that take 0 to 5 ms each, one by one"
    names = {contender_name(Ordering.KEY, who) for who in _WHO}
    if by_key := [one for one in mine if one.contender in names]:
        draw_lines(by_key, folder / f"{PROCESSING}.svg", "Records in order by key", across="keys")
        yield picture(PROCESSING, "seconds over the number of keys, beside Parallel Consumer")
    yield "Seconds, and how many times as long Parallel Consumer's:"
    yield _side_by_side_table(mine, lambda one: one.seconds, ratio, "")
    yield (
        "Times the ideal: how long the function's calls took, as measured in the same run, by how many may run at once. "
        "An asyncio timer rings up to 1 ms late, which is in the seconds above and not in these."
    )
    yield _side_by_side_table(mine, times_ideal, times_ideal_of, "times ideal, ")


def _side_by_side_table(
    results: Sequence[Results],
    of: Callable[[Results], Spread | None],
    against: Callable[[Results, Results], Spread | None],
    what: str,
) -> str:
    rows = []
    for name, row in side_by_side(results):
        java = row.get(JAVA)
        cells = [spread_text(of(row[who])) if who in row else "-" for who in _WHO]
        for way in Way:
            mine = row.get(way)
            cells.append(spread_text(None if not mine or not java else against(mine, java)))
        records = f"{next(iter(row.values())).records:,}"
        rows.append([name, records, *cells])
    header = ["order", "records", *(f"{what}{who}" for who in _WHO)]
    return table([*header, *(f"{way}, times {JAVA}" for way in Way)], rows)


def _rate(_folder: Path, results: _Results) -> Iterator[str]:
    yield "## Records through a function that does nothing, in order by key"
    rows = [
        [
            one.contender,
            f"{one.records:,}",
            spread_text(one.seconds),
            spread_text(k_records_a_second(one), digits=0),
            spread_text(one.cpu_s, digits=1),
            memory_text(one.memory_bytes),
        ]
        for one in results[PROCESSING_RATE]
        if one.rounds
    ]
    yield table(["", "records", "seconds", "k records/s", "CPU seconds", "peak MiB"], rows)


def _cpu(_folder: Path, results: _Results) -> Iterator[str]:
    yield "## Records through a function that computes"
    rows = [
        [
            one.contender,
            f"{one.records:,}",
            spread_text(one.seconds),
            spread_text(one.cpu_s, digits=1),
        ]
        for one in results[PROCESSING_CPU]
        if one.rounds
    ]
    yield table(["", "records", "seconds", "CPU seconds"], rows)


def k_records_a_second(one: Results) -> Spread | None:
    """Thousands of records a second."""
    return one.spread(lambda run: run.records / run.seconds / 1_000)


#: By comparison.
PROCESSING_SECTIONS: Final[Mapping[str, Callable[[Path, _Results], Iterator[str]]]] = {
    PROCESSING: _processing,
    PROCESSING_RATE: _rate,
    PROCESSING_CPU: _cpu,
}
