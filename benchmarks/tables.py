"""Measurements as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.statistics import Results, Spread, exponent, ratio

_MIB: Final = 1024**2


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is of numbers."""
    line = "| --- |" + " ---: |" * (len(header) - 1)
    return "\n".join([_row(header), line, *map(_row, rows)])


def spread_text(spread: Spread | None, *, digits: int = 2) -> str:
    """The median, and in parentheses the least and the greatest."""
    if spread is None:
        return "-"
    if spread.rounds == 1:
        return f"{spread.median:.{digits}f}"
    return f"{spread.median:.{digits}f} ({spread.least:.{digits}f} to {spread.greatest:.{digits}f})"


def memory_text(memory_bytes: int | None) -> str:
    """MiB."""
    return "-" if memory_bytes is None else f"{memory_bytes / _MIB:,.0f}"


def picture(name: str, meaning: str) -> str:
    """A picture beside the page, with what it shows."""
    return f"[![{meaning}]({name}.svg)]({name}.svg)"


def jobs_table(results: Sequence[Results], base: str) -> str:
    """What contenders took for the same job, each held against `base`."""
    found = {one.contender: one for one in results}
    rows = [
        [
            one.contender,
            spread_text(one.seconds),
            spread_text(ratio(one, found[base])) if base in found else "-",
            _rate(one),
            spread_text(one.cpu_s, digits=1),
            memory_text(one.memory_bytes),
            "-" if one.first is None else f"{one.first.seconds:.1f}",
            str(len(one.rounds)),
        ]
        for one in results
        if one.rounds
    ]
    header = [
        "",
        "seconds",
        f"times {base}",
        "k records/s",
        "CPU seconds",
        "peak MiB",
        "first run, s",
        "rounds",
    ]
    return table(header, rows)


def beyond_table(results: Sequence[Results]) -> str:
    """Planning and committing around the job."""
    rows = [
        [
            one.contender,
            spread_text(one.beyond_s("plan")),
            spread_text(one.beyond_s("commit")),
            spread_text(one.beyond_s("plan", "commit")),
        ]
        for one in results
        if one.beyond_s("plan", "commit")
    ]
    return table(["", "plan, s", "commit, s", "together, s"], rows)


def planning_table(results: Sequence[Results]) -> str:
    """Planning and committing without a job."""
    rows = [
        [
            f"{one.contender}, {one.size:,}",
            spread_text(one.beyond_s("plan")),
            spread_text(one.beyond_s("commit")),
            spread_text(one.beyond_s("plan", "commit")),
            spread_text(one.seconds),
            spread_text(one.cpu_s),
            memory_text(one.memory_bytes),
            "-" if one.first is None else f"{one.first.seconds:.2f}",
        ]
        for one in results
        if one.rounds
    ]
    header = [
        "",
        "plan, s",
        "commit, s",
        "together, s",
        "with the process, s",
        "CPU seconds",
        "peak MiB",
        "first run, s",
    ]
    return table(header, rows)


def growth_table(results: Sequence[Results], of: str = "records") -> str:
    """Seconds by contender over sizes, which count records or something else."""
    return _over_sizes(results, lambda one: spread_text(one.seconds), of)


def memory_growth_table(results: Sequence[Results]) -> str:
    """Peak memory by contender over sizes."""
    return _over_sizes(results, lambda one: memory_text(one.memory_bytes), "records")


def _over_sizes(results: Sequence[Results], text_of: Callable[[Results], str], of: str) -> str:
    sizes = sorted({one.size for one in results})
    names = list(dict.fromkeys(one.contender for one in results))
    found = {(one.contender, one.size): one for one in results}
    rows = []
    for name in names:
        cells = [found.get((name, size)) for size in sizes]
        rows.append([name, *("-" if one is None else text_of(one) for one in cells)])
    rounds = [str(max(len(one.rounds) for one in results if one.size == size)) for size in sizes]
    rows.append(["rounds", *rounds])
    return table([of, *(f"{size:,}" for size in sizes)], rows)


def curve_table(results: Sequence[Results]) -> str:
    """The figures of one contender over its sizes, and how each grows between the last two."""
    mine = sorted(results, key=lambda one: one.size)
    rows = []
    for name in dict.fromkeys(name for one in mine for run in one.rounds for name in run.figures):
        power = exponent(mine, name)
        cells = [_figure_text(one.figure(name)) for one in mine]
        rows.append([name, *cells, "-" if power is None else f"{power:.1f}"])
    return table([mine[0].contender, *(f"{one.size:,}" for one in mine), "exponent"], rows)


def _figure_text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def reading_table(results: Sequence[Results]) -> str:
    """CPU time of a record, step by step."""
    rows, before = [], 0.0
    for one in results:
        cpu_ns = one.spread(
            lambda run: None if run.cpu_s is None else 1e9 * run.cpu_s / run.records
        )
        step_ns = "-" if cpu_ns is None else f"{cpu_ns.median - before:+,.0f}"
        before = 0.0 if cpu_ns is None else cpu_ns.median
        rows.append(
            [
                one.contender,
                spread_text(cpu_ns, digits=0),
                step_ns if one.contender.startswith("and ") else "",
                spread_text(one.seconds),
            ]
        )
    return table(["", "CPU ns a record", "this step", "seconds"], rows)


def readers_table(results: Sequence[Results], bases: Mapping[str, str]) -> str:
    """What each task took, held against the contender that `bases` names for it."""
    by_name = {result.contender: result for result in results}
    rows = []
    for result in results:
        base = by_name.get(bases.get(result.contender, ""))
        rows.append(
            [
                result.contender,
                spread_text(result.seconds),
                "" if base is None else spread_text(ratio(result, base)),
                spread_text(result.cpu_s, digits=1),
                memory_text(result.memory_bytes),
                str(len(result.rounds)),
            ]
        )
    header = ["", "seconds", "times librdkafka", "CPU seconds", "peak MiB", "rounds"]
    return table(header, rows)


def publishing_table(results: Sequence[Results]) -> str:
    """What publishing adds to the job, by place and size."""
    rows = [
        [
            f"{one.contender}, {one.size:,}",
            spread_text(one.seconds),
            spread_text(one.beyond_s("commit")),
            spread_text(one.beyond_s("publish")),
            spread_text(published_share(one)),
            spread_text(_per_million(one)),
        ]
        for one in results
        if one.rounds
    ]
    header = [
        "",
        "job, s",
        "commit, s",
        "publish, s",
        "publish, of the job",
        "a million records, s",
    ]
    return table(header, rows)


def published_share(one: Results) -> Spread | None:
    """Publishing's seconds by the job's, within each round."""
    return one.spread(lambda run: run.beyond_s["publish"] / run.seconds)


def _per_million(one: Results) -> Spread | None:
    return one.spread(lambda run: 1e6 * run.beyond_s["publish"] / run.records)


def _rate(one: Results) -> str:
    seconds = one.seconds
    return "-" if seconds is None else f"{one.records / seconds.median / 1000:,.0f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
