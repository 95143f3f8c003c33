"""The check: the published records and the broker's facts against the source and the story."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from kafka_ordered_ops.cli.demo.data import Flights, Int64Array
from kafka_ordered_ops.cli.demo.output import Published
from kafka_ordered_ops.cli.demo.story import BoolArray, Story, Twist

#: Examples that a finding lists.
_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    what: str
    holds: bool
    #: The counts; for a failure also the places.
    detail: str


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """Offsets by partition at the end, as a plain client reads them from the broker."""

    ends: Mapping[int, int]
    committed: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of one call for a window."""

    window_id: str
    attempt: int
    status: str
    #: Whether the Spark job ran in this call.
    ran: bool


def check_published(published: Published, flights: Flights, story: Story) -> list[Finding]:
    """Compare the published files with the source; `flights` are those of the story."""
    return [
        _check_folders(published, story),
        _check_once(published, flights),
        *_check_matched(published, flights, story),
        _check_order(published),
    ]


def check_broker(facts: BrokerFacts, flights: Flights) -> list[Finding]:
    """Check that every record is in the log, and that the group has committed all of it."""
    produced = sum(facts.ends.values())
    behind = {
        n: facts.committed.get(n) for n, end in facts.ends.items() if facts.committed.get(n) != end
    }
    return [
        Finding(
            "the log holds one record per flight",
            produced == len(flights),
            f"{produced:,} records in {len(facts.ends)} partitions, {len(flights):,} flights",
        ),
        Finding(
            "the group's committed offsets are the log's ends",
            bool(facts.ends) and not behind,
            ", ".join(f"{n}: {facts.committed.get(n)}/{end}" for n, end in facts.ends.items()),
        ),
    ]


def check_attempts(attempts: list[Attempt], story: Story) -> list[Finding]:
    """Check that the killed window succeeded in its second attempt, and that the repeated one ran once."""
    return [
        finding
        for step in story.steps
        for finding in _TWISTS[step.twist](
            [attempt for attempt in attempts if attempt.window_id == step.window_id], step.window_id
        )
    ]


def _check_folders(published: Published, story: Story) -> Finding:
    wrong = [
        *(f"missing {name}" for name in published.missing),
        *(f"unexpected {name}" for name in published.unexpected),
    ]
    return Finding(
        "every window is published, and nothing else",
        not wrong,
        "; ".join(wrong) or f"{len(story.steps)} windows",
    )


def _check_once(published: Published, flights: Flights) -> Finding:
    distinct_ids, counts = np.unique(published.int64("id"), return_counts=True)
    missing = np.setdiff1d(flights.ids, distinct_ids)
    unknown = np.setdiff1d(distinct_ids, flights.ids)
    twice = distinct_ids[counts > 1]
    wrong = [
        f"{len(ids):,} {name} ({_examples(ids)})"
        for name, ids in (("missing", missing), ("more than once", twice), ("unknown", unknown))
        if len(ids)
    ]
    detail = (
        f"{len(published):,} records, {len(distinct_ids):,} different flights of {len(flights):,}"
    )
    return Finding("each flight exactly once", not wrong, "; ".join([detail, *wrong]))


def _check_matched(published: Published, flights: Flights, story: Story) -> Iterator[Finding]:
    """Compare each record with its flight in the source, by id."""
    by_id = np.argsort(flights.ids)
    ids = published.int64("id")
    places = np.searchsorted(flights.ids[by_id], ids)
    matches = places < len(flights)
    places = by_id[np.where(matches, places, 0)] if len(flights) else np.zeros(len(ids), np.int64)
    matches &= flights.ids[places] == ids if len(flights) else False
    places = places[matches]

    def compare(what: str, right: BoolArray, detail: str = "") -> Finding:
        wrong = ids[matches][~right]
        numbers = f"{int(right.sum()):,} of {len(published):,}"
        examples = f"; wrong: {_examples(wrong)}" if len(wrong) else ""
        return Finding(what, bool(right.all()) and bool(matches.all()), numbers + detail + examples)

    window = published.int64("window")[matches]
    yield compare("in the right window", window == story.window_of(flights)[places])
    late = story.late_of(flights)[places]
    yield compare(
        "late exactly as in the source",
        published.bools("late")[matches] == late,
        f", {int(late.sum()):,} of them late",
    )
    same = published.int64("timestamp")[matches] == flights.scheduled_ms[places]
    for name in ("flight", "delay_min"):
        same &= published.int64(name)[matches] == flights.int64(name)[places]
    for name in ("carrier", "tailnum", "origin", "dest"):
        ours = published.table[name].to_numpy()[matches]
        same &= ours == flights.table[name].to_numpy()[places]
    yield compare("with the values of the source", same)


def _check_order(published: Published) -> Finding:
    window, stamp, partition, offset = (
        published.int64(name) for name in ("window", "timestamp", "partition", "offset")
    )
    rises = np.zeros(max(len(window) - 1, 0), dtype=np.bool_)
    # One topic, so the order is that of (timestamp, partition, offset); the least significant first.
    for column in (offset, partition, stamp):
        step = np.diff(column)
        rises = (step > 0) | ((step == 0) & rises)
    within = np.diff(window) == 0
    wrong = np.flatnonzero(within & ~rises)
    return Finding(
        "in order of (timestamp, topic, partition, offset), by file name",
        not len(wrong),
        f"{int(within.sum()):,} pairs of neighbours, {len(wrong):,} out of order",
    )


def _check_killed(attempts: list[Attempt], window_id: str) -> list[Finding]:
    last = attempts[-1] if attempts else None
    return [
        Finding(
            f"window {window_id}, killed halfway, was completed by the retry",
            last is not None and last.attempt == 2 and last.status == "published",
            "not run" if last is None else f"attempt {last.attempt}, {last.status}",
        )
    ]


def _check_twice(attempts: list[Attempt], window_id: str) -> list[Finding]:
    return [
        Finding(
            f"window {window_id}, run again, did nothing the second time",
            [attempt.ran for attempt in attempts] == [True, False]
            and attempts[0].attempt == attempts[1].attempt,
            f"{len(attempts)} runs, {sum(attempt.ran for attempt in attempts)} of them with work",
        )
    ]


def _examples(ids: Int64Array) -> str:
    examples = ", ".join(f"id {number}" for number in ids[:_EXAMPLES])
    return f"{examples}, ..." if len(ids) > _EXAMPLES else examples


_TWISTS: Final[Mapping[Twist, Callable[[list[Attempt], str], list[Finding]]]] = {
    Twist.NONE: lambda _tries, _window_id: [],
    Twist.KILLED: _check_killed,
    Twist.TWICE: _check_twice,
}
