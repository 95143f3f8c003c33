"""The part of the page that is about ordered reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.ordered_topics import Arrangement
from benchmarks.plots import draw_bars
from benchmarks.statistics import Results, ratio
from benchmarks.tables import memory_text, picture, spread_text, table
from benchmarks.tail import CONSUME, JVM, JVM_TUNED, PEERS, comparison_of

_Section = Callable[[Path, Mapping[str, Sequence[Results]]], Iterator[str]]

_THEIRS: Final = (CONSUME, *PEERS, JVM, JVM_TUNED)


def tail_table(results: Sequence[Results]) -> str:
    """What readers took for the same log, and where they broke its order."""
    found = {one.contender: one for one in results}
    rows = [_row(one, found.get(CONSUME)) for one in results if one.rounds]
    header = [
        "",
        "seconds",
        f"times {CONSUME}",
        "k records/s",
        "CPU seconds",
        "peak MiB",
        "order breaks",
        "cut off",
        "rounds",
    ]
    return table(header, rows)


def _row(one: Results, base: Results | None) -> list[str]:
    rate = one.spread(lambda run: run.records / run.seconds / 1000)
    cut_off = sum(not run.is_complete for run in one.rounds)
    # A read that was cut off would have taken longer: how much is not known.
    times = None if base is None or cut_off else ratio(one, base)
    return [
        one.contender,
        spread_text(one.seconds),
        spread_text(times),
        "-" if rate is None else f"{rate.median:,.0f}",
        spread_text(one.cpu_s, digits=1),
        memory_text(one.memory_bytes),
        spread_text(one.spread(lambda run: run.order_breaks), digits=0),
        str(cut_off) if cut_off else "-",
        str(len(one.rounds)),
    ]


def _section(
    arrangement: Arrangement, folder: Path, results: Mapping[str, Sequence[Results]]
) -> Iterator[str]:
    name = comparison_of(arrangement)
    mine = results[name]
    yield f"## An ordered read, of a log {_IN_WORDS[arrangement]}: {mine[0].size:,} records"
    draw_bars(mine, folder / f"{name}.svg", f"A log {_IN_WORDS[arrangement]}", theirs=_THEIRS)
    yield picture(
        name, f"seconds and CPU seconds of each reader, of a log {_IN_WORDS[arrangement]}"
    )
    yield tail_table(mine)
    yield from _fetch_only(mine)


def _fetch_only(results: Sequence[Results]) -> Iterator[str]:
    rates = [
        f"{one.contender} {one.records / fetch.median / 1000:,.0f}"
        for one in results
        if one.contender in (JVM, JVM_TUNED) and (fetch := one.beyond_s("fetch"))
    ]
    if rates:
        yield f"Without the time to join its group, in thousands of records a second: {'; '.join(rates)}."


_IN_WORDS: Final = {
    Arrangement.IN_ORDER: "in order",
    Arrangement.SHUFFLED: "out of order by minutes",
    Arrangement.REVERSED: "in reverse order",
}

#: By comparison.
TAIL_SECTIONS: Final[Mapping[str, _Section]] = {
    comparison_of(arrangement): partial(_section, arrangement) for arrangement in Arrangement
}
