"""The demo's check: it holds for a perfect output, and finds every fault."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops.cli.demo.check import (
    Attempt,
    BrokerFacts,
    Finding,
    check_attempts,
    check_broker,
    check_published,
)
from kafka_ordered_ops.cli.demo.data import Flights
from kafka_ordered_ops.cli.demo.output import read_published, window_folder
from kafka_ordered_ops.cli.demo.story import Step
from tests.support.demo_support import SHORT, flights_of
from tests.support.demo_support import flights as flights
from tests.support.demo_support import perfect as perfect
from tests.support.demo_support import source as source


@pytest.fixture
def output(perfect: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(perfect, tmp_path / "flights"))


def failed(findings: list[Finding]) -> list[str]:
    """What does not hold."""
    return [finding.what for finding in findings if not finding.holds]


def test_the_check_holds_for_a_perfect_output(perfect: Path, flights: Flights) -> None:
    """Nothing is found where nothing is wrong, and the findings carry the numbers."""
    findings = check_published(read_published(perfect, SHORT), flights, SHORT)
    assert failed(findings) == []
    assert f"{len(flights):,} records" in findings[1].detail


def _edit(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    path = folder / "part-00000-x.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def _set(table: pa.Table, name: str, first: object) -> pa.Table:
    values = [first, *table[name].to_pylist()[1:]]
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, pa.array(values, table.schema.field(name).type))


def _duplicate(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 1), table])


def _swap_first_two(table: pa.Table) -> pa.Table:
    order = [1, 0, *range(2, table.num_rows)]
    return table.take(order)


DAY = "2013-02-05"


def step_of(window_id: str) -> Step:
    """The step of a window."""
    return next(step for step in SHORT.steps if step.window_id == window_id)


ORDER = "in order of (timestamp, topic, partition, offset), by file name"
ONCE = "each flight exactly once"


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda day: (day / "part-00001-x.parquet").unlink(), [ONCE]),
        (lambda day: _edit(day, _duplicate), [ONCE, ORDER]),
        (lambda day: _edit(day, _swap_first_two), [ORDER]),
        (
            lambda day: (day / "part-00000-x.parquet").rename(day / "part-00002-x.parquet"),
            [ORDER],
        ),
        (lambda day: _edit(day, lambda t: _set(t, "late", False)), ["late exactly"]),
        (lambda day: _edit(day, lambda t: _set(t, "dest", "nowhere")), ["with the values"]),
        (lambda day: _edit(day, lambda t: _set(t, "delay_min", 9)), ["with the values"]),
        (lambda day: _edit(day, lambda t: _set(t, "id", 10**9)), [ONCE, "in the", "late", "with"]),
        (lambda day: shutil.rmtree(day), ["every window", ONCE]),
        (
            lambda day: shutil.move(
                day / "part-00001-x.parquet",
                window_folder(day.parent, step_of("2013-02-06")) / "part-00000-a.parquet",
            ),
            ["in the right window", ORDER],
        ),
        (lambda day: (day.parent / "window_id=stranger").mkdir(), ["every window"]),
    ],
    ids=[
        "a file is gone",
        "a row stands twice",
        "two rows change places",
        "a file has another name",
        "a late record is not flagged",
        "another destination",
        "another delay",
        "an unknown flight",
        "a window is gone",
        "rows lie in another window",
        "a window too many",
    ],
)
def test_the_check_finds_a_spoiled_output(
    output: Path, flights: Flights, spoil: Callable[[Path], object], found: list[str]
) -> None:
    """Each fault is found by the line that names it, and by no other."""
    day = window_folder(output, step_of(DAY))
    first = pq.read_table(day / "part-00000-x.parquet")
    # So that the faults really are ones: the day's first records are late, and come in an order.
    assert first["late"][0].as_py()
    assert first["timestamp"][0].as_py() < first["timestamp"][1].as_py()
    spoil(day)
    wrong = failed(check_published(read_published(output, SHORT), flights, SHORT))
    assert len(wrong) == len(found)
    assert all(what.startswith(start) for what, start in zip(wrong, found, strict=True))


@pytest.mark.parametrize(
    ("ends", "committed", "wrong"),
    [
        ({0: 2, 1: 1}, {0: 2, 1: 1}, 0),
        ({0: 2, 1: 1}, {0: 2}, 1),
        ({0: 2, 1: 1}, {0: 1, 1: 1}, 1),
        ({0: 2, 1: 2}, {0: 2, 1: 2}, 1),
        ({}, {}, 2),
    ],
)
def test_the_check_compares_the_broker_with_the_source(
    ends: dict[int, int], committed: dict[int, int], wrong: int
) -> None:
    """Too few or too many records, and an offset behind its end, are each found."""
    facts = BrokerFacts(ends, committed)
    assert len(failed(check_broker(facts, flights_of((0, 0), (1, 0), (2, 0))))) == wrong


def test_the_check_wants_the_second_attempt_and_the_idle_run() -> None:
    """A kill that nobody noticed, and a second run that worked again, are failures."""
    killed, twice = "2013-02-08", "2013-02-09"
    good = [
        Attempt(killed, 2, "published", ran=True),
        Attempt(twice, 1, "published", ran=True),
        Attempt(twice, 1, "published", ran=False),
    ]
    assert failed(check_attempts(good, SHORT)) == []
    bad = [
        Attempt(killed, 1, "published", ran=True),
        Attempt(twice, 1, "published", ran=True),
        Attempt(twice, 2, "published", ran=True),
    ]
    assert len(failed(check_attempts(bad, SHORT))) == 2
    assert len(failed(check_attempts([], SHORT))) == 2
