"""The page of the documentation: the main ratios, the pictures, and what they depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.goals import PEAK_MEMORY, Goal, goals_table
from benchmarks.plots import PICTURES
from benchmarks.results import Kept
from benchmarks.statistics import Results
from benchmarks.tables import picture

PAGE_NAME: Final = "index.md"

#: How the goals begin that a reader asks about first.
_MAIN: Final = (
    "window by engine",
    "in order by engine",
    "24 windows",
    "Avro decoded by",
    "Protobuf decoded by",
    "JSON decoded by",
    "the same, one bad value",
    "native: ",
    "ordered read, streaming 0",
    "plain function, times Parallel",
    "k records/s through an empty plain",
    "relay, batches",
    "relay, one by one: requests",
)

_TEXT: Final = """# Benchmarks

The package beside tools that do the same job without it: Spark's Kafka connector, Structured Streaming, other ordered readers,
Parallel Consumer and share groups. `make bench` measures, and writes this page.

```shell
make bench                                                  # all: some 165 minutes
make bench BENCH="--only window --scale small --repeats 2"  # a first look: two minutes
make bench BENCH=--only-report                              # page and all tables
```

[`results.json`](results.json) has every measurement. `--only-report` makes all tables from it, in `docs/benchmarks/tables.md`.
`benchmarks/METHOD.md` in the repository says what each contender does and how it is measured.

## Main figures

A number is the median of its rounds, with the least and the greatest in parentheses. *Times* is the median of the ratios within
each round. A limit that is not met is a goal that was missed. Of the {memory_goals} goals for peak memory, the table has the
one with the greatest number.

{goals}

Goal for imports: every name of `kafka_ordered_ops.airflow` or `kafka_ordered_ops.dagster` loads within 2 s on top of the host's
own import. `python -m benchmarks.imports` measures it.

## Pictures

Blue bars are this package, grey bars other tools. Less is better.

{pictures}

## What the figures do not show

One machine runs the broker, Spark and its tasks: no network, TLS or second executor is between them. Records have 100 bytes, in
batches without compression. Compare ratios within a round, not numbers of two machines.

Measured {dates}, on {environment}.
"""


def page_of(
    goals: Sequence[Goal], results: Mapping[str, list[Results]], kept: Mapping[str, Kept]
) -> str:
    """Return the page as Markdown."""
    dates = sorted({one.date for one in kept.values()})
    environment = [*kept.values()][-1].facts.environment
    pictures = [picture(name, what) for name, what in PICTURES.items() if results.get(name)]
    span = f"from {dates[0]:%-d %B} to {dates[-1]:%-d %B %Y}"
    main = [goal for goal in goals if goal.text.startswith(_MAIN)]
    memory = [goal for goal in main if PEAK_MEMORY in goal.text]
    greatest = max(memory, key=lambda goal: goal.found.median, default=None)
    return _TEXT.format(
        goals=goals_table([goal for goal in main if goal is greatest or goal not in memory]),
        memory_goals=len(memory),
        pictures="\n\n".join(pictures),
        dates=span if len(dates) > 1 else f"on {dates[0]:%-d %B %Y}",
        environment="; ".join(f"{key}: {value}" for key, value in environment.items()),
    )
