"""What the benchmarks make of the package's own ordered reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.backlog import PARTITIONS, shares
from benchmarks.comparisons import SCALES, comparisons
from benchmarks.goals import goals
from benchmarks.ordered_reading import OrderedRead, Way
from benchmarks.ordered_topics import Arrangement, arranged_stamps, ordered_topic
from benchmarks.results import read_results
from benchmarks.statistics import results_of
from benchmarks.tail import CONSUME, TAIL, TAIL_GROWTH, WAYS, comparison_of, tail_comparisons
from benchmarks.tail_report import slack_section, tail_table
from benchmarks.values import Measurement, Place
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.bench_support import measured

RECORDS = 400


def _filled(kafka: InMemoryKafka, arrangement: Arrangement) -> str:
    topic, counts = ordered_topic(arrangement, RECORDS), shares(RECORDS, PARTITIONS)
    kafka.create_topic(topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        for stamp_ms in arranged_stamps(arrangement, counts, partition):
            kafka.produce(topic, partition=partition, value=b"v", timestamp_ms=stamp_ms)
    return topic


@pytest.mark.parametrize(
    ("arrangement", "way"),
    [(arrangement, way) for arrangement, ways in WAYS.items() for way in ways],
    ids=str,
)
def test_an_ordered_read_returns_every_record(
    arrangement: Arrangement, way: Way, tmp_path: Path
) -> None:
    """Once, in order but for the late ones, in every round; and leaves no file."""
    with InMemoryKafka() as kafka:
        topic = _filled(kafka, arrangement)
        work = OrderedRead(topic, way).start(Place(kafka.bootstrap, tmp_path))
        for round_ in (0, 1):
            made = work.run(round_)
            assert (made.records, made.order_breaks) == (RECORDS, 0)
            assert made.late_records is not None
            # A read that waits for as long as the log is out of order finds none late.
            assert made.late_records == 0 or way is Way.STREAMING
            assert made.is_complete
    assert list(tmp_path.iterdir()) == []


def test_every_size_is_measured_once() -> None:
    """The growth leaves out what the topics' own comparisons measure."""
    scale = SCALES["full"]
    *logs, growth = tail_comparisons(scale.records, scale.growth)
    assert [one.name for one in logs] == [comparison_of(one) for one in Arrangement]
    assert {one.size for log in logs for one in log.contenders} == {scale.records}
    assert {one.size for one in growth.contenders} == {*scale.growth} - {scale.records}
    for one in comparisons(scale):
        names = [(contender.name, contender.size) for contender in one.contenders]
        assert len(set(names)) == len(names)


def _runs(seconds: dict[str, Sequence[float]], **facts: int) -> list[Measurement]:
    return [
        replace(measured(name, n, each, size=9_000), **facts)  # type: ignore[arg-type]
        for name, every in seconds.items()
        for n, each in enumerate(every, start=1)
    ]


def test_goals_of_ordered_reads() -> None:
    """Against the faster peer, also where it was cut off; against the client; and no order break at all."""
    ours = _runs({Way.STREAMING: [10.0, 10.0], Way.EXACT: [16.0, 16.0]}, order_breaks=0)
    theirs = _runs({CONSUME: [8.0, 8.0]}, order_breaks=900)
    cut = replace(measured("kafkars", 1, 60.0, size=9_000), records=5, is_complete=False)
    best = _runs({"kafkarrow, fast queue, large batches": [15.0, 15.0]}, order_breaks=3)
    found = list(goals({TAIL: results_of([*ours, *theirs, cut, *best])}))
    assert [(goal.found.median, goal.is_met) for goal in found] == [
        (6.0, True),
        (1.5, False),
        (0.8, True),
        (0.5, False),
        (0.0, True),
    ]
    assert "by default (kafkars)" in found[0].text
    assert "(kafkarrow, fast queue, large batches)" in found[1].text
    broken = [*ours[:-1], replace(ours[-1], order_breaks=1)]
    *_, last = goals({TAIL: results_of(broken)})
    assert (last.found.median, last.is_met) == (1.0, False)


@pytest.mark.parametrize(("megabytes", "met"), [(600, True), (601, False)])
def test_the_goal_of_memory_is_about_the_largest_log(megabytes: int, met: bool) -> None:
    """The peak of all rounds counts."""
    small, *large = (
        replace(measured("exact, reversed", n, 1.0, size=size), memory_bytes=nbytes)
        for n, size, nbytes in (
            (1, 1_000_000, 10**10),
            (1, 20_000_000, megabytes * 10**6),
            (2, 20_000_000, 10**6),
        )
    )
    [goal] = goals({TAIL_GROWTH: results_of([small, *large])})
    assert (goal.found.median, goal.is_met) == (megabytes, met)


def test_late_records_are_shown() -> None:
    """In the table of their log, and among the costs of out-of-orderness."""
    runs = [*_runs({CONSUME: [2.0, 2.0]}), *_runs({Way.STREAMING: [3.0, 3.0]}, late_records=8_000)]
    results = results_of([replace(one, order_breaks=0) for one in runs])
    *_, base, mine = tail_table(results).splitlines()
    assert base.split(" | ")[-4:] == ["0", "-", "-", "2 |"]
    assert mine.split(" | ")[-4:] == ["0", "8,000", "-", "2 |"]
    *_, table = slack_section({comparison_of(Arrangement.REVERSED): results})
    assert table.splitlines()[2:] == [
        "| in reverse order, 0 | 3.00 (3.00 to 3.00) | 1.50 (1.50 to 1.50) | 6.0 (6.0 to 6.0) | 1 | 8,000 |"
    ]
    assert list(slack_section({})) == []


@pytest.mark.long
def test_ordered_reads_are_measured(tmp_path: Path) -> None:
    """On a broker of its own, over sizes; both tables have the size of the logs' own comparisons too."""
    asked = ["--only", TAIL_GROWTH, "--only", "tail-reversed", "--scale", "smoke", "--repeats", "1"]
    for one in tail_comparisons(SCALES["smoke"].records, SCALES["smoke"].growth)[-1].contenders:
        asked += ["--contender", one.name]
    for way in WAYS[Arrangement.REVERSED]:
        asked += ["--contender", way.value]
    out = tmp_path / "out"
    assert main([*asked, "--out", str(out), "--work", str(tmp_path / "work")]) == 0
    for kept in read_results(out).values():
        assert all(one.records == one.size for one in kept.measurements)
        assert all(one.order_breaks == 0 for one in kept.measurements)
    page = (out / "tables.md").read_text()
    assert page.count("| records | 1,200 | 2,400 |") == 2
