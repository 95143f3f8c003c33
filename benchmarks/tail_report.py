"""The part of the page that is about ordered reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.ordered_reading import Way
from benchmarks.ordered_topics import Arrangement
from benchmarks.plots import draw_bars
from benchmarks.statistics import Results, ratio
from benchmarks.tables import (
    growth_table,
    memory_growth_table,
    memory_text,
    picture,
    spread_text,
    table,
)
from benchmarks.tail import (
    CONSUME,
    JVM,
    JVM_TUNED,
    PEERS,
    TAIL_GROWTH,
    WAYS,
    comparison_of,
    growth_names,
)
from benchmarks.values import Measurement

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
        "late",
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
        _count_text(one, lambda run: run.order_breaks),
        _count_text(one, lambda run: run.late_records),
        str(cut_off) if cut_off else "-",
        str(len(one.rounds)),
    ]


def _count_text(one: Results, of: Callable[[Measurement], int | None]) -> str:
    counts = one.spread(of)
    if counts is None or counts.least < counts.greatest:
        return spread_text(counts, digits=0)
    return f"{counts.median:,.0f}"


def slack_section(results: Mapping[str, Sequence[Results]]) -> Iterator[str]:
    """What it costs to wait for records out of order: of the runs of the other sections."""
    rows = [
        [f"{_IN_WORDS[arrangement]}, {_SLACK[way]}", *_slack_cells(found[way], found[CONSUME])]
        for arrangement in Arrangement
        if (found := {one.contender: one for one in results.get(comparison_of(arrangement), ())})
        for way in WAYS[arrangement]
        if way in _SLACK and {way, CONSUME} <= found.keys()
    ]
    if rows:
        yield "## The cost of out-of-orderness"
        yield (
            "The log, and the `max_out_of_orderness` that it is read with. The runs are those of the sections above."
        )
        header = ["", "seconds", f"times {CONSUME}", "CPU seconds", "peak MiB", "late"]
        yield table(header, rows)


def _slack_cells(one: Results, base: Results) -> list[str]:
    return [
        spread_text(one.seconds),
        spread_text(ratio(one, base)),
        spread_text(one.cpu_s, digits=1),
        memory_text(one.memory_bytes),
        _count_text(one, lambda run: run.late_records),
    ]


def _growth(_folder: Path, results: Mapping[str, Sequence[Results]]) -> Iterator[str]:
    mine = list(_growth_results(results))
    yield "## Growth of an ordered read"
    yield "Seconds:"
    yield growth_table(mine)
    yield "Peak memory, MiB:"
    yield memory_growth_table(mine)


def _growth_results(results: Mapping[str, Sequence[Results]]) -> Iterator[Results]:
    for arrangement, name, in_growth in growth_names():
        yield from (one for one in results[TAIL_GROWTH] if one.contender == in_growth)
        # The size of the log's own comparison is measured there.
        for one in results.get(comparison_of(arrangement), ()):
            if one.contender == name:
                yield replace(one, contender=in_growth)


def _section(
    arrangement: Arrangement, folder: Path, results: Mapping[str, Sequence[Results]]
) -> Iterator[str]:
    name = comparison_of(arrangement)
    mine = results[name]
    yield f"## An ordered read, of a log {_IN_WORDS[arrangement]}: {mine[0].size:,} records"
    if arrangement is Arrangement.IN_ORDER:
        # A read that was cut off has no seconds that a bar could show.
        drawn = [one for one in mine if all(run.is_complete for run in one.rounds)]
        draw_bars(drawn, folder / f"{name}.svg", "A log in order", theirs=_THEIRS)
        yield picture(name, "seconds and CPU seconds of each reader of a log in order")
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

_SLACK: Final[Mapping[Way, str]] = {
    Way.STREAMING: "0",
    Way.STREAMING_1S: "1 s",
    Way.STREAMING_1H: "1 h",
    Way.EXACT: "any",
}

#: By comparison.
TAIL_SECTIONS: Final[Mapping[str, _Section]] = {
    comparison_of(arrangement): partial(_section, arrangement) for arrangement in Arrangement
} | {TAIL_GROWTH: _growth}
