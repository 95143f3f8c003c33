"""The part of the page that is about the relay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.relay import FIRST_RECORD, P50, P99, PACE, RELAY, RELAY_LATENCY, RELAY_SINGLE, WORST
from benchmarks.statistics import Results, Spread
from benchmarks.tables import memory_text, spread_text, table

_Results = Mapping[str, Sequence[Results]]


def records_a_second(one: Results) -> Spread | None:
    """Records that were read and acknowledged."""
    return one.spread(lambda run: run.records / run.seconds)


def requests_a_second(one: Results) -> Spread | None:
    """A record by itself is a read, and an acknowledgement."""
    return one.spread(lambda run: 2 * run.records / run.seconds)


def milliseconds(one: Results, name: str) -> Spread | None:
    """A part beyond the job."""
    return one.spread(lambda run: run.beyond_s[name] * 1_000 if name in run.beyond_s else None)


def _batches(_folder: Path, results: _Results) -> Iterator[str]:
    yield "## A backlog through one server of the relay, beside a share group"
    yield (
        "Eight clients each. Both acknowledge each batch, and wait until this is stored. *First record*: from a new "
        "group's first call to its first record; it is not in the rate."
    )
    rows = [
        [
            one.contender,
            f"{one.records:,}",
            spread_text(records_a_second(one), digits=0),
            spread_text(milliseconds(one, FIRST_RECORD), digits=0),
            spread_text(one.cpu_s, digits=1),
            memory_text(one.memory_bytes),
        ]
        for one in results[RELAY]
        if one.rounds
    ]
    yield table(["", "records", "records/s", "first record, ms", "CPU seconds", "peak MiB"], rows)


def _single(_folder: Path, results: _Results) -> Iterator[str]:
    yield "## Single records through one server of the relay"
    yield "60 clients each; a request reads one record, or acknowledges one."
    rows = [
        [
            one.contender,
            f"{one.records:,}",
            spread_text(requests_a_second(one), digits=0),
            spread_text(one.cpu_s, digits=1),
            memory_text(one.memory_bytes),
        ]
        for one in results[RELAY_SINGLE]
        if one.rounds
    ]
    yield table(["", "records", "requests/s", "CPU seconds", "peak MiB"], rows)


def _latency(_folder: Path, results: _Results) -> Iterator[str]:
    yield f"## Answers of the relay at {PACE:,} requests a second"
    yield (
        "Sent at fixed times, whether or not those before are answered; each counts from the time when it was due. "
        "Milliseconds."
    )
    rows = [
        [one.contender, f"{one.records:,}"]
        + [spread_text(milliseconds(one, name), digits=0) for name in (P50, P99, WORST)]
        for one in results[RELAY_LATENCY]
        if one.rounds
    ]
    yield table(["", "requests", P50, P99, WORST], rows)


#: By comparison.
RELAY_SECTIONS: Final[Mapping[str, Callable[[Path, _Results], Iterator[str]]]] = {
    RELAY: _batches,
    RELAY_SINGLE: _single,
    RELAY_LATENCY: _latency,
}
