"""The command: ``python -m benchmarks --help``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.comparisons import SCALES, comparisons
from benchmarks.environment import environment
from benchmarks.journal import Journal, code_digest
from benchmarks.report import write_report
from benchmarks.results import RunFacts, keep_results
from benchmarks.rounds import Report, Step, measure, only, steps_in_all
from benchmarks.values import Comparison, Measurement, Place
from kafka_ordered_ops.embedded import EmbeddedKafka

_REPEATS: Final = 5
_OUT: Final = Path("docs/benchmarks")
_WORK: Final = Path("build/bench")

#: Thousands of partitions on one node: their first segments alone would be checked for deletion all the time.
_BROKER: Final = {"log.retention.check.interval.ms": "300000"}


def main(arguments: list[str] | None = None) -> int:
    """Measures what is asked for, and writes the tables and plots of all that has been measured."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.only_report:
        write_report(asked.out)
        return 0
    if asked.repeats < 1:
        parser.error(f"--repeats {asked.repeats}: at least one round must count")
    scale = SCALES[asked.scale]
    named = [one for one in comparisons(scale) if not asked.only or one.name in asked.only]
    chosen = [one for one in (only(one, asked.contender) for one in named) if one.contenders]
    if not chosen:
        parser.error(f"no contender of these comparisons is called {' or '.join(asked.contender)}")
    facts = RunFacts(scale.name, asked.repeats, code_digest(), environment())
    journal = Journal(asked.work / f"{scale.name}.jsonl", facts.to_json())
    started = time.monotonic()
    with _Terminal(sum(steps_in_all(one, asked.repeats) for one in chosen)) as terminal:
        terminal.say(f"{len(journal)} runs are kept from before" if len(journal) else "a new run")
        for comparison in _measured(chosen, journal, asked.repeats, terminal):
            today = datetime.now(UTC).date()
            keep_results(asked.out, facts, today, comparison.name, journal.of(comparison.name))
            write_report(asked.out)
        journal.forget(comparison.name for comparison in chosen)
        terminal.say(f"{time.monotonic() - started:.0f} s; tables and plots are in {asked.out}")
    return 0


def _measured(
    chosen: list[Comparison], journal: Journal, repeats: int, terminal: _Terminal
) -> Iterator[Comparison]:
    """Each comparison once it is complete."""
    # On the same disk as the system's other temporary files.
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with EmbeddedKafka(_BROKER) as kafka:
            place = Place(kafka.bootstrap, folder)
            for comparison in chosen:
                terminal.say(f"{comparison.name}: making its topics")
                measure(comparison, journal, place, repeats=repeats, report=terminal.report)
                yield comparison
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Terminal:
    """A line of progress, and a line for each run; without a terminal the lines only."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True, highlight=False, markup=False)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._console = console
        self._task = self._progress.add_task("starting", total=total)

    def __enter__(self) -> _Terminal:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, soft_wrap=True)

    @property
    def report(self) -> Report:
        """To be told of each run."""
        return self._report

    def _report(self, comparison: Comparison, step: Step, made: Measurement | None) -> None:
        name = (
            f"{comparison.name}, {step.contender.name}, {step.contender.size:,}, round {step.round}"
        )
        if made is None:
            self._progress.update(self._task, description=name)
            return
        self._progress.advance(self._task)
        beyond = "".join(f", {part} {one:.2f} s" for part, one in made.beyond_s.items())
        cpu = "" if made.cpu_s is None else f", CPU {made.cpu_s:.1f} s"
        memory = "" if made.memory_bytes is None else f", {made.memory_bytes / 1024**2:,.0f} MiB"
        breaks = "" if made.order_breaks is None else f", {made.order_breaks:,} order breaks"
        late = f", {made.late_records:,} late" if made.late_records else ""
        cut = "" if made.is_complete else f", CUT OFF after {made.records:,} records"
        self.say(f"{name}: {made.seconds:.2f} s{beyond}{cpu}{memory}{breaks}{late}{cut}")


def _parser() -> argparse.ArgumentParser:
    names = [one.name for one in comparisons(SCALES["smoke"])]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures the package on a broker of its own. An interrupted run goes on where it was.",
    )
    parser.add_argument(
        "--only", action="append", choices=names, help="a comparison; may be repeated; else all"
    )
    parser.add_argument(
        "--contender",
        action="append",
        default=[],
        help="a contender by its name; may be repeated; else all",
    )
    parser.add_argument("--scale", choices=list(SCALES), default="full", help="how much")
    parser.add_argument("--repeats", type=int, default=_REPEATS, help="rounds that count")
    parser.add_argument("--out", type=Path, default=_OUT, help="folder of tables and plots")
    parser.add_argument("--work", type=Path, default=_WORK, help="folder of what is unfinished")
    parser.add_argument(
        "--only-report", action="store_true", help="measure nothing; make tables and plots anew"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
