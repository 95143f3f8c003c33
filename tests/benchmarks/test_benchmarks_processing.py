"""The comparisons of per-record processing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.goals import goals
from benchmarks.processing import (
    JAVA,
    PROCESSES,
    PROCESSING,
    PROCESSING_CPU,
    PROCESSING_RATE,
    contender_name,
)
from benchmarks.processing_report import side_by_side, times_ideal_of
from benchmarks.results import read_results
from benchmarks.statistics import results_of
from benchmarks.values import Measurement
from benchmarks.work_processor import Way
from benchmarks.work_records import CONCURRENCY, WORK_MS_MAX, WorkTopic
from kafka_ordered_ops.core.processing.scheduling import Ordering
from tests.support.bench_support import measured


@pytest.mark.slow
@given(st.integers(1, 300), st.integers(1, 300))
def test_topics_differ_in_their_keys_alone(keys: int, each: int) -> None:
    """Every key has as many records, and the work of a record does not depend on the keys."""
    topic = WorkTopic(keys * each, keys)
    assert sorted(topic.key_numbers) == sorted(list(range(keys)) * each)
    assert topic.work_ms == WorkTopic(keys * each, 1).work_ms
    assert len(topic.work_ms) == keys * each
    assert set(topic.work_ms) <= set(range(WORK_MS_MAX + 1))


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(Ordering), st.data())
def test_records_out_of_order_are_counted(
    keys: int, each: int, ordering: Ordering, data: st.DataObject
) -> None:
    """Those that began before the one ahead of them, of their key or of the partition, had ended."""
    topic = WorkTopic(keys * each, keys)
    times = st.lists(st.integers(1, 50), min_size=topic.records, max_size=topic.records)
    began, took = data.draw(times), data.draw(times)
    ended = [at + ns for at, ns in zip(began, took, strict=True)]
    last: dict[int, int] = {}
    wanted = 0
    for offset, key in enumerate(topic.key_numbers):
        shard = key if ordering is Ordering.KEY else 0
        wanted += shard in last and began[offset] < ended[last[shard]]
        last[shard] = offset
    made = topic.outcome(ordering, began, ended)
    assert made.order_breaks == (None if ordering is Ordering.UNORDERED else wanted)
    assert made.records == topic.records
    at_once = {Ordering.KEY: keys, Ordering.PARTITION: 1, Ordering.UNORDERED: CONCURRENCY}[ordering]
    assert made.beyond_s["ideal"] == pytest.approx(sum(took) / 1e9 / at_once)
    assert made.seconds == pytest.approx((max(ended) - min(began)) / 1e9)


def _runs(
    ordering: Ordering, keys: int, times: dict[str, tuple[float, float]]
) -> list[Measurement]:
    return [
        replace(
            measured(contender_name(ordering, who), round_, seconds * round_, size=keys),
            beyond_s={"ideal": ideal * round_},
            order_breaks=0,
        )
        for round_ in (1, 2)
        for who, (seconds, ideal) in times.items()
    ]


def test_goals_are_of_the_row_that_is_furthest_from_them() -> None:
    """Plain functions by their seconds, async ones by what is added to their own sleeps; a break anywhere counts."""
    runs = [
        *_runs(Ordering.KEY, 1, {Way.PLAIN: (1.0, 1.0), Way.ASYNC: (1.2, 1.2), JAVA: (1.0, 1.0)}),
        *_runs(Ordering.KEY, 2, {Way.PLAIN: (1.2, 1.0), Way.ASYNC: (1.6, 1.0), JAVA: (1.0, 1.0)}),
    ]
    runs[0] = replace(runs[0], order_breaks=1)
    found = [
        (one.text, one.found.median, one.is_met) for one in goals({PROCESSING: results_of(runs)})
    ]
    row = "the slowest row (key, 2 keys)"
    assert found == [
        (f"plain function, times {JAVA}, {row}", pytest.approx(1.2), False),
        (f"plain function, times ideal, {row}", pytest.approx(1.2), True),
        (f"async function, times ideal, by {JAVA}'s, {row}", pytest.approx(1.6), False),
        (f"async function, times ideal, {row}", pytest.approx(1.6), False),
        ("records processed out of order", 1, False),
    ]


def test_sleeps_of_different_length_are_taken_out() -> None:
    """Both took a tenth longer than their calls."""
    runs = _runs(Ordering.PARTITION, 1, {Way.ASYNC: (2.2, 2.0), JAVA: (1.1, 1.0)})
    [(name, row)] = side_by_side(results_of(runs))
    found = times_ideal_of(row[Way.ASYNC], row[JAVA])
    assert name == "partition"
    assert found is not None
    assert found.median == pytest.approx(1.0)


@pytest.mark.long
def test_records_are_processed_beside_parallel_consumer(tmp_path: Path) -> None:
    """Every record once, in the order asked for; then a backlog through empty functions."""
    asked = ["--scale", "smoke", "--repeats", "1", "--work", str(tmp_path / "work")]
    names = [contender_name(Ordering.PARTITION, who) for who in (*Way, JAVA)]
    asked += ["--out", str(tmp_path / "out"), "--only", PROCESSING, "--only", PROCESSING_RATE]
    asked += ["--only", PROCESSING_CPU]
    for name in (*names, *Way, *PROCESSES.values()):
        asked += ["--contender", name]
    assert main(asked) == 0
    kept = read_results(tmp_path / "out")
    assert {one.contender for one in kept[PROCESSING].measurements} == set(names)
    for one in kept[PROCESSING].measurements:
        assert (one.order_breaks, one.beyond_s["ideal"] < one.seconds) == (0, True)
    for one in kept[PROCESSING_RATE].measurements:
        assert one.records == one.size
    assert {one.contender for one in kept[PROCESSING_CPU].measurements} == {*PROCESSES.values()}
    page = (tmp_path / "out" / "tables.md").read_text()
    assert "speed of two processes that compute, times one" in page
    assert f"times {JAVA}" in page
    assert "k records/s" in page
