"""The page with the main ratios, its pictures, and the file with all tables, which is not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.comparisons import (
    COLD,
    CONNECTOR,
    CONNECTOR_BARE,
    ONE_PASS,
    STREAMING,
    STREAMING_ONCE,
    WARM,
    WINDOW_GROWTH,
    table_contender,
)
from benchmarks.decoded import DECODED
from benchmarks.goals import goals, goals_table
from benchmarks.growth import GROWTH
from benchmarks.lake_tables import TableFormat
from benchmarks.offset_maps import LIBRARYS_SETS, OFFSET_MAPS, RANDOM_SETS
from benchmarks.offsets_show import OFFSETS_SHOW
from benchmarks.page import PAGE_NAME, page_of
from benchmarks.plots import draw_bars, draw_lines
from benchmarks.processing_report import PROCESSING_SECTIONS
from benchmarks.readers import READERS, READERS_DAY, READERS_KILOBYTES, Task, name_of
from benchmarks.relay_report import RELAY_SECTIONS
from benchmarks.results import Kept, RunFacts, read_results
from benchmarks.statistics import Results, results_of
from benchmarks.tables import (
    beyond_table,
    curve_table,
    growth_table,
    jobs_table,
    picture,
    planning_table,
    publishing_table,
    readers_table,
    reading_table,
)
from benchmarks.tail_report import TAIL_SECTIONS, slack_section
from kafka_ordered_ops.kafka.settings import ReaderKind

#: All tables, made from the results whenever somebody wants them.
TABLES_NAME: Final = "tables.md"

_INTRODUCTION: Final = """# Results

`benchmarks/METHOD.md` explains the terms. A number is the median of its
rounds, with the least and the greatest in parentheses. *Times* is the median of the ratios within each round.
CPU seconds and peak memory are of the contender's whole process tree, the broker's not among them."""

_THEIRS: Final = (CONNECTOR, CONNECTOR_BARE, STREAMING, STREAMING_ONCE)


def write_report(folder: Path) -> None:
    """Write the page, its pictures and the tables from the results in a folder."""
    kept = read_results(folder)
    results = {name: results_of(one.measurements) for name, one in kept.items()}
    reached = list(goals(results))
    parts = [_INTRODUCTION, "## Goals", goals_table(reached)]
    sections: dict[str, _Section] = {
        "window": _window,
        "ordered": _ordered,
        DECODED: _decoded,
        "planning": _planning,
        "hourly": _hourly,
        WINDOW_GROWTH: _window_growth,
        "reading": _reading,
        READERS: partial(_readers, READERS, "The native reader and librdkafka"),
        READERS_DAY: partial(_readers, READERS_DAY, "The same: 24 hours in one pass"),
        READERS_KILOBYTES: partial(_readers, READERS_KILOBYTES, "The same: records of 1 KB"),
        "publishing": _publishing,
        "tables": _tables,
        GROWTH: _growth,
        OFFSET_MAPS: _offset_maps,
        OFFSETS_SHOW: _offsets_show,
        **TAIL_SECTIONS,
        **PROCESSING_SECTIONS,
        **RELAY_SECTIONS,
    }
    for name, section in sections.items():
        if results.get(name):
            parts += [*section(folder, results), _measured(name, kept[name])]
    parts += slack_section(results)
    parts += ["## Environment", *_environments(kept)]
    (folder / TABLES_NAME).write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    page = page_of(reached, results, kept)
    (folder / PAGE_NAME).write_text(page, encoding="utf-8")


_Results = Mapping[str, list[Results]]
_Section = Callable[[Path, _Results], Iterator[str]]


def _window(folder: Path, results: _Results) -> Iterator[str]:
    mine = results["window"]
    yield f"## A window to Parquet: {mine[0].size:,} records"
    draw_bars(mine, folder / "window.svg", "One window to Parquet, as it comes", theirs=_THEIRS)
    yield picture("window", "seconds and CPU seconds of each engine and of the connector")
    yield jobs_table(mine, CONNECTOR)
    yield "What the package does around the job, in the same runs:"
    yield beyond_table(mine)


def _ordered(folder: Path, results: _Results) -> Iterator[str]:
    mine = results["ordered"]
    yield f"## The same in total order: {mine[0].size:,} records"
    draw_bars(mine, folder / "ordered.svg", "One window to Parquet, in order", theirs=_THEIRS)
    yield picture(
        "ordered", "seconds and CPU seconds of each engine and of the connector with orderBy"
    )
    yield jobs_table(mine, CONNECTOR)


def _decoded(_folder: Path, results: _Results) -> Iterator[str]:
    mine = results[DECODED]
    yield f"## Values as columns: {mine[0].size:,} records"
    yield jobs_table(mine, CONNECTOR)


def _planning(folder: Path, results: _Results) -> Iterator[str]:
    mine = results["planning"]
    yield "## Planning and committing"
    over = [one for one in mine if one.contender in (COLD, WARM)]
    draw_lines(
        over,
        folder / "planning.svg",
        "Plan and commit, without a job",
        across="partitions",
        of_plan=True,
    )
    yield picture("planning", "seconds to plan and commit over the number of partitions")
    yield planning_table(mine)


def _offset_maps(_folder: Path, results: _Results) -> Iterator[str]:
    yield "## Offset maps"
    yield "Seconds to write and to read one map, without a broker:"
    mine = results[OFFSET_MAPS]
    timed = [one for one in mine if one.contender not in (LIBRARYS_SETS, RANDOM_SETS)]
    yield growth_table(timed, "done ranges")


def _offsets_show(_folder: Path, results: _Results) -> Iterator[str]:
    yield "## `offsets show` over partitions"
    yield "Seconds of the whole command, from the start of its process:"
    yield growth_table(results[OFFSETS_SHOW], "partitions")


def _readers(name: str, title: str, _folder: Path, results: _Results) -> Iterator[str]:
    mine = results[name]
    yield f"## {title}: {mine[0].size:,} records"
    yield "Of windows, the job alone: reading, and writing Parquet. Peak memory is that of the process that reads."
    yield readers_table(
        mine,
        {name_of(task, ReaderKind.NATIVE): name_of(task, ReaderKind.LIBRDKAFKA) for task in Task},
    )


def _hourly(folder: Path, results: _Results) -> Iterator[str]:
    mine = results["hourly"]
    yield f"## 24 hourly windows of one backlog: {mine[0].size:,} records"
    draw_bars(mine, folder / "hourly.svg", "24 hourly windows to Parquet", theirs=_THEIRS)
    yield picture("hourly", "seconds and CPU seconds of the ways to 24 hourly windows")
    yield jobs_table(mine, ONE_PASS)


def _window_growth(_folder: Path, results: _Results) -> Iterator[str]:
    names = {one.contender for one in results[WINDOW_GROWTH]}
    # The size of the first comparison was measured there.
    mine = [
        *results[WINDOW_GROWTH],
        *(o for o in results.get("window", []) if o.contender in names),
    ]
    yield "## Growth of a window"
    yield growth_table(mine)


def _growth(_folder: Path, results: _Results) -> Iterator[str]:
    mine = results[GROWTH]
    yield "## Growth of a group"
    yield (
        "The exponent is between the last two sizes: 0 is flat, 1 is linear. The limits in the documentation say what follows."
    )
    for curve in dict.fromkeys(one.contender for one in mine):
        yield curve_table([one for one in mine if one.contender == curve])


def _reading(folder: Path, results: _Results) -> Iterator[str]:
    mine = results["reading"]
    yield f"## Where reading spends its time: {mine[0].size:,} records"
    yield reading_table(mine)


def _publishing(folder: Path, results: _Results) -> Iterator[str]:
    yield "## What publishing adds"
    yield publishing_table(results["publishing"])


def _tables(folder: Path, results: _Results) -> Iterator[str]:
    yield "## Into existing tables"
    for size in sorted({one.size for one in results["tables"]}):
        yield f"{size:,} records:"
        mine = [one for one in results["tables"] if one.size == size]
        for table in TableFormat:
            of = [one for one in mine if one.contender.startswith(table)]
            yield jobs_table(of, table_contender(table, None))


def _measured(name: str, kept: Kept) -> str:
    return f"Measured on {kept.date:%-d %B %Y}: `{_command(name, kept.facts)}`, code `{kept.facts.code}`."


def _command(name: str, facts: RunFacts) -> str:
    return f"python -m benchmarks --only {name} --scale {facts.scale} --repeats {facts.repeats}"


def _environments(kept: Mapping[str, Kept]) -> Iterator[str]:
    seen: list[Mapping[str, str]] = []
    for one in kept.values():
        environment = one.facts.environment
        if environment in seen:
            continue
        seen.append(environment)
        of = [n for n, other in kept.items() if other.facts.environment == environment]
        lines = "\n".join(f"- {key}: {value}" for key, value in environment.items())
        if len(of) < len(kept):
            lines = f"Of {', '.join(of)}:\n\n{lines}"
        yield lines
